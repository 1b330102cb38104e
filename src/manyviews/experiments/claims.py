"""What the paper says of a table, held against the numbers."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from manyviews.experiments.results import METRICS, Metric, Results


@dataclass(frozen=True)
class Claim:
    """A sentence, whether it held (None: it could not be asked), and the numbers it rests on."""

    text: str
    held: bool | None
    numbers: str

    @property
    def verdict(self) -> str:
        return {True: "held", False: "not held", None: "not asked"}[self.held]


def best(results: Results, metric: str, winner: str, others: Sequence[str], **place: Any) -> Claim:
    """That an objective is better than others at a place; those that were not run are not named."""
    kind = METRICS[metric]
    known = {name: results.all(metric, objective=name, **place) for name in (winner, *others)}
    means = {name: statistics.fmean(values) for name, values in known.items() if values}
    rest = [name for name in means if name != winner]
    held, lead = None, 0.0
    if winner in means and rest:
        lead = min((means[winner] - means[name]) * (1 if kind.higher else -1) for name in rest)
        held = lead > 0
    spread = max((statistics.stdev(values) for values in known.values() if len(values) > 1), default=0.0)
    doubt = "; within the deviation" if held is not None and abs(lead) < spread else ""
    where = ", ".join(f"{name} {value}" for name, value in place.items())
    text = f"{winner} has a better {kind.plain} than {', '.join(rest or others)} ({where})"
    return Claim(text, held, ", ".join(f"{name} {value:.{kind.digits}f}" for name, value in means.items()) + doubt)


def grows(results: Results, metric: str, along: str, **place: Any) -> Claim:
    """That a metric is better at the largest value of a part of the places than at the smallest."""
    kind, known = METRICS[metric], _along(results, metric, along, place)
    gain = _gain(known)
    held = None if gain is None else (gain > 0 if kind.higher else gain < 0)
    return Claim(f"{kind.plain} gets better with more {along} ({_where(place)})", held, _told(known, kind))


def does_not_grow(results: Results, metric: str, along: str, **place: Any) -> Claim:
    """The opposite of `grows`, where the paper says that."""
    claim = grows(results, metric, along, **place)
    text = claim.text.replace("gets better", "does not get better")
    return dataclasses.replace(claim, text=text, held=None if claim.held is None else not claim.held)


def steadier(results: Results, metric: str, along: str, winner: str, others: Sequence[str], **place: Any) -> Claim:
    """That a metric of one objective changes less along a part of the places than that of each other."""
    kind = METRICS[metric]
    spans = {}
    for name in (winner, *others):
        known = _along(results, metric, along, {**place, "objective": name})
        means = [mean for _, mean in known if mean is not None]
        if len(means) == len(known) > 1:
            spans[name] = max(means) - min(means)
    rest = [name for name in spans if name != winner]
    held = spans[winner] < min(spans[name] for name in rest) if winner in spans and rest else None
    numbers = ", ".join(f"{name} {span:.{kind.digits}f}" for name, span in spans.items())
    text = f"{kind.plain} of {winner} changes less with the {along} than that of {', '.join(rest or others)}"
    return Claim(f"{text} ({_where(place)})", held, f"largest less smallest: {numbers}" if numbers else "")


def steady(results: Results, metric: str, along: str, within: float, **place: Any) -> Claim:
    """That a metric hardly changes along a part of the places."""
    kind, known = METRICS[metric], _along(results, metric, along, place)
    means = [mean for _, mean in known if mean is not None]
    held = max(means) - min(means) <= within if len(means) == len(known) > 1 else None
    return Claim(
        f"{kind.plain} stays within {within:g} whatever the {along} ({_where(place)})", held, _told(known, kind)
    )


Known = list[tuple[float, float | None]]


def _along(results: Results, metric: str, along: str, place: Mapping[str, Any]) -> Known:
    values = sorted(value for value in results.options(along) if isinstance(value, (int, float)))
    return [(value, results.mean(metric, **{along: value}, **place)) for value in values]


def _gain(known: Known) -> float | None:
    """From the first to the last; None if one of them is missing."""
    if len(known) < 2 or known[0][1] is None or known[-1][1] is None:
        return None
    return known[-1][1] - known[0][1]


def _told(known: Known, kind: Metric) -> str:
    return ", ".join(f"{value:g}: {mean:.{kind.digits}f}" for value, mean in known if mean is not None)


def _where(place: Mapping[str, Any]) -> str:
    return ", ".join(str(value) for value in place.values())
