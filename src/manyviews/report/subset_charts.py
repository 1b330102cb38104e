"""Scores of modality subsets as a chart: one row per subset, with its modalities as dots and its scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from manyviews.evaluation import METRICS, PROBE_LABELS
from manyviews.report.charts import Figure
from manyviews.report.markup import format_coordinate, make_element
from manyviews.report.scales import (
    Axis,
    Formatter,
    format_number,
    format_percent,
    format_percent_tick,
    make_linear_axis,
)
from manyviews.report.tables import NON_PERCENT_METRICS, Cell, Row, Table

MARKERS = {"raw": 5, "own": 0, "filled": 2, "common": 3}
WIDTH, ROW_HEIGHT, DOT_WIDTH, MARGIN, FOOTER_HEIGHT = 420, 20, 17, 14, 30


def draw_subsets_figure(result: Mapping[str, Any]) -> Figure | None:
    """Draw the scores of all subsets on one axis; None without subsets."""
    subsets = result.get("subsets") or {}
    if not subsets:
        return None
    metric = get_primary_metric(subsets)
    formatter: Formatter = (lambda value: f"{value:.3f}") if metric in NON_PERCENT_METRICS else format_percent
    names = [name for name in result["modalities"] if name not in result["dropped"]]
    values = [scores[metric] for subset in subsets.values() for scores in subset["scores"].values()]
    top = 12 + 6.2 * max(map(len, names)) * 0.71
    left = MARGIN + DOT_WIDTH * len(names) + 10
    x_axis = make_linear_axis(values, left, WIDTH - MARGIN, count=3)
    height = top + ROW_HEIGHT * len(subsets) + FOOTER_HEIGHT
    svg = make_element(
        "svg",
        _draw_axes(
            x_axis, top, height, format_number if metric in NON_PERCENT_METRICS else format_percent_tick, metric
        ),
        *(_draw_heading(name, MARGIN + DOT_WIDTH * (i + 0.5), top) for i, name in enumerate(names)),
        *(
            _draw_row(name, subset["scores"], names, top + ROW_HEIGHT * (i + 0.5), x_axis, metric, formatter)
            for i, (name, subset) in enumerate(subsets.items())
        ),
        viewBox=f"0 0 {WIDTH} {format_coordinate(height)}",
        role="img",
        class_="chart subsets",
        aria_label=f"{metric} of {len(subsets)} subsets of modalities; the table below lists the values",
    )
    return Figure(f"{metric[0].upper()}{metric[1:]} by subset of modalities", svg)


def make_subsets_table(result: Mapping[str, Any]) -> Table | None:
    """Tabulate the values of the chart."""
    subsets = result.get("subsets") or {}
    if not subsets:
        return None
    metric, kinds = get_primary_metric(subsets), list(next(iter(subsets.values()))["scores"])
    rows = []
    for name, subset in subsets.items():
        values = [subset["scores"][kind][metric] for kind in kinds]
        rows.append(
            Row(name, [Cell(f"{v:.3f}") if metric in NON_PERCENT_METRICS else Cell(format_percent(v)) for v in values])
        )
    title = f"{metric[0].upper()}{metric[1:]} by subset of modalities"
    return Table(title, ["modalities", *map(get_probe_label, kinds)], rows)


def list_subset_kinds(result: Mapping[str, Any]) -> list[tuple[str, Markup]]:
    """Legend of the chart: label and marker of each probe."""
    first: Mapping[str, Any] = next(iter((result.get("subsets") or {}).values()), {"scores": {}})
    return [(get_probe_label(kind), _draw_swatch(kind)) for kind in first["scores"]]


def get_primary_metric(subsets: Mapping[str, Mapping[str, Any]]) -> str:
    """Get the metric to draw: the first of METRICS that is available."""
    scores = next(iter(next(iter(subsets.values()))["scores"].values()))
    return next((name for name in METRICS if name in scores), next(iter(scores)))


def get_probe_label(kind: str) -> str:
    return PROBE_LABELS.get(kind, kind)


def _draw_swatch(kind: str) -> Markup:
    marker = make_element("use", href=f"#mark-{MARKERS.get(kind, 4)}", x=6, y=6)
    return make_element(
        "svg", marker, viewBox="0 0 12 12", class_=f"sample mark {_get_color(kind)}", aria_hidden="true"
    )


def _get_color(kind: str) -> str:
    return f"c{list(PROBE_LABELS).index(kind)}" if kind in PROBE_LABELS else "c7"


def _draw_axes(x_axis: Axis, top: float, height: float, formatter: Formatter, metric: str) -> Markup:
    parts = []
    for tick in x_axis.ticks:
        x = format_coordinate(x_axis(tick))
        parts.append(
            make_element(
                "path", d=f"M{x} {format_coordinate(top)}V{format_coordinate(height - FOOTER_HEIGHT)}", class_="grid"
            )
        )
        parts.append(
            make_element(
                "text", formatter(tick), x=x, y=format_coordinate(height - FOOTER_HEIGHT + 15), text_anchor="middle"
            )
        )
    parts.append(
        make_element(
            "text", metric, x=WIDTH - MARGIN, y=format_coordinate(height - 3), text_anchor="end", class_="axis"
        )
    )
    return make_element("g", *parts, class_="frame")


def _draw_heading(name: str, x: float, top: float) -> Markup:
    transform = f"translate({format_coordinate(x + 3)} {format_coordinate(top - 4)}) rotate(-45)"
    return make_element("text", name, transform=transform, class_="heading")


def _draw_row(
    subset: str,
    probes: Mapping[str, Mapping[str, float]],
    names: Sequence[str],
    y: float,
    x_axis: Axis,
    metric: str,
    formatter: Formatter,
) -> Markup:
    members = set(subset.split(" + "))
    parts = [
        make_element(
            "circle",
            cx=format_coordinate(MARGIN + DOT_WIDTH * (i + 0.5)),
            cy=format_coordinate(y),
            r=4.5 if name in members else 1.5,
            class_="in" if name in members else "out",
        )
        for i, name in enumerate(names)
    ]
    ends = [x_axis(scores[metric]) for scores in probes.values()]
    parts.append(
        make_element(
            "path",
            d=f"M{format_coordinate(min(ends))} {format_coordinate(y)}H{format_coordinate(max(ends))}",
            class_="span",
        )
    )
    for kind, scores in probes.items():
        title = make_element("title", f"{subset}, {get_probe_label(kind)}: {formatter(scores[metric])}")
        marker = make_element(
            "use", title, href=f"#mark-{MARKERS.get(kind, 4)}", x=format_coordinate(x_axis(scores[metric])),
            y=format_coordinate(y), class_=_get_color(kind),
        )  # fmt: skip
        parts.append(marker)
    return make_element("g", *parts)
