"""Figures in one quiet style, readable in grey: a marker and a dash of its own for each line."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from manyviews.experiments.results import METRICS, Results
from manyviews.training.files import replaced

LOOKS: tuple[tuple[str, Any], ...] = (
    ("o", "-"), ("s", "--"), ("^", "-."), ("D", ":"), ("v", (0, (5, 1))), ("P", (0, (3, 1, 1, 1))), ("X", (0, (1, 1))),
)  # fmt: skip
COLOURS = ("#1b5e9c", "#c4622d", "#3f7f4f", "#7a5195", "#8a6d1f", "#5f6b76", "#b03a5b")
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "legend.frameon": False,
    "figure.dpi": 150,
    "savefig.bbox": "tight",
    "pdf.fonttype": 42,
}


@contextmanager
def quiet_style() -> Iterator[Any]:
    """Matplotlib's `Figure` in our style, which is gone afterwards."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        yield Figure


def look(number: int) -> dict[str, Any]:
    """Colour, marker and dash of a line."""
    marker, dash = LOOKS[number % len(LOOKS)]
    return {"color": COLOURS[number % len(COLOURS)], "marker": marker, "linestyle": dash}


def save(figure: Any, path: Path) -> list[Path]:
    """As .png and .pdf beside each other, each whole or not at all."""
    paths = [path.with_suffix(ending) for ending in (".png", ".pdf")]
    for one in paths:
        with replaced(one) as temporary:
            # Without a date: the same figure is the same file.
            metadata = {"CreationDate": None} if one.suffix == ".pdf" else {"Software": "manyviews"}
            figure.savefig(temporary, format=one.suffix[1:], metadata=metadata)
    return paths


def along_figure(results: Results, along: str, metrics: Sequence[str], path: Path) -> list[Path]:
    """For each data set and metric, a line for each objective along one part of the places."""
    data = results.options("data")
    shown = [name for name in metrics if any(name in values for values in results.values.values())]
    with quiet_style() as Figure:
        figure = Figure(figsize=(2.9 * len(shown) + 0.8, 2.4 * len(data) + 0.6))
        axes = figure.subplots(len(data), len(shown), squeeze=False)
        for row, name in enumerate(data):
            for column, metric in enumerate(shown):
                axis = axes[row][column]
                for number, objective in enumerate(results.options("objective")):
                    _line(axis, results, metric, along, number, {"data": name, "objective": objective})
                axis.set_title(METRICS[metric].name + (f", {name}" if len(data) > 1 else ""), fontsize=9)
                axis.set_xlabel(along)
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.tight_layout()
        columns = len(labels) if len(shown) > 1 else 3
        figure.legend(handles, labels, loc="upper center", ncol=columns, bbox_to_anchor=(0.5, 0.0))
        return save(figure, path)


def _line(axis: Any, results: Results, metric: str, along: str, number: int, place: Mapping[str, Any]) -> None:
    points = []
    for value in sorted(results.options(along), key=float):
        values = results.all(metric, **{along: value}, **place)
        if values:
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            points.append((float(value), statistics.fmean(values), spread))
    if not points:
        return
    x, mean, spreads = zip(*points, strict=True)
    axis.plot(x, mean, label=str(place["objective"]), **look(number))
    if any(spreads):
        low, high = ([m + sign * s for m, s in zip(mean, spreads, strict=True)] for sign in (-1, 1))
        axis.fill_between(x, low, high, color=COLOURS[number % len(COLOURS)], alpha=0.15, linewidth=0)
    axis.set_xticks(x)
    axis.set_xticklabels([f"{value:g}" for value in x])
