"""The table that compares runs."""

import statistics
from collections.abc import Sequence

from manyviews.evaluation import Score, format_geometry, format_metric
from manyviews.report.summary import RunSummary, describe_monitored
from manyviews.utils import Cell, Row, Table

EN_DASH = "\N{EN DASH}"
MONITORED_FOOTNOTE = "* Last value in training: there is no evaluation yet."
HEADER = ("run", "loss", "views", "kNN", "linear probe", "alignment", "uniformity", "rank", "RankMe", "epochs", "data")


def make_comparison_table(summaries: Sequence[RunSummary]) -> Table:
    """Compare the runs."""
    rows = [Row(summary.name, _make_cells(summary), run_index=summary.index) for summary in summaries]
    notes = []
    if any(cell.text.endswith("*") for row in rows for cell in row.cells):
        notes.append(f"{MONITORED_FOOTNOTE} {describe_monitored(summaries)}")
    if len({summary.data for summary in summaries}) > 1:
        notes.append("The runs use different datasets: their scores are not comparable.")
    for summary in summaries:
        lines = summary.evaluation.better_baselines if summary.evaluation else ()
        notes += [f"{summary.name}: {line}." for line in lines]
    return Table("Comparison of runs", HEADER, rows, notes)


def _make_cells(summary: RunSummary) -> list[Cell]:
    result = summary.evaluation
    score = result.scores.get("trained", Score()) if result else Score()
    geometry = (result.get_geometry("z") or result.get_geometry("h")) if result else None
    knn = _make_monitored_cell(summary, "knn") if score.knn is None else _make_percent_cell(score.knn, score.knn_k)
    linear = Cell(EN_DASH) if score.linear is None else _make_percent_cell(score.linear)
    if score.probes:
        linear = Cell("MAE " + format_metric("MAE", [statistics.fmean(probe["MAE"] for probe in score.probes)]))
    names = ("alignment", "uniformity", "rank", "rankme")
    cells = [Cell(format_geometry(geometry, n)) if geometry else _make_monitored_cell(summary, n) for n in names]
    config = summary.run.config
    return [Cell(summary.loss), Cell(summary.views), knn, linear, *cells, Cell(str(config.epochs)), Cell(summary.data)]


def _make_percent_cell(value: float, k: float | None = None, suffix: str = "") -> Cell:
    """Return a percentage with a bar, and the k of kNN below it."""
    return Cell(f"{value:.1%}{suffix}", value, subtext=f"k = {k:.0f}" if k else "")


def _make_monitored_cell(summary: RunSummary, name: str) -> Cell:
    value = summary.get_last_monitored(name)
    if value is None:
        return Cell(EN_DASH)
    if name == "knn":
        return _make_percent_cell(value, summary.get_last_monitored("knn_k"), "*")
    return Cell(f"{value:.0f}*" if name == "rank" else f"{value:.3f}*")
