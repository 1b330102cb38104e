"""Curves of runs over steps and singular values, as SVG: legible in light, dark and grey.

A run has the same colour, dashes and marks in all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from manyviews.report.markup import element, number
from manyviews.report.scales import AsText, Axis, linear_axis, log_axis, percent, plain, step_axis, tick_text

WIDTH, HEIGHT = 360, 220
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 12, 34
MOST_POINTS = 240
"""Of a line; of more, neighbours are averaged."""
MOST_MARKS = 12
UNEVEN = 4.0
"""Times the shortest line: then steps are drawn on a logarithmic axis."""
COLOURS = 10
DASHES = (None, "7 3", "2 3", "9 3 2 3", "1 4")
MARKS = 10
"""Shapes that page.html defines: five filled, the same five hollow."""


@dataclass(frozen=True)
class Line:
    """One run in a chart."""

    name: str
    number: int
    """Of the run: says how it looks."""
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Figure:
    """A drawing, what it is called, and what to think of it."""

    title: str
    drawing: Markup
    note: str = ""


def line_chart(
    title: str,
    lines: Sequence[Line],
    *,
    along: str = "step",
    shares: bool = False,
    log: bool = False,
    note: str = "",
) -> Figure | None:
    """The lines over their x, or None if none has a point."""
    as_text = percent if shares else plain
    lines = [thinned(line) for line in (_drawable(line, log) for line in lines) if line.x]
    if not lines:
        return None
    xs, ys = [x for line in lines for x in line.x], [y for line in lines for y in line.y]
    across = step_axis(xs, LEFT, WIDTH - RIGHT, log=uneven(lines))
    up = (log_axis if log else linear_axis)(ys, HEIGHT - BOTTOM, TOP)
    drawing = element(
        "svg",
        _frame(across, up, f"{along} (log)" if across.log else along, tick_text if shares else plain),
        *(_line(line, across, up, along, as_text) for line in lines),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        class_="chart",
        aria_label=f"{title} over {along}s. " + " ".join(f"{_told(line, as_text)}." for line in lines),
    )
    return Figure(title, drawing, note)


def uneven(lines: Sequence[Line]) -> bool:
    """Whether some lines are so much shorter than others that they would be pressed into a corner."""
    ends = [max(line.x) for line in lines]
    return max(ends) > UNEVEN * min(ends) and min(min(line.x) for line in lines) > 0


def thinned(line: Line, most: int = MOST_POINTS) -> Line:
    """The line with the means of neighbours, if it has too many points to draw.

    Examples:
        >>> thinned(Line("a", 0, range(6), range(6)), most=3).y
        [0.5, 2.5, 4.5]
    """
    if len(line.x) <= most:
        return line
    each = -(-len(line.x) // most)
    x, y = (
        [sum(part) / len(part) for part in (list(v[i : i + each]) for i in range(0, len(v), each))]
        for v in (line.x, line.y)
    )
    return Line(line.name, line.number, x, y)


def sample(number: int) -> Markup:
    """How a run is drawn, for legends and headings."""
    mark = element("use", href=f"#mark-{number % MARKS}", x=14, y=6)
    path = element("path", d="M0 6H28", stroke_dasharray=DASHES[number % len(DASHES)])
    return element("svg", path, mark, viewBox="0 0 28 12", class_=f"sample c{number % COLOURS}", aria_hidden="true")


def _drawable(line: Line, log: bool) -> Line:
    pairs = [(x, y) for x, y in zip(line.x, line.y, strict=True) if math.isfinite(x) and math.isfinite(y)]
    if log:  # what is nothing but rounding would press all else together
        least = max((y for _, y in pairs), default=0.0) * 1e-5
        pairs = [(x, y) for x, y in pairs if y > least]
    return Line(line.name, line.number, [x for x, _ in pairs], [y for _, y in pairs])


def _frame(across: Axis, up: Axis, along: str, as_text: AsText) -> Markup:
    parts = []
    for tick in up.ticks:
        y = number(up(tick))
        parts.append(element("path", d=f"M{LEFT} {y}H{WIDTH - RIGHT}", class_="grid"))
        parts.append(element("text", as_text(tick), x=LEFT - 6, y=y, dy="0.32em", text_anchor="end"))
    parts += [
        element("text", plain(tick), x=number(across(tick)), y=HEIGHT - BOTTOM + 15, text_anchor="middle")
        for tick in across.ticks
    ]
    parts.append(element("text", along, x=WIDTH - RIGHT, y=HEIGHT - 4, text_anchor="end", class_="axis"))
    return element("g", *parts, class_="frame")


def _line(line: Line, across: Axis, up: Axis, along: str, as_text: AsText) -> Markup:
    points = [(number(across(x)), number(up(y))) for x, y in zip(line.x, line.y, strict=True)]
    path = "M" + "L".join(f"{x} {y}" for x, y in points)
    each = -(-len(points) // MOST_MARKS)
    # Of many points the marks stand at different ones in each run, so that they do not hide each other.
    first = (line.number * each // 3) % each
    marks = [
        element(
            "use",
            element("title", f"{line.name}, {along} {plain(line.x[place])}: {as_text(line.y[place])}"),
            href=f"#mark-{line.number % MARKS}",
            x=points[place][0],
            y=points[place][1],
        )
        for place in range(first, len(points), each)
    ]
    drawn = element("path", d=path, stroke_dasharray=DASHES[line.number % len(DASHES)])
    return element("g", drawn, *marks, class_=f"line c{line.number % COLOURS}")


def _told(line: Line, as_text: AsText) -> str:
    if len(line.y) == 1:
        return f"{line.name}: {as_text(line.y[0])}"
    return f"{line.name}: from {as_text(line.y[0])} to {as_text(line.y[-1])}"
