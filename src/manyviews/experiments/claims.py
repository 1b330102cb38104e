"""What the paper says of a table, compared with the numbers.

A claim is about a difference that is positive where it speaks for the claim, of each seed. It is decided when the mean
difference is beyond a margin: half of its 95% interval over seeds (Student's t), or with one seed the metric's own.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from manyviews.experiments.results import METRICS, Metric, Results

T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's t of a 95% interval, for 2, 3, ... seeds; the last one, a little too large, for more seeds."""


@dataclass(frozen=True)
class Claim:
    """A sentence, whether it held (None: undecided, or it could not be asked), and what that rests on."""

    text: str
    held: bool | None
    numbers: str
    basis: str = ""
    """The difference and its margin, or the tolerance of what is exact; empty if the claim could not be asked."""

    @property
    def verdict(self) -> str:
        if self.held is None:
            return "undecided" if self.basis else "not asked"
        return "held" if self.held else "not held"


def best(results: Results, metric: str, winner: str, others: Sequence[str], **place: Any) -> Claim:
    """That an objective is better than each of the others at a place; those that were not run are not named."""
    kind = METRICS[metric]
    scores = {name: results.by_seed(metric, objective=name, **place) for name in (winner, *others)}
    scores = {name: values for name, values in scores.items() if values}
    where = ", ".join(f"{name} {value}" for name, value in place.items())
    means = ", ".join(f"{name} {statistics.fmean(values.values()):.{kind.digits}f}" for name, values in scores.items())
    text = f"{winner} has a better {kind.plain} than {', '.join([name for name in scores if name != winner] or others)}"
    return _compare(f"{text} ({where})", means, scores, winner, kind, kind.sign)


def grows(results: Results, metric: str, along: str, **place: Any) -> Claim:
    """That a metric is better at the largest value of a part of the places than at the smallest."""
    return _trend(results, metric, along, place, "gets better", METRICS[metric].sign)


def does_not_grow(results: Results, metric: str, along: str, **place: Any) -> Claim:
    """The opposite of `grows`, where the paper says that."""
    return _trend(results, metric, along, place, "does not get better", -METRICS[metric].sign)


def steadier(results: Results, metric: str, along: str, winner: str, others: Sequence[str], **place: Any) -> Claim:
    """That a metric of one objective changes less along a part of the places than that of each other."""
    kind = METRICS[metric]
    spans = {name: _span(_along(results, metric, along, {**place, "objective": name})) for name in (winner, *others)}
    spans = {name: values for name, values in spans.items() if values}
    rest = [name for name in spans if name != winner]
    means = ", ".join(f"{name} {statistics.fmean(values.values()):.{kind.digits}f}" for name, values in spans.items())
    text = f"{kind.plain} of {winner} changes less with the {along} than that of {', '.join(rest or others)}"
    numbers = f"largest less smallest: {means}" if means else ""
    return _compare(f"{text} ({_where(place)})", numbers, spans, winner, kind, -1)


def steady(results: Results, metric: str, along: str, within: float, **place: Any) -> Claim:
    """That a metric hardly changes along a part of the places."""
    kind, series = METRICS[metric], _along(results, metric, along, place)
    held, basis = _decide([within - span for span in _span(series).values()], kind)
    text = f"{kind.plain} stays within {within:g} whatever the {along} ({_where(place)})"
    return Claim(text, held, _told(series, kind), basis)


Scores = dict[int, float]
"""By seed."""


def _trend(results: Results, metric: str, along: str, place: Mapping[str, Any], verb: str, sign: int) -> Claim:
    kind, series = METRICS[metric], _along(results, metric, along, place)
    first, last = (series[end(series)] for end in (min, max)) if len(series) > 1 else ({}, {})
    held, basis = _decide([sign * (last[seed] - first[seed]) for seed in first.keys() & last.keys()], kind)
    return Claim(f"{kind.plain} {verb} with more {along} ({_where(place)})", held, _told(series, kind), basis)


def _compare(text: str, numbers: str, scores: Mapping[str, Scores], winner: str, kind: Metric, sign: int) -> Claim:
    """That the winner's scores are above (sign 1) or below those of each other: the least favorable one decides."""
    found = []
    for name, values in scores.items():
        seeds = values.keys() & scores.get(winner, {}).keys() if name != winner else set()
        if seeds:
            differences = [sign * (scores[winner][seed] - values[seed]) for seed in seeds]
            held, basis = _decide(differences, kind, f" to {name}")
            found.append(((1 if held is None else 2 * held, statistics.fmean(differences)), held, basis))
    _, held, basis = min(found, key=lambda one: one[0], default=(None, None, ""))
    return Claim(text, held, numbers, basis)


def _decide(differences: Collection[float], kind: Metric, other: str = "") -> tuple[bool | None, str]:
    """Whether differences, one for each seed, are beyond their margin on one side, and the sentence that says so."""
    count = len(differences)
    if not count:
        return None, ""
    mean = statistics.fmean(differences)
    if count == 1:
        margin, why = kind.margin, "one seed: the metric's minimum"
    else:
        deviation = statistics.stdev(differences)
        # What the table does not show is no difference.
        margin = max(T95[min(count - 2, len(T95) - 1)] * deviation / math.sqrt(count), 10.0**-kind.digits)
        why = f"95% over {count} seeds"
    digits = kind.digits + 1
    basis = f"difference{other} {mean:+.{digits}f}, margin {margin:.{digits}f} ({why})"
    return (None if abs(mean) <= margin else mean > 0), basis


def _along(results: Results, metric: str, along: str, place: Mapping[str, Any]) -> dict[float, Scores]:
    values = sorted(value for value in results.options(along) if isinstance(value, (int, float)))
    return {value: results.by_seed(metric, **{along: value}, **place) for value in values}


def _span(series: Mapping[float, Scores]) -> Scores:
    """The largest less the smallest, which are those of the means over seeds; nothing if one is missing."""
    if len(series) < 2 or not all(series.values()):
        return {}
    low, *_, high = sorted(series.values(), key=lambda values: statistics.fmean(values.values()))
    return {seed: high[seed] - low[seed] for seed in low.keys() & high.keys()}


def _told(series: Mapping[float, Scores], kind: Metric) -> str:
    means = {value: statistics.fmean(scores.values()) for value, scores in series.items() if scores}
    return ", ".join(f"{value:g}: {mean:.{kind.digits}f}" for value, mean in means.items())


def _where(place: Mapping[str, Any]) -> str:
    return ", ".join(str(value) for value in place.values())
