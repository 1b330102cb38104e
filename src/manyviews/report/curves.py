"""Charts that overlay runs: training curves and singular spectra."""

from collections.abc import Sequence
from typing import Literal

from manyviews.report.charts import Figure, Series, draw_line_chart
from manyviews.report.summary import RunSummary, describe_monitored

CURVES = {
    "loss": ("Loss", "Loss of each batch."),
    "knn": ("kNN", "kNN on representations."),
    "alignment": ("Alignment", "Squared distance of two views; 0 if they coincide."),
    "uniformity": ("Uniformity", "0 for a single point, -4 for an even spread."),
    "rank": ("Rank", "Dimensions that the embeddings span."),
    "rankme": ("RankMe", "Effective number of dimensions of the embeddings."),
    "temperature": ("Temperature", "Learned temperature."),
}
"""Title and caption of the chart of each column of metrics.csv."""
MONITORED = ("knn", "alignment", "uniformity", "rank", "rankme")
"""Metrics on monitored instances, which some runs also train on."""


def draw_metric_charts(summaries: Sequence[RunSummary]) -> tuple[list[Figure], list[str]]:
    """Draw a chart per metric; also return messages about charts that are missing."""
    figures, missing = [], []
    learned = [summary.run.config.with_loss_defaults().learn_temperature for summary in summaries]
    for name, (title, description) in CURVES.items():
        if name == "temperature" and not any(learned):
            continue
        caption, full_title = description, title
        ks = sorted({f"{row['knn_k']:.0f}" for summary in summaries for row in summary.metrics if "knn_k" in row})
        if name == "knn" and ks:
            caption += f" k = {', '.join(ks)}."
        if name == "loss" and len({summary.loss for summary in summaries}) > 1:
            caption += " Values of different losses are not comparable."
        if name in MONITORED:
            caption += f" {describe_monitored(summaries)}"
            trained_on = [summary.trains_on_monitored for summary in summaries]
            full_title += (
                ", training instances" if all(trained_on) else ", partly training instances" if any(trained_on) else ""
            )
        lines = [_make_series(summary, name) for summary in summaries]
        figure = draw_line_chart(full_title, lines, as_percent=name == "knn", caption=caption)
        if figure is None:
            missing.append(title if title in ("kNN", "RankMe") else title.lower())
        else:
            figures.append(figure)
    if not missing:
        return figures, []
    reason = "kNN needs classes, geometry needs embeddings, and both need a run that has been monitored at least once"
    return figures, [f"Not in metrics.csv: {', '.join(missing)}. {reason}."]


def _make_series(summary: RunSummary, name: str) -> Series:
    rows = [row for row in summary.metrics if name in row]
    return Series(summary.name, summary.index, [row["step"] for row in rows], [row[name] for row in rows])


def draw_spectra(summaries: Sequence[RunSummary]) -> tuple[list[Figure], list[str]]:
    """Draw singular values of representations and embeddings; also return messages about missing spectra."""
    figures = []
    titles: dict[Literal["h", "z"], str] = {"h": "Representations h", "z": "Embeddings z"}
    for kind, title in titles.items():
        spectra = [(summary, _get_spectrum(summary, kind)) for summary in summaries]
        lines = [Series(s.name, s.index, range(1, len(values) + 1), values) for s, values in spectra]
        caption = "Singular values in descending order: a line that falls late uses many dimensions."
        if figure := draw_line_chart(title, lines, x_label="singular value", log=True, caption=caption):
            figures.append(figure)
    missing = [summary.name for summary in summaries if not _get_spectrum(summary, "h")]
    return figures, [f"No spectrum in evaluation.json: {', '.join(missing)}."] if missing else []


def _get_spectrum(summary: RunSummary, kind: Literal["h", "z"]) -> list[float]:
    geometry = summary.evaluation.get_geometry(kind) if summary.evaluation else None
    return list(geometry.spectrum) if geometry else []
