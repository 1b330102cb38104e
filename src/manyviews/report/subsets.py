"""What each subset of the modalities is worth, as a drawing: a row for each, its modalities as dots, then scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from manyviews.evaluation.modalities import PROBES
from manyviews.report.charts import Figure
from manyviews.report.markup import element, number
from manyviews.report.scales import AsText, Axis, linear_axis, percent, plain, tick_text
from manyviews.report.tables import NUMBERS, Cell, Row, Table
from manyviews.training.compare import METRICS

MARKS = {"raw": 5, "own": 0, "filled": 2, "common": 3}
WIDTH, ROW, DOT, EDGE, FOOT = 420, 20, 17, 14, 30


def subsets_figure(found: Mapping[str, Any]) -> Figure | None:
    """Scores of all subsets over one axis."""
    subsets = found.get("subsets") or {}
    if not subsets:
        return None
    metric = metric_of(subsets)
    as_text: AsText = (lambda value: f"{value:.3f}") if metric in NUMBERS else percent
    names = [name for name in found["modalities"] if name not in found["dropped"]]
    values = [scores[metric] for one in subsets.values() for scores in one["scores"].values()]
    head = 12 + 6.2 * max(map(len, names)) * 0.71
    left = EDGE + DOT * len(names) + 10
    across = linear_axis(values, left, WIDTH - EDGE, count=3)
    height = head + ROW * len(subsets) + FOOT
    drawing = element(
        "svg",
        _frame(across, head, height, plain if metric in NUMBERS else tick_text, metric),
        *(_heading(name, EDGE + DOT * (place + 0.5), head) for place, name in enumerate(names)),
        *(
            _row(subset, one["scores"], names, head + ROW * (place + 0.5), across, metric, as_text)
            for place, (subset, one) in enumerate(subsets.items())
        ),
        viewBox=f"0 0 {WIDTH} {number(height)}",
        role="img",
        class_="chart subsets",
        aria_label=f"{metric} of {len(subsets)} subsets of modalities; the table below has the numbers",
    )
    return Figure(f"{metric[0].upper()}{metric[1:]} by subset of modalities", drawing)


def subsets_table(found: Mapping[str, Any]) -> Table | None:
    """The numbers of the drawing."""
    subsets = found.get("subsets") or {}
    if not subsets:
        return None
    metric, kinds = metric_of(subsets), list(next(iter(subsets.values()))["scores"])
    rows = []
    for name, one in subsets.items():
        values = [one["scores"][kind][metric] for kind in kinds]
        rows.append(Row(name, [Cell(f"{v:.3f}") if metric in NUMBERS else Cell(percent(v)) for v in values]))
    title = f"{metric[0].upper()}{metric[1:]} by subset of modalities"
    return Table(title, ["modalities", *map(kind_name, kinds)], rows)


def subset_kinds(found: Mapping[str, Any]) -> list[tuple[str, Markup]]:
    """For a legend: what each mark means."""
    first: Mapping[str, Any] = next(iter((found.get("subsets") or {}).values()), {"scores": {}})
    return [(kind_name(kind), _sample(kind)) for kind in first["scores"]]


def metric_of(subsets: Mapping[str, Mapping[str, Any]]) -> str:
    """The metric that is drawn: the first of METRICS that there is."""
    known = next(iter(next(iter(subsets.values()))["scores"].values()))
    return next((name for name in METRICS if name in known), next(iter(known)))


def kind_name(kind: str) -> str:
    return PROBES.get(kind, kind)


def _sample(kind: str) -> Markup:
    mark = element("use", href=f"#mark-{MARKS.get(kind, 4)}", x=6, y=6)
    return element("svg", mark, viewBox="0 0 12 12", class_=f"sample mark {_colour(kind)}", aria_hidden="true")


def _colour(kind: str) -> str:
    return f"c{list(PROBES).index(kind)}" if kind in PROBES else "c7"


def _frame(across: Axis, head: float, height: float, as_text: AsText, metric: str) -> Markup:
    parts = []
    for tick in across.ticks:
        x = number(across(tick))
        parts.append(element("path", d=f"M{x} {number(head)}V{number(height - FOOT)}", class_="grid"))
        parts.append(element("text", as_text(tick), x=x, y=number(height - FOOT + 15), text_anchor="middle"))
    parts.append(element("text", metric, x=WIDTH - EDGE, y=number(height - 3), text_anchor="end", class_="axis"))
    return element("g", *parts, class_="frame")


def _heading(name: str, x: float, head: float) -> Markup:
    turned = f"translate({number(x + 3)} {number(head - 4)}) rotate(-45)"
    return element("text", name, transform=turned, class_="heading")


def _row(
    subset: str,
    one: Mapping[str, Mapping[str, float]],
    names: Sequence[str],
    y: float,
    across: Axis,
    metric: str,
    as_text: AsText,
) -> Markup:
    chosen = set(subset.split(" + "))
    parts = [
        element(
            "circle",
            cx=number(EDGE + DOT * (place + 0.5)),
            cy=number(y),
            r=4.5 if name in chosen else 1.5,
            class_="in" if name in chosen else "out",
        )
        for place, name in enumerate(names)
    ]
    ends = [across(scores[metric]) for scores in one.values()]
    parts.append(element("path", d=f"M{number(min(ends))} {number(y)}H{number(max(ends))}", class_="span"))
    for kind, scores in one.items():
        told = element("title", f"{subset}, {kind_name(kind)}: {as_text(scores[metric])}")
        mark = element(
            "use", told, href=f"#mark-{MARKS.get(kind, 4)}", x=number(across(scores[metric])), y=number(y),
            class_=_colour(kind),
        )  # fmt: skip
        parts.append(mark)
    return element("g", *parts)
