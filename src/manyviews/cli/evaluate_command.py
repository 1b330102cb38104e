"""`manyviews evaluate`."""

from __future__ import annotations

import statistics
from typing import Annotated, Any

import tyro

import manyviews as mv
from manyviews.cli.common import Device, RunArg, Unset, print_lines, show_table
from manyviews.utils import escape_control_characters


def evaluate_command(
    run: RunArg,
    eval_config: Annotated[mv.EvaluationConfig, tyro.conf.arg(name="")],
    data: Annotated[str | None, Unset] = None,
    device: Device = "auto",
) -> None:
    """Evaluate a run (kNN, linear probe, embedding geometry) and write RUN/evaluation.json.

    For a multimodal run, every subset of the modalities and the retrieval between modalities are evaluated too.

    Args:
        run: Directory of a finished run.
        eval_config: Settings of the evaluation.
        data: Other data to transfer to: photos, digits, cifar10, cifar100, or a path. Default: the run's own data.
        device: Device; auto uses a GPU if available.
    """
    from manyviews.evaluation import evaluate, get_evaluation_filename
    from manyviews.runs import Run

    opened = Run.open(run)
    result = evaluate(opened, data=data, config=eval_config, device=device)
    show_evaluation(result)
    print_lines(f"written to {opened.path / get_evaluation_filename(data, result['data'], eval_config)}")


def show_evaluation(result: dict[str, Any]) -> None:
    """Print all tables of an evaluation."""
    show_scores(result)
    if "modalities" in result:
        show_subsets(result)
        show_retrieval(result)
        show_pairwise_geometry(result)
    else:
        show_geometry(result)


def show_scores(result: dict[str, Any]) -> None:
    """Print a table of kNN and probe scores, or the reason why there are none."""
    from rich.console import Console
    from rich.table import Table

    from manyviews.evaluation import describe_evaluation, name_knn

    if result["scores"] is None:
        print_lines(result["why"])
        return
    print_lines(f"{result['data']}: {describe_evaluation(result)}")
    for note in result["notes"]:
        print_lines(f"note: {note}")
    scores = {escape_control_characters(name): score for name, score in result["scores"].items()}
    table = Table()
    if result.get("labels") == "quantities":
        table.add_column("metric")
        for name in scores:
            table.add_column(name, justify="right")
        for metric in scores["trained encoder"]["heads"][0]:
            cells = [_format_number([head.get(metric) for head in score["heads"]], metric) for score in scores.values()]
            table.add_row(escape_control_characters(metric), *cells)
    else:
        table.add_column("representation")
        few = scores["trained encoder"]["few"]
        for title in (
            name_knn(scores["trained encoder"]),
            "linear probe",
            *(f"{fraction['labels']:,} labels" for fraction in few.values()),
        ):
            table.add_column(title, justify="right")
        for name, score in scores.items():
            cells = [_format_mean(fraction["linear"]) for fraction in score.get("few", {}).values()]
            table.add_row(name, f"{score['knn']:.1%}" if "knn" in score else "", f"{score['linear']:.1%}", *cells)
    Console().print(table)
    for line in result.get("better_baselines", []):
        print_lines(f"note: {line}")


def _format_mean(accuracies: list[float]) -> str:
    return f"{statistics.mean(accuracies):.1%} ± {100 * statistics.stdev(accuracies):.1f}"


def _format_number(values: list[float | None], metric: str) -> str:
    """Format the mean of a metric over probes and, for several, its standard deviation."""
    numbers = [value for value in values if value is not None]
    if not numbers:
        return ""
    mean, is_percent = statistics.fmean(numbers), metric not in ("MAE", "Corr")
    text = f"{mean:.1%}" if is_percent else f"{mean:.3f}"
    if len(numbers) < 2:
        return text
    std = statistics.stdev(numbers)
    return f"{text} ± {100 * std:.1f}" if is_percent else f"{text} ± {std:.3f}"


def show_subsets(result: dict[str, Any]) -> None:
    """Print a table of the scores of each subset of the modalities."""
    if not result.get("subsets"):
        return
    from manyviews.evaluation import METRICS, PROBE_LABELS

    first = next(iter(result["subsets"].values()))["scores"]
    metrics = [name for name in METRICS if name in first["own"]]
    max_plus, rows = max(name.count(" + ") for name in result["subsets"]), []
    for name, subset in result["subsets"].items():
        if max_plus < MAX_SHOWN or name.count(" + ") in (0, max_plus - 1, max_plus):
            cells = [
                " / ".join(_format_number([subset["scores"][kind][metric]], metric) for metric in metrics)
                for kind in first
            ]
            count = f" ({subset['instances']:,})" if subset["instances"] < result["test_instances"] else ""
            rows.append([name + count, *cells])
    title = f"{' / '.join(metrics)} of subsets of modalities"
    show_table(["modalities", *(PROBE_LABELS[kind].replace(", ", ",\n") for kind in first)], rows, title)
    if len(rows) < len(result["subsets"]):
        print_lines(f"{len(rows)} of {len(result['subsets'])} subsets are shown; the JSON file has all")


MAX_SHOWN = 4
"""With more modalities, only single ones, all but one, and all together are shown."""


def show_retrieval(result: dict[str, Any]) -> None:
    """Print the recall of every ordered pair of modalities as a matrix."""
    if not result["retrieval"]:
        return
    names = [name for name in result["modalities"] if name not in result["dropped"]]
    ks = (1, 5, 10) if len(names) <= MAX_SHOWN else (1,)
    count = max(pair["instances"] for pair in result["retrieval"].values())
    rows = []
    for source in names:
        pairs = [result["retrieval"].get(f"{source} to {target}", {}) for target in names]
        rows.append([source, *(" / ".join(f"{100 * pair[f'recall@{k}']:.0f}" for k in ks if pair) for pair in pairs)])
    show_table(["from", *names], rows, f"recall at {' / '.join(map(str, ks))} (%) among {count:,} instances, to")


def show_pairwise_geometry(result: dict[str, Any]) -> None:
    """Print the geometry of all modalities, of each pair and of each one."""
    if result["geometry"] is None:
        return
    kind = "z" if "z" in result["geometry"] else "h"
    geometry = result["geometry"][kind]
    rows = []
    for name, group in {"all modalities": geometry["all"], **geometry["pairs"], **geometry["each"]}.items():
        cells = [f"{group[key]:.3f}" if group.get(key) is not None else "" for key in ("alignment", "uniformity")]
        rank = f"{group['rank']} of {geometry['all']['dimensions']}" if "rank" in group else ""
        rows.append([name, *cells, rank, f"{group['rankme']:.1f}" if "rankme" in group else ""])
    header = [f"geometry of {kind}", "alignment", "uniformity", "rank", "RankMe"]
    show_table(header, rows, f"{result['geometry']['instances']:,} {result['split']} instances")


def show_geometry(result: dict[str, Any]) -> None:
    """Print the geometry of representations and embeddings."""
    from rich.console import Console
    from rich.table import Table

    from manyviews.metrics import GEOMETRY_HELP

    geometry = result["geometry"]
    if geometry is None:
        return
    print_lines(f"{geometry['views']} views of {geometry['instances']:,} {result['split']} instances:")
    table = Table()
    table.add_column("geometry")
    table.add_column("h", justify="right")
    table.add_column("z", justify="right")
    table.add_column("h: representations, z: embeddings")
    for name, description in GEOMETRY_HELP.items():
        table.add_row(name, *(_format_value(geometry[key], name) for key in "hz"), description)
    Console().print(table, markup=False)


def _format_value(geometry: dict[str, Any], name: str) -> str:
    return f"{geometry[name]} of {geometry['dimensions']}" if name == "rank" else f"{geometry[name]:.3f}"
