"""Line charts as SVG, legible in light mode, dark mode and grayscale.

A run has the same color, dashes and markers in every chart.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from manyviews.report.markup import format_coordinate, make_element
from manyviews.report.scales import (
    Axis,
    Formatter,
    format_number,
    format_percent,
    format_percent_tick,
    make_linear_axis,
    make_log_axis,
    make_step_axis,
)

WIDTH, HEIGHT = 360, 220
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 12, 34
MAX_POINTS = 240
"""Max points of a line; longer lines are averaged."""
MAX_MARKERS = 12
LOG_X_RATIO = 4.0
"""Ratio of the longest to the shortest line above which the x axis is logarithmic."""
NUM_COLORS = 10
DASHES = (None, "7 3", "2 3", "9 3 2 3", "1 4")
NUM_MARKERS = 10
"""Marker shapes that page.html defines."""


@dataclass(frozen=True)
class Series:
    """One run in a chart."""

    name: str
    index: int
    """Index of the run: selects color, dashes and marker."""
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Figure:
    """An SVG with a title and a caption."""

    title: str
    svg: Markup
    caption: str = ""


def draw_line_chart(
    title: str,
    series: Sequence[Series],
    *,
    x_label: str = "step",
    as_percent: bool = False,
    log: bool = False,
    caption: str = "",
) -> Figure | None:
    """Draw the series, or return None if none has a point."""
    formatter = format_percent if as_percent else format_number
    lines = [downsample(line) for line in (_select_finite(line, log) for line in series) if line.x]
    if not lines:
        return None
    xs, ys = [x for line in lines for x in line.x], [y for line in lines for y in line.y]
    x_axis = make_step_axis(xs, LEFT, WIDTH - RIGHT, log=needs_log_x(lines))
    y_axis = (make_log_axis if log else make_linear_axis)(ys, HEIGHT - BOTTOM, TOP)
    svg = make_element(
        "svg",
        _draw_axes(
            x_axis,
            y_axis,
            f"{x_label} (log)" if x_axis.log else x_label,
            format_percent_tick if as_percent else format_number,
        ),
        *(_draw_line(line, x_axis, y_axis, x_label, formatter) for line in lines),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        class_="chart",
        aria_label=f"{title} over {x_label}s. " + " ".join(f"{_describe(line, formatter)}." for line in lines),
    )
    return Figure(title, svg, caption)


def needs_log_x(lines: Sequence[Series]) -> bool:
    """Check whether some lines are so short that a linear axis would squeeze them into a corner."""
    ends = [max(line.x) for line in lines]
    return max(ends) > LOG_X_RATIO * min(ends) and min(min(line.x) for line in lines) > 0


def downsample(line: Series, max_points: int = MAX_POINTS) -> Series:
    """Average neighboring points if there are more than `max_points`.

    Examples:
        >>> downsample(Series("a", 0, range(6), range(6)), max_points=3).y
        [0.5, 2.5, 4.5]
    """
    if len(line.x) <= max_points:
        return line
    width = -(-len(line.x) // max_points)
    x, y = (
        [sum(chunk) / len(chunk) for chunk in (list(v[i : i + width]) for i in range(0, len(v), width))]
        for v in (line.x, line.y)
    )
    return Series(line.name, line.index, x, y)


def draw_swatch(index: int) -> Markup:
    """Draw the line style of a run, for legends and headings."""
    marker = make_element("use", href=f"#mark-{index % NUM_MARKERS}", x=14, y=6)
    path = make_element("path", d="M0 6H28", stroke_dasharray=DASHES[index % len(DASHES)])
    return make_element(
        "svg", path, marker, viewBox="0 0 28 12", class_=f"sample c{index % NUM_COLORS}", aria_hidden="true"
    )


def _select_finite(line: Series, log: bool) -> Series:
    pairs = [(x, y) for x, y in zip(line.x, line.y, strict=True) if math.isfinite(x) and math.isfinite(y)]
    if log:  # rounding errors close to zero would compress the rest of the axis
        threshold = max((y for _, y in pairs), default=0.0) * 1e-5
        pairs = [(x, y) for x, y in pairs if y > threshold]
    return Series(line.name, line.index, [x for x, _ in pairs], [y for _, y in pairs])


def _draw_axes(x_axis: Axis, y_axis: Axis, x_label: str, formatter: Formatter) -> Markup:
    parts = []
    for tick in y_axis.ticks:
        y = format_coordinate(y_axis(tick))
        parts.append(make_element("path", d=f"M{LEFT} {y}H{WIDTH - RIGHT}", class_="grid"))
        parts.append(make_element("text", formatter(tick), x=LEFT - 6, y=y, dy="0.32em", text_anchor="end"))
    parts += [
        make_element(
            "text", format_number(tick), x=format_coordinate(x_axis(tick)), y=HEIGHT - BOTTOM + 15, text_anchor="middle"
        )
        for tick in x_axis.ticks
    ]
    parts.append(make_element("text", x_label, x=WIDTH - RIGHT, y=HEIGHT - 4, text_anchor="end", class_="axis"))
    return make_element("g", *parts, class_="frame")


def _draw_line(line: Series, x_axis: Axis, y_axis: Axis, x_label: str, formatter: Formatter) -> Markup:
    points = [(format_coordinate(x_axis(x)), format_coordinate(y_axis(y))) for x, y in zip(line.x, line.y, strict=True)]
    path = "M" + "L".join(f"{x} {y}" for x, y in points)
    stride = -(-len(points) // MAX_MARKERS)
    # Each run's markers have a different offset, so that they do not cover each other.
    offset = (line.index * stride // 3) % stride
    markers = [
        make_element(
            "use",
            make_element("title", f"{line.name}, {x_label} {format_number(line.x[i])}: {formatter(line.y[i])}"),
            href=f"#mark-{line.index % NUM_MARKERS}",
            x=points[i][0],
            y=points[i][1],
        )
        for i in range(offset, len(points), stride)
    ]
    curve = make_element("path", d=path, stroke_dasharray=DASHES[line.index % len(DASHES)])
    return make_element("g", curve, *markers, class_=f"line c{line.index % NUM_COLORS}")


def _describe(line: Series, formatter: Formatter) -> str:
    if len(line.y) == 1:
        return f"{line.name}: {formatter(line.y[0])}"
    return f"{line.name}: from {formatter(line.y[0])} to {formatter(line.y[-1])}"
