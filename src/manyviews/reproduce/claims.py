"""The paper's claims about a table, compared with the numbers.

A claim is about a difference, one for each seed, that is positive where it supports the claim. It is decided when the
mean difference exceeds a margin: half of its 95% interval over seeds (Student's t), or with one seed the metric's.
"""

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from manyviews.reproduce.results import METRICS, Metric, Results

T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's t of a 95% interval for 2, 3, ... seeds; the last value, slightly too large, serves for more seeds."""


@dataclass(frozen=True)
class Claim:
    """A sentence, whether it holds (None: undecided, or not tested), and the numbers that decide it."""

    text: str
    holds: bool | None
    evidence: str
    basis: str = ""
    """The difference and its margin, or the tolerance; empty if the claim could not be tested."""

    @property
    def verdict(self) -> str:
        if self.holds is None:
            return "undecided" if self.basis else "not tested"
        return "held" if self.holds else "not held"


def claim_best(results: Results, metric: str, winner: str, others: Sequence[str], **coords: Any) -> Claim:
    """Claim that the winner is better than each other loss at these coordinates; only losses that were run count."""
    kind = METRICS[metric]
    scores = {name: results.by_seed(metric, loss=name, **coords) for name in (winner, *others)}
    scores = {name: values for name, values in scores.items() if values}
    setting = ", ".join(f"{name} {value}" for name, value in coords.items())
    means = ", ".join(f"{name} {statistics.fmean(values.values()):.{kind.digits}f}" for name, values in scores.items())
    rivals = ", ".join([name for name in scores if name != winner] or others)
    text = f"{winner} has a better {kind.short_name} than {rivals}"
    return _compare(f"{text} ({setting})", means, scores, winner, kind, kind.sign)


def claim_improves(results: Results, metric: str, axis: str, **coords: Any) -> Claim:
    """Claim that the metric is better at the largest value of the axis than at the smallest."""
    return _compute_trend(results, metric, axis, coords, "gets better", METRICS[metric].sign)


def claim_does_not_improve(results: Results, metric: str, axis: str, **coords: Any) -> Claim:
    """Claim the opposite of `claim_improves`."""
    return _compute_trend(results, metric, axis, coords, "does not get better", -METRICS[metric].sign)


def claim_less_variable(
    results: Results, metric: str, axis: str, winner: str, others: Sequence[str], **coords: Any
) -> Claim:
    """Claim that the metric changes less along the axis for the winner than for each other loss."""
    kind = METRICS[metric]
    spans = {
        name: _compute_span(_get_curve(results, metric, axis, {**coords, "loss": name})) for name in (winner, *others)
    }
    spans = {name: values for name, values in spans.items() if values}
    rivals = ", ".join([name for name in spans if name != winner] or others)
    means = ", ".join(f"{name} {statistics.fmean(values.values()):.{kind.digits}f}" for name, values in spans.items())
    text = f"{kind.short_name} of {winner} changes less with the {axis} than that of {rivals}"
    numbers = f"largest less smallest: {means}" if means else ""
    return _compare(f"{text} ({_format_coordinates(coords)})", numbers, spans, winner, kind, -1)


def claim_constant(results: Results, metric: str, axis: str, within: float, **coords: Any) -> Claim:
    """Claim that the metric changes by at most `within` along the axis."""
    kind, series = METRICS[metric], _get_curve(results, metric, axis, coords)
    holds, basis = _decide([within - span for span in _compute_span(series).values()], kind)
    text = f"{kind.short_name} stays within {within:g} whatever the {axis} ({_format_coordinates(coords)})"
    return Claim(text, holds, _format_curve(series, kind), basis)


Scores = dict[int, float]
"""By seed."""


def _compute_trend(results: Results, metric: str, axis: str, coords: Mapping[str, Any], verb: str, sign: int) -> Claim:
    kind, series = METRICS[metric], _get_curve(results, metric, axis, coords)
    first, last = (series[end(series)] for end in (min, max)) if len(series) > 1 else ({}, {})
    holds, basis = _decide([sign * (last[seed] - first[seed]) for seed in first.keys() & last.keys()], kind)
    return Claim(
        f"{kind.short_name} {verb} with more {axis} ({_format_coordinates(coords)})",
        holds,
        _format_curve(series, kind),
        basis,
    )


def _compare(text: str, numbers: str, scores: Mapping[str, Scores], winner: str, kind: Metric, sign: int) -> Claim:
    """Claim that the winner's scores are above (sign 1) or below (-1) each other's; the least favorable one decides."""
    comparisons = []
    for name, values in scores.items():
        seeds = values.keys() & scores.get(winner, {}).keys() if name != winner else set()
        if seeds:
            differences = [sign * (scores[winner][seed] - values[seed]) for seed in seeds]
            holds, basis = _decide(differences, kind, f" to {name}")
            comparisons.append(((1 if holds is None else 2 * holds, statistics.fmean(differences)), holds, basis))
    _, holds, basis = min(comparisons, key=lambda comparison: comparison[0], default=(None, None, ""))
    return Claim(text, holds, numbers, basis)


def _decide(differences: Collection[float], kind: Metric, other: str = "") -> tuple[bool | None, str]:
    """Return whether the differences, one for each seed, exceed their margin on one side, and the basis as text."""
    count = len(differences)
    if not count:
        return None, ""
    mean = statistics.fmean(differences)
    if count == 1:
        margin, reason = kind.margin, "one seed: the metric's minimum"
    else:
        deviation = statistics.stdev(differences)
        # A difference too small for the table to show does not count.
        margin = max(T95[min(count - 2, len(T95) - 1)] * deviation / math.sqrt(count), 10.0**-kind.digits)
        reason = f"95% over {count} seeds"
    digits = kind.digits + 1
    basis = f"difference{other} {mean:+.{digits}f}, margin {margin:.{digits}f} ({reason})"
    return (None if abs(mean) <= margin else mean > 0), basis


def _get_curve(results: Results, metric: str, axis: str, coords: Mapping[str, Any]) -> dict[float, Scores]:
    values = sorted(value for value in results.list_levels(axis) if isinstance(value, (int, float)))
    return {value: results.by_seed(metric, **{axis: value}, **coords) for value in values}


def _compute_span(series: Mapping[float, Scores]) -> Scores:
    """Return the largest less the smallest value by seed, as ordered by the means; empty if a value is missing."""
    if len(series) < 2 or not all(series.values()):
        return {}
    low, *_, high = sorted(series.values(), key=lambda values: statistics.fmean(values.values()))
    return {seed: high[seed] - low[seed] for seed in low.keys() & high.keys()}


def _format_curve(series: Mapping[float, Scores], kind: Metric) -> str:
    means = {value: statistics.fmean(scores.values()) for value, scores in series.items() if scores}
    return ", ".join(f"{value:g}: {mean:.{kind.digits}f}" for value, mean in means.items())


def _format_coordinates(coords: Mapping[str, Any]) -> str:
    return ", ".join(str(value) for value in coords.values())
