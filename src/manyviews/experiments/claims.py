"""What the paper says of a table, held against the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from manyviews.experiments.results import METRICS, Results


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
    """That an objective is better than others at a place."""
    kind = METRICS[metric]
    scores = {name: results.mean(metric, objective=name, **place) for name in (winner, *others)}
    known = {name: value for name, value in scores.items() if value is not None}
    rest = [value for name, value in known.items() if name != winner]
    held = None
    if winner in known and rest:
        held = known[winner] > max(rest) if kind.higher else known[winner] < min(rest)
    where = ", ".join(f"{name} {value}" for name, value in place.items())
    numbers = ", ".join(f"{name} {value:.{kind.digits}f}" for name, value in known.items())
    many = ", ".join(others)
    return Claim(f"{winner} has a better {kind.name.partition(',')[0]} than {many} ({where})", held, numbers)


def grows(results: Results, metric: str, along: str, **place: Any) -> Claim:
    """That a metric is better at the largest value of a part of the places than at the smallest."""
    kind = METRICS[metric]
    values = sorted(value for value in results.options(along) if isinstance(value, (int, float)))
    found = [(value, results.mean(metric, **{along: value}, **place)) for value in values]
    known = [(value, mean) for value, mean in found if mean is not None]
    held = None
    if len(known) > 1:
        gain = known[-1][1] - known[0][1]
        held = gain > 0 if kind.higher else gain < 0
    where = ", ".join(str(value) for value in place.values())
    numbers = ", ".join(f"{value}: {mean:.{kind.digits}f}" for value, mean in known)
    return Claim(f"{kind.name.partition(',')[0]} gets better with more {along} ({where})", held, numbers)


def steady(results: Results, metric: str, along: str, within: float, **place: Any) -> Claim:
    """That a metric hardly changes along a part of the places."""
    kind = METRICS[metric]
    found = [(value, results.mean(metric, **{along: value}, **place)) for value in results.options(along)]
    known = [(value, mean) for value, mean in found if mean is not None]
    held = None
    if len(known) > 1:
        held = max(mean for _, mean in known) - min(mean for _, mean in known) <= within
    where = ", ".join(str(value) for value in place.values())
    numbers = ", ".join(f"{value}: {mean:.{kind.digits}f}" for value, mean in known)
    return Claim(f"{kind.name.partition(',')[0]} stays within {within:g} whatever the {along} ({where})", held, numbers)
