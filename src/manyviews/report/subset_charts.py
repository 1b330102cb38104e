"""Scores of modality subsets as a chart: one row per subset, with its modalities as dots and its scores."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from markupsafe import Markup

from manyviews.evaluation import (
    NON_PERCENT_METRICS,
    SUBSET_PROBES,
    EvaluationResult,
    SubsetProbe,
    SubsetScore,
    format_metric,
    get_compared_metrics,
)
from manyviews.report.charts import Figure
from manyviews.report.markup import format_coordinate, make_element
from manyviews.report.scales import Axis, format_number, format_percent_tick, make_linear_axis

MARKERS = {"raw": 5, "per_subset": 0, "mean_imputed": 2, "shared_space": 3}
WIDTH, ROW_HEIGHT, DOT_WIDTH, MARGIN, FOOTER_HEIGHT = 420, 20, 17, 14, 30


@dataclass(frozen=True)
class SubsetFigure(Figure):
    """A chart, and the label and marker of each of its probes."""

    legend: Sequence[tuple[str, Markup]] = ()


def draw_subset_figure(result: EvaluationResult) -> SubsetFigure | None:
    """Draw the scores of all subsets on one axis; None without subsets."""
    if not result.subsets:
        return None
    metric, names, kinds = get_compared_metrics(result)[0], result.kept_modalities, list(result.subsets[0].scores)
    top = 12 + 6.2 * max(map(len, names)) * 0.71
    left = MARGIN + DOT_WIDTH * len(names) + 10
    values = [scores[metric] for subset in result.subsets for scores in subset.scores.values()]
    x_axis = make_linear_axis(values, left, WIDTH - MARGIN, count=3)
    height = top + ROW_HEIGHT * len(result.subsets) + FOOTER_HEIGHT
    rows = enumerate(result.subsets)
    svg = make_element(
        "svg",
        _draw_axes(x_axis, top, height, metric),
        *(_draw_heading(name, MARGIN + DOT_WIDTH * (i + 0.5), top) for i, name in enumerate(names)),
        *(_draw_row(subset, names, top + ROW_HEIGHT * (i + 0.5), x_axis, metric) for i, subset in rows),
        viewBox=f"0 0 {WIDTH} {format_coordinate(height)}",
        role="img",
        class_="chart subsets",
        aria_label=f"{metric} of {len(result.subsets)} subsets of modalities; the table below lists the values",
    )
    legend = [(SUBSET_PROBES[kind], _draw_swatch(kind)) for kind in kinds]
    return SubsetFigure(f"{metric[:1].upper()}{metric[1:]} by subset of modalities", svg, legend=legend)


def _draw_swatch(kind: SubsetProbe) -> Markup:
    marker = make_element("use", href=f"#mark-{MARKERS[kind]}", x=6, y=6)
    color = f"sample mark {_get_color(kind)}"
    return make_element("svg", marker, viewBox="0 0 12 12", class_=color, aria_hidden="true")


def _get_color(kind: SubsetProbe) -> str:
    return f"c{list(SUBSET_PROBES).index(kind)}"


def _draw_axes(x_axis: Axis, top: float, height: float, metric: str) -> Markup:
    format_tick = format_number if metric in NON_PERCENT_METRICS else format_percent_tick
    bottom = height - FOOTER_HEIGHT
    draw_text, parts = partial(make_element, "text"), []
    for tick in x_axis.ticks:
        x = format_coordinate(x_axis(tick))
        line = f"M{x} {format_coordinate(top)}V{format_coordinate(bottom)}"
        parts.append(make_element("path", d=line, class_="grid"))
        parts.append(draw_text(format_tick(tick), x=x, y=bottom + 15, text_anchor="middle"))
    parts.append(draw_text(metric, x=WIDTH - MARGIN, y=height - 3, text_anchor="end", class_="axis"))
    return make_element("g", *parts, class_="frame")


def _draw_heading(name: str, x: float, top: float) -> Markup:
    transform = f"translate({format_coordinate(x + 3)} {format_coordinate(top - 4)}) rotate(-45)"
    return make_element("text", name, transform=transform, class_="heading")


def _draw_row(subset: SubsetScore, names: Sequence[str], y: float, x_axis: Axis, metric: str) -> Markup:
    parts = []
    for i, name in enumerate(names):
        radius, state = (4.5, "in") if name in subset.modalities else (1.5, "out")
        parts.append(make_element("circle", cx=MARGIN + DOT_WIDTH * (i + 0.5), cy=y, r=radius, class_=state))
    ends = sorted(x_axis(scores[metric]) for scores in subset.scores.values())
    span = f"M{format_coordinate(ends[0])} {format_coordinate(y)}H{format_coordinate(ends[-1])}"
    parts.append(make_element("path", d=span, class_="span"))
    for kind, scores in subset.scores.items():
        value = format_metric(metric, [scores[metric]])
        title = make_element("title", f"{' + '.join(subset.modalities)}, {SUBSET_PROBES[kind]}: {value}")
        position = {"x": x_axis(scores[metric]), "y": y}
        parts.append(make_element("use", title, href=f"#mark-{MARKERS[kind]}", **position, class_=_get_color(kind)))
    return make_element("g", *parts)
