"""Figures in one plain style, readable in gray: each line has its own marker and dash."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from manyviews.reproduce.results import METRICS, Results
from manyviews.utils import atomic_path

LINE_STYLES: tuple[tuple[str, Any], ...] = (
    ("o", "-"), ("s", "--"), ("^", "-."), ("D", ":"), ("v", (0, (5, 1))), ("P", (0, (3, 1, 1, 1))), ("X", (0, (1, 1))),
)  # fmt: skip
COLORS = ("#1b5e9c", "#c4622d", "#3f7f4f", "#7a5195", "#8a6d1f", "#5f6b76", "#b03a5b")
STYLE: dict[Any, Any] = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True,
    "grid.color": "#e4e4e4", "grid.linewidth": 0.6, "lines.linewidth": 1.4, "lines.markersize": 4,
    "legend.frameon": False, "figure.dpi": 150, "savefig.bbox": "tight", "pdf.fonttype": 42,
}  # fmt: skip


@contextmanager
def use_plot_style() -> Iterator[Any]:
    """Yield Matplotlib's `Figure` with this style active; the style is restored afterwards."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        yield Figure


def get_line_style(index: int) -> dict[str, Any]:
    """Return color, marker and dash of a line."""
    marker, dash = LINE_STYLES[index % len(LINE_STYLES)]
    return {"color": COLORS[index % len(COLORS)], "marker": marker, "linestyle": dash}


def save_figure(figure: Any, path: Path) -> list[Path]:
    """Write the figure atomically as .png and .pdf."""
    paths = [path.with_suffix(suffix) for suffix in (".png", ".pdf")]
    for file in paths:
        with atomic_path(file) as temporary:
            # No date: the same figure gives the same file.
            metadata = {"CreationDate": None} if file.suffix == ".pdf" else {"Software": "manyviews"}
            figure.savefig(temporary, format=file.suffix[1:], metadata=metadata)
    return paths


def draw_line_figure(results: Results, axis_name: str, metrics: Sequence[str], path: Path) -> list[Path]:
    """Plot a panel for each dataset and metric, with a line for each loss along one axis."""
    datasets = results.list_levels("data")
    plotted = [name for name in metrics if any(name in values for values in results.values.values())]
    with use_plot_style() as Figure:
        figure = Figure(figsize=(2.9 * len(plotted) + 0.8, 2.4 * len(datasets) + 0.6))
        axes = figure.subplots(len(datasets), len(plotted), squeeze=False)
        for row, name in enumerate(datasets):
            for column, metric in enumerate(plotted):
                axis = axes[row][column]
                for index, loss in enumerate(results.list_levels("loss")):
                    _draw_line(axis, results, metric, axis_name, index, {"data": name, "loss": loss})
                axis.set_title(METRICS[metric].name + (f", {name}" if len(datasets) > 1 else ""), fontsize=9)
                axis.set_xlabel(axis_name)
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.tight_layout()
        columns = len(labels) if len(plotted) > 1 else 3
        figure.legend(handles, labels, loc="upper center", ncol=columns, bbox_to_anchor=(0.5, 0.0))
        return save_figure(figure, path)


def _draw_line(axis: Any, results: Results, metric: str, axis_name: str, index: int, coords: Mapping[str, Any]) -> None:
    points = []
    for value in sorted(results.list_levels(axis_name), key=float):
        values = results.list_values(metric, **{axis_name: value}, **coords)
        if values:
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            points.append((float(value), statistics.fmean(values), spread))
    if not points:
        return
    x, mean, spreads = zip(*points, strict=True)
    axis.plot(x, mean, label=str(coords["loss"]), **get_line_style(index))
    if any(spreads):
        low, high = ([m + sign * s for m, s in zip(mean, spreads, strict=True)] for sign in (-1, 1))
        axis.fill_between(x, low, high, color=COLORS[index % len(COLORS)], alpha=0.15, linewidth=0)
    axis.set_xticks(x)
    axis.set_xticklabels([f"{value:g}" for value in x])
