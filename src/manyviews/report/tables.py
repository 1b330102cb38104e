"""Tables: comparison of runs, scores and baselines, geometry, cross-modal retrieval."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from manyviews.evaluation import describe_evaluation, name_knn
from manyviews.metrics import GEOMETRY_HELP
from manyviews.report.scales import format_number, format_percent
from manyviews.report.summary import RunSummary, describe_monitored

TRAINED_KEY = "trained encoder"
NON_PERCENT_METRICS = ("MAE", "Corr")
"""Metrics that are not fractions."""
EN_DASH = "\N{EN DASH}"
MONITORED_FOOTNOTE = "* Last value in training: there is no evaluation yet."


@dataclass(frozen=True)
class Cell:
    """A value, with a bar for a fraction, or a shaded background."""

    text: str = ""
    fraction: float | None = None
    shade_level: int | None = None
    """From 0 to 10; -1 for an empty cell of a matrix."""
    subtext: str = ""


@dataclass(frozen=True)
class Row:
    name: str
    cells: list[Cell]
    highlight: bool = False
    run_index: int | None = None
    subtext: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of cells below a header; the first column contains the rows' names."""

    title: str
    header: list[str]
    rows: list[Row]
    notes: list[str] = field(default_factory=list)


def make_comparison_table(summaries: Sequence[RunSummary]) -> Table:
    """Compare the runs."""
    header = ["run", "loss", "views", "kNN", "linear probe", "alignment", "uniformity", "rank", "RankMe"]
    rows = [Row(summary.name, _make_comparison_cells(summary), run_index=summary.index) for summary in summaries]
    notes = []
    if any(cell.text.endswith("*") for row in rows for cell in row.cells):
        notes.append(f"{MONITORED_FOOTNOTE} {describe_monitored(summaries)}")
    if len({summary.data for summary in summaries}) > 1:
        notes.append("The runs use different datasets: their scores are not comparable.")
    for summary in summaries:
        notes += [f"{summary.name}: {line}." for line in summary.evaluation.get("better_baselines", [])]
    return Table("Comparison of runs", [*header, "epochs", "data"], rows, notes)


def _make_comparison_cells(summary: RunSummary) -> list[Cell]:
    score = (summary.evaluation.get("scores") or {}).get(TRAINED_KEY, {})
    geometry = summary.get_geometry("z") or summary.get_geometry("h")
    knn = (
        make_percent_cell(score["knn"], score.get("knn_k")) if "knn" in score else _make_monitored_cell(summary, "knn")
    )
    cells = [Cell(summary.loss), Cell(summary.views), knn]
    if "heads" in score:
        cells.append(Cell("MAE " + format_number(statistics.fmean(head["MAE"] for head in score["heads"]))))
    else:
        cells.append(make_percent_cell(score.get("linear")))
    cells += [
        Cell(_format_geometry(geometry, name)) if geometry else _make_monitored_cell(summary, name)
        for name in ("alignment", "uniformity", "rank", "rankme")
    ]
    return [*cells, Cell(str(summary.run.config.epochs)), Cell(summary.data)]


def _make_monitored_cell(summary: RunSummary, name: str) -> Cell:
    value = summary.get_last_monitored(name)
    if value is None:
        return Cell(EN_DASH)
    if name == "knn":
        return dataclasses.replace(
            make_percent_cell(value, summary.get_last_monitored("knn_k")), text=f"{format_percent(value)}*"
        )
    return Cell(f"{value:.0f}*" if name == "rank" else f"{value:.3f}*")


def make_percent_cell(value: float | None, k: float | None = None) -> Cell:
    """A fraction as a percentage, with the k of kNN below it."""
    return Cell(EN_DASH) if value is None else Cell(format_percent(value), value, subtext=f"k = {k:.0f}" if k else "")


def make_scores_table(result: Mapping[str, Any]) -> Table:
    """Scores of each representation: kNN and linear probe, or metrics of regression targets."""
    scores = result["scores"]
    notes = [f"{describe_evaluation(result)}."]
    notes += [f"Note: {note}." for note in [*result["notes"], *result.get("better_baselines", [])]]
    if result.get("labels") == "quantities":
        metrics = list(scores[TRAINED_KEY]["heads"][0])
        header = ["representation", *metrics]
        rows = [Row(name, [_make_metric_cell(score["heads"], m) for m in metrics]) for name, score in scores.items()]
    else:
        few = scores[TRAINED_KEY].get("few", {})
        header = ["representation", name_knn(scores[TRAINED_KEY]), "linear probe"]
        header += [f"{fraction['labels']:,} labels" for fraction in few.values()]
        rows = [
            Row(
                name,
                [
                    make_percent_cell(score.get("knn")),
                    make_percent_cell(score.get("linear")),
                    *(_make_mean_std_cell(score.get("few", {}).get(key, {}).get("linear")) for key in few),
                ],
            )
            for name, score in scores.items()
        ]
    rows = [Row(row.name, row.cells, highlight=row.name == TRAINED_KEY) for row in rows]
    return Table("Evaluation", header, rows, notes)


def _make_metric_cell(heads: Sequence[Mapping[str, float]], metric: str) -> Cell:
    value = _compute_mean(heads, metric)
    if value is None:
        return Cell(EN_DASH)
    return Cell(f"{value:.3f}") if metric in NON_PERCENT_METRICS else make_percent_cell(value)


def _compute_mean(heads: Sequence[Mapping[str, float]], metric: str) -> float | None:
    values = [head[metric] for head in heads if head.get(metric) is not None]
    return statistics.fmean(values) if values else None


def _make_mean_std_cell(values: Sequence[float] | None) -> Cell:
    if not values:
        return Cell(EN_DASH)
    mean = statistics.fmean(values)
    std = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return Cell(format_percent(mean) + std, mean)


def make_geometry_table(summary: RunSummary) -> Table | None:
    """Geometry of representations and embeddings; None if it was not evaluated."""
    by_kind = {kind: geometry for kind in "hz" if (geometry := summary.get_geometry(kind))}
    if not by_kind:
        return None
    names = {"h": "representations h", "z": "embeddings z"}
    rows = [
        Row(
            name.replace("rankme", "RankMe"),
            [Cell(_format_geometry(one, name)) for one in by_kind.values()],
            subtext=help_text,
        )
        for name, help_text in GEOMETRY_HELP.items()
        if any(geometry.get(name) is not None for geometry in by_kind.values())
    ]
    settings = summary.evaluation["geometry"]
    unit = "modalities" if "modalities" in summary.evaluation else "views"
    note = f"{settings['views']} {unit} of {settings['instances']:,} {summary.evaluation['split']} instances."
    return Table("Geometry", ["", *(names[kind] for kind in by_kind)], rows, [note])


def _format_geometry(geometry: Mapping[str, Any], name: str) -> str:
    value = geometry.get(name)
    if value is None:
        return EN_DASH
    if name == "rank":
        return f"{value} of {geometry['dimensions']}"
    return format_percent(value) if name == "recall@1" else f"{value:.1f}" if name == "rankme" else f"{value:.3f}"


def make_retrieval_table(result: Mapping[str, Any]) -> Table | None:
    """Recall of cross-modal retrieval: rows query columns."""
    pairs = result.get("retrieval") or {}
    if not pairs:
        return None
    names = [name for name in result["modalities"] if name not in result["dropped"]]
    rows = []
    for source in names:
        cells = []
        for target in names:
            pair = pairs.get(f"{source} to {target}")
            cells.append(Cell("·", shade_level=-1) if pair is None else _make_recall_cell(pair))
        rows.append(Row(source, cells))
    counts = sorted({pair["instances"] for pair in pairs.values()})
    total = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
    chance = f"; chance level {format_percent(1 / counts[0])}" if len(counts) == 1 else ""
    note = f"Recall at 1 (below: at 5 and at 10) among {total} instances{chance}. Rows query columns."
    return Table("Cross-modal retrieval", ["from \\ to", *names], rows, [note])


def _make_recall_cell(pair: Mapping[str, float]) -> Cell:
    recall = pair["recall@1"]
    return Cell(
        format_percent(recall),
        shade_level=round(10 * recall),
        subtext=f"{pair['recall@5']:.0%} · {pair['recall@10']:.0%}",
    )


def make_pairwise_geometry_table(result: Mapping[str, Any]) -> Table | None:
    """Geometry of each pair of modalities and of each modality."""
    geometry = result.get("geometry") or {}
    by_modality = geometry.get("z") or geometry.get("h") or {}
    if "pairs" not in by_modality:
        return None
    rows = [
        Row(name, [Cell(_format_geometry(one, key)) for key in ("alignment", "uniformity", "rankme")])
        for name, one in {**by_modality["pairs"], **by_modality["each"]}.items()
    ]
    kind = "embeddings z" if "z" in geometry else "representations h"
    return Table(f"Geometry of modalities, {kind}", ["", "alignment", "uniformity", "RankMe"], rows)
