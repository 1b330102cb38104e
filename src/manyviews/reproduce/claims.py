"""The paper's claims about a table, compared with the numbers.

A claim is about a difference, one for each seed, that is positive where it supports the claim. It is decided by the
mean of the differences and its 95% interval (Student's t): it held if the interval is above zero, it did not hold if
the interval is below zero, and it is undecided otherwise. If the claim allows a margin, minus the margin takes the
place of zero. A mean that is too close to it for the table to show decides nothing. One seed has no interval.
"""

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from manyviews.reproduce.results import METRICS, Metric, Results

T95 = (
    12.707, 4.303, 3.183, 2.777, 2.571, 2.447, 2.365, 2.307, 2.263, 2.229, 2.201, 2.179, 2.161, 2.145, 2.132, 2.120,
    2.110, 2.101, 2.094, 2.086,
)  # fmt: skip
"""Student's t of a 95% interval for 2, 3, ... seeds; the last value, slightly too large, serves for more seeds."""


@dataclass(frozen=True)
class PairedDifference:
    """The mean of the differences of each seed, and its 95% interval.

    Examples:
        >>> difference = PairedDifference.compute([1.0, 1.1, 0.9], digits=1)
        >>> difference.text, difference.interval_text
        ('+1.00', '+0.75 to +1.25')
    """

    mean: float
    low: float | None
    """Lower end of the interval; None with one seed."""
    high: float | None
    seeds: int
    digits: int
    """Digits that the table shows."""
    other: str = ""
    """What it is compared with, if a claim makes several comparisons; the least favorable one decides."""
    threshold: float = 0.0
    """What the difference must exceed: zero, or minus the margin that the claim allows."""

    @classmethod
    def compute(
        cls, differences: Collection[float], digits: int, other: str = "", threshold: float = 0.0
    ) -> "PairedDifference":
        mean, count = statistics.fmean(differences), len(differences)
        if count == 1:
            return cls(mean, None, None, count, digits, other, threshold)
        half = T95[min(count - 2, len(T95) - 1)] * statistics.stdev(differences) / math.sqrt(count)
        return cls(mean, mean - half, mean + half, count, digits, other, threshold)

    @property
    def decision(self) -> bool | None:
        """Whether the difference is above or below the threshold; None if that is undecided."""
        if self.low is None or self.high is None or abs(self.mean - self.threshold) <= 10.0**-self.digits:
            return None
        return True if self.low > self.threshold else False if self.high < self.threshold else None

    @property
    def text(self) -> str:
        return f"{self._format(self.mean)} (to {self.other})" if self.other else self._format(self.mean)

    @property
    def interval_text(self) -> str:
        return "" if self.low is None or self.high is None else f"{self._format(self.low)} to {self._format(self.high)}"

    def _format(self, value: float) -> str:
        return f"{value:+.{self.digits + 1}f}"


@dataclass(frozen=True)
class Claim:
    """A sentence, the numbers it is about, and what decides it: a difference over seeds, or a tolerance."""

    text: str
    evidence: str
    difference: PairedDifference | None = None
    """None if there are no results, or if the claim is about a measurement without seeds."""
    tolerance: str = ""
    """How a measurement without seeds decides."""
    is_within_tolerance: bool = False
    subject: str = ""
    """The loss that is compared with others; a table without it does not have the claim."""

    @property
    def verdict(self) -> str:
        if self.difference is None and not self.tolerance:
            return "not tested"
        if self.difference is not None and self.difference.seeds == 1:
            return "one seed"
        holds = self.is_within_tolerance if self.difference is None else self.difference.decision
        return "undecided" if holds is None else "held" if holds else "not held"


def find_least_favorable(
    comparisons: Mapping[str, Collection[float]], digits: int, threshold: float = 0.0
) -> PairedDifference | None:
    """Return the comparison that supports a claim least, or None if there is none; each has a difference by seed."""
    differences = [
        PairedDifference.compute(values, digits, other, threshold) for other, values in comparisons.items() if values
    ]
    ranks = {None: 1, False: 0, True: 2}
    return min(differences, key=lambda difference: (ranks[difference.decision], difference.mean), default=None)


def claim_best(results: Results, metric: str, winner: str, others: Sequence[str], **coords: Any) -> Claim:
    """Claim that the winner is better than each other loss at these coordinates; only losses that were run count."""
    kind = METRICS[metric]
    scores = {name: results.by_seed(metric, loss=name, **coords) for name in (winner, *others)}
    scores = {name: values for name, values in scores.items() if values.keys() & scores[winner].keys()}
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
    spans = {name: values for name, values in spans.items() if values.keys() & spans[winner].keys()}
    rivals = ", ".join([name for name in spans if name != winner] or others)
    means = ", ".join(f"{name} {statistics.fmean(values.values()):.{kind.digits}f}" for name, values in spans.items())
    text = f"{kind.short_name} of {winner} changes less with the {axis} than that of {rivals}"
    numbers = f"largest less smallest: {means}" if means else ""
    return _compare(f"{text} ({_format_coordinates(coords)})", numbers, spans, winner, kind, -1)


def claim_constant(results: Results, metric: str, axis: str, within: float, **coords: Any) -> Claim:
    """Claim that the metric changes by at most `within` along the axis."""
    kind, series = METRICS[metric], _get_curve(results, metric, axis, coords)
    text = f"{kind.short_name} stays within {within:g} whatever the {axis} ({_format_coordinates(coords)})"
    changes = {"": [-span for span in _compute_span(series).values()]}
    return Claim(text, _format_curve(series, kind), find_least_favorable(changes, kind.digits, -within))


def claim_not_worse(
    results: Results, metric: str, axis: str, level: str, reference: str, margin: float, **coords: Any
) -> Claim:
    """Claim that the metric at a level of the axis is less than `margin` worse than at the reference level."""
    return _compare_levels(results, metric, axis, level, reference, margin, coords)


def claim_level_better(results: Results, metric: str, axis: str, level: str, reference: str, **coords: Any) -> Claim:
    """Claim that the metric is better at a level of the axis than at the reference level."""
    return _compare_levels(results, metric, axis, level, reference, 0.0, coords)


def _compare_levels(
    results: Results, metric: str, axis: str, level: str, reference: str, margin: float, coords: Mapping[str, Any]
) -> Claim:
    kind = METRICS[metric]
    scores = {name: results.by_seed(metric, **{axis: name}, **coords) for name in (level, reference)}
    own, other = scores.values()
    differences = {"": [kind.sign * (own[seed] - other[seed]) for seed in sorted(own.keys() & other.keys())]}
    comparison = f"less than {margin:g} worse" if margin else "better"
    text = f"{kind.short_name} with {axis} {level} is {comparison} than with {reference}"
    means = ", ".join(f"{name} {statistics.fmean(s.values()):.{kind.digits}f}" for name, s in scores.items() if s)
    difference = find_least_favorable(differences, kind.digits, -margin)
    return Claim(f"{text} ({_format_coordinates(coords)})", means, difference)


Scores = dict[int, float]
"""By seed."""


def _compute_trend(results: Results, metric: str, axis: str, coords: Mapping[str, Any], verb: str, sign: int) -> Claim:
    kind, series = METRICS[metric], _get_curve(results, metric, axis, coords)
    first, last = (series[end(series)] for end in (min, max)) if len(series) > 1 else ({}, {})
    changes = {"": [sign * (last[seed] - first[seed]) for seed in first.keys() & last.keys()]}
    text = f"{kind.short_name} {verb} with more {axis} ({_format_coordinates(coords)})"
    return Claim(text, _format_curve(series, kind), find_least_favorable(changes, kind.digits))


def _compare(text: str, numbers: str, scores: Mapping[str, Scores], winner: str, kind: Metric, sign: int) -> Claim:
    """Claim that the winner's scores are above (sign 1) or below (-1) each other's; the least favorable one decides."""
    own = scores.get(winner, {})
    comparisons = {
        name: [sign * (own[seed] - values[seed]) for seed in sorted(values.keys() & own.keys())]
        for name, values in scores.items()
        if name != winner
    }
    return Claim(text, numbers, find_least_favorable(comparisons, kind.digits), subject=winner)


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
    """Format coordinates, numbers with their names."""
    return ", ".join(value if isinstance(value, str) else f"{name} {value}" for name, value in coords.items())
