"""`manyviews evaluate`."""

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from manyviews.cli.console import Device, RunPath, print_lines, show_table, unasked
from manyviews.utils.text import escape_control_characters

if TYPE_CHECKING:
    from manyviews.training import EvaluationConfig


_SUMMARY = "Tell what a run is worth: kNN, linear probe and geometry, also in RUN/evaluation.json."


def evaluate_command(arguments: list[str]) -> Callable[..., None]:
    """The command, with the fields of an `EvaluationConfig` as flags."""
    if arguments[:1] != ["evaluate"]:
        return unasked(_SUMMARY)

    from manyviews.training import EvaluationConfig

    def command(
        run: RunPath,
        how: Annotated[EvaluationConfig, tyro.conf.arg(name="")] = EvaluationConfig(),  # noqa: B008 (frozen)
        data: str | None = None,
        device: Device = "auto",
    ) -> None:
        """Tell what a run is worth: kNN, linear probe and geometry, also in RUN/evaluation.json.

        Of modalities also every subset of them, and how well each finds the others.

        Args:
            run: the directory of a finished run.
            how: which probe, how many labels, compared with what.
            data: other data, for transfer: photos, digits, cifar10, cifar100, or a path.
            device: auto takes a GPU if there is one.
        """
        evaluate_run(run, how, data, device)

    return command


def evaluate_run(run: Path, how: "EvaluationConfig", data: str | None = None, device: Device = "auto") -> None:
    """Evaluate, and show the tables."""
    from manyviews.training import Run, evaluate
    from manyviews.training.assess import evaluation_name

    opened = Run.open(run)
    found = evaluate(opened, data=data, how=how, device=device)
    show_evaluation(found)
    print_lines(f"written to {opened.path / evaluation_name(data, found['data'], how)}")


def show_evaluation(found: dict[str, Any]) -> None:
    """All tables of an evaluation."""
    show_scores(found)
    if "modalities" in found:
        show_subsets(found)
        show_retrieval(found)
        show_each(found)
    else:
        show_geometry(found)


def show_scores(found: dict[str, Any]) -> None:
    """A table of kNN and linear probe, or why there is none."""
    from rich.console import Console
    from rich.table import Table

    from manyviews.training.compare import describe_evaluation, name_knn

    if found["scores"] is None:
        print_lines(found["why"])
        return
    print_lines(f"{found['data']}: {describe_evaluation(found)}")
    for note in found["notes"]:
        print_lines(f"note: {note}")
    scores = {escape_control_characters(name): score for name, score in found["scores"].items()}
    table = Table()
    if found.get("labels") == "quantities":
        table.add_column("metric")
        for name in scores:
            table.add_column(name, justify="right")
        for metric in scores["trained encoder"]["heads"][0]:
            cells = [_number([one.get(metric) for one in score["heads"]], metric) for score in scores.values()]
            table.add_row(escape_control_characters(metric), *cells)
    else:
        table.add_column("representation")
        few = scores["trained encoder"]["few"]
        for title in (
            name_knn(scores["trained encoder"]),
            "linear probe",
            *(f"{one['labels']:,} labels" for one in few.values()),
        ):
            table.add_column(title, justify="right")
        for name, score in scores.items():
            draws = [_mean(one["linear"]) for one in score.get("few", {}).values()]
            table.add_row(name, f"{score['knn']:.1%}" if "knn" in score else "", f"{score['linear']:.1%}", *draws)
    Console().print(table)
    for line in found.get("better_baselines", []):
        print_lines(f"note: {line}")


def _mean(shares: list[float]) -> str:
    return f"{statistics.mean(shares):.1%} ± {100 * statistics.stdev(shares):.1f}"


def _number(values: list[float | None], metric: str) -> str:
    """The mean of some layers' metric, and its deviation."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    mean, plain = statistics.fmean(known), metric in ("MAE", "Corr")
    told = f"{mean:.3f}" if plain else f"{mean:.1%}"
    if len(known) < 2:
        return told
    spread = statistics.stdev(known)
    return f"{told} ± {spread:.3f}" if plain else f"{told} ± {100 * spread:.1f}"


def show_subsets(found: dict[str, Any]) -> None:
    """A table of what each subset of the modalities is worth."""
    if not found.get("subsets"):
        return
    from manyviews.evaluation.modalities import PROBES
    from manyviews.training.compare import METRICS

    first = next(iter(found["subsets"].values()))["scores"]
    metrics = [name for name in METRICS if name in first["own"]]
    whole, rows = max(name.count(" + ") for name in found["subsets"]), []
    for name, one in found["subsets"].items():
        if whole < MOST_SHOWN or name.count(" + ") in (0, whole - 1, whole):
            cells = [" / ".join(_number([one["scores"][kind][metric]], metric) for metric in metrics) for kind in first]
            some = f" ({one['instances']:,})" if one["instances"] < found["test_instances"] else ""
            rows.append([name + some, *cells])
    title = f"{' / '.join(metrics)} of subsets of modalities"
    show_table(["modalities", *(PROBES[kind].replace(", ", ",\n") for kind in first)], rows, title)
    if len(rows) < len(found["subsets"]):
        print_lines(f"{len(rows)} of {len(found['subsets'])} subsets; the file has them all")


MOST_SHOWN = 4
"""Modalities of which every subset is shown; of more only each alone, all but one, and all."""


def show_retrieval(found: dict[str, Any]) -> None:
    """A matrix of how often one modality finds the other of the same instance."""
    if not found["retrieval"]:
        return
    names = [name for name in found["modalities"] if name not in found["dropped"]]
    ks = (1, 5, 10) if len(names) <= MOST_SHOWN else (1,)
    count = max(pair["instances"] for pair in found["retrieval"].values())
    rows = []
    for one in names:
        pairs = [found["retrieval"].get(f"{one} to {other}", {}) for other in names]
        rows.append([one, *(" / ".join(f"{100 * pair[f'recall@{k}']:.0f}" for k in ks if pair) for pair in pairs)])
    show_table(["from", *names], rows, f"recall at {' / '.join(map(str, ks))} (%) among {count:,} instances, to")


def show_each(found: dict[str, Any]) -> None:
    """A table of how each modality, and each pair of them, lies on the sphere."""
    if found["geometry"] is None:
        return
    kind = "z" if "z" in found["geometry"] else "h"
    shape = found["geometry"][kind]
    rows = []
    for name, one in {"all modalities": shape["all"], **shape["pairs"], **shape["each"]}.items():
        cells = [f"{one[key]:.3f}" if one.get(key) is not None else "" for key in ("alignment", "uniformity")]
        rank = f"{one['rank']} of {shape['all']['dimensions']}" if "rank" in one else ""
        rows.append([name, *cells, rank, f"{one['rankme']:.1f}" if "rankme" in one else ""])
    header = [f"geometry of {kind}", "alignment", "uniformity", "rank", "RankMe"]
    show_table(header, rows, f"{found['geometry']['instances']:,} {found['split']} instances")


def show_geometry(found: dict[str, Any]) -> None:
    """A table of how representations and embeddings lie on the sphere."""
    from rich.console import Console
    from rich.table import Table

    from manyviews.evaluation.represent import GEOMETRY

    geometry = found["geometry"]
    if geometry is None:
        return
    print_lines(f"{geometry['views']} views of {geometry['instances']:,} {found['split']} instances:")
    table = Table()
    table.add_column("geometry")
    table.add_column("h", justify="right")
    table.add_column("z", justify="right")
    table.add_column("h representations, z embeddings")
    for name, says in GEOMETRY.items():
        table.add_row(name, *(_value(geometry[key], name) for key in "hz"), says)
    Console().print(table, markup=False)


def _value(shape: dict[str, Any], name: str) -> str:
    return f"{shape[name]} of {shape['dimensions']}" if name == "rank" else f"{shape[name]:.3f}"
