"""The paper's principles, measured on any function of P and A.

Two of the numbers P[l,m], A[l,m] of an instance *act together* where the mixed second derivative of its
loss is not zero: then they stand under one logarithm. What a loss merely depends on shows in the first
derivative. From these alone:

P1  simultaneous alignment: for each view l, its positives P[l,.] act together in the alignment. The
    alignment is what is left of P's part in the loss when the energies are so large that no positive
    matters in them.
P2  accurate energy: for each view l, the energies that act together are those of a complete
    configuration of points: view l of all instances, or all views of all instances. Then the instance's
    own other views stand in the same sum: one of them very near outweighs the energies altogether.
P3  how many terms an instance has: groups of positives that act together. A term that sees no other
    views than those of its positives is a loss of these views, whichever way round it is written.
Coupling: "direct" if a positive acts together with an energy, "indirect" if the energies span views of
    one instance (which alignment wants together), else "none": alignment and uniformity are decoupled.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from manyviews.losses.objective import Objective

Pair = tuple[int, int]

DOMINANT = 40.0
"""A difference of logarithms before which the smaller does not count."""
DRAWS = 3
"""Random points at which a loss is differentiated."""


@dataclass(frozen=True)
class Audit:
    """What `audit` found."""

    simultaneous_alignment: bool
    """P1."""
    accurate_energy: bool
    """P2."""
    terms: int
    """P3: an instance should have one."""
    coupling: Literal["direct", "indirect", "none"]

    @property
    def decoupled(self) -> bool:
        return self.coupling == "none"


def audit(objective: Objective | Callable[[Tensor, Tensor], Tensor], views: int | None = None) -> Audit:
    """Measure the principles of an objective, or of any callable of P and A (M, N, N).

    At four views (two for a loss of two views) if `views` does not say otherwise. P has -inf on its diagonal (a view
    is no positive of itself); the callable may return a loss for each instance or their mean.

    Examples:
        >>> audit(lambda P, A: A.diagonal(dim1=1, dim2=2).sum(1) - P.flatten(1).logsumexp(1))
        Audit(simultaneous_alignment=True, accurate_energy=True, terms=1, coupling='none')
    """
    if not callable(objective):
        raise TypeError(
            f"objective must be an objective or a function of P and A, got {objective!r}: get_objective(...)"
        )
    most = objective.most_views if isinstance(objective, Objective) else math.inf
    views = int(min(4, most)) if views is None else views
    if views < 2:
        raise ValueError(f"views must be >= 2, got {views}: there is nothing to align")
    if views > most:
        raise ValueError(f"{type(objective).__name__} is a loss of {most} views, got {views}")
    pairs = ~torch.eye(views, dtype=torch.bool)
    formula: Callable[[Tensor, Tensor], Tensor] = objective
    if isinstance(objective, Objective):
        formula, pairs = objective.formula, objective.pairs(views)
    ordinary = _Derivatives(formula, pairs, level=1.0)
    dominated = _Derivatives(formula, pairs, level=DOMINANT)
    return Audit(
        simultaneous_alignment=_simultaneous(dominated, len(pairs)),
        accurate_energy=_accurate(ordinary, len(pairs)),
        terms=_count_terms(ordinary),
        coupling=_coupling(ordinary),
    )


class _Derivatives:
    """Which positives and energies a loss depends on, and which act together, at random points."""

    def __init__(self, formula: Callable[[Tensor, Tensor], Tensor], pairs: Tensor, level: float) -> None:
        views = len(pairs)
        positives = [(l, m) for l, m in pairs.nonzero().tolist()]
        energies = [(l, m) for l in range(views) for m in range(views)]
        split, count = len(positives), len(positives) + len(energies)
        nowhere = torch.full((views, views), -torch.inf, dtype=torch.float64)

        def loss(point: Tensor) -> Tensor:
            P = nowhere.masked_scatter(pairs, point[:split])
            return formula(P[None], point[split:].view(1, views, views)).sum()

        generator = torch.Generator().manual_seed(0)
        outweighed = torch.zeros(split, len(energies), dtype=torch.float64)
        first = torch.zeros(count, dtype=torch.float64)
        second = torch.zeros(count, count, dtype=torch.float64)
        for _ in range(DRAWS):
            point = torch.randn(count, dtype=torch.float64, generator=generator)
            point[split:] += level
            first += torch.autograd.functional.jacobian(loss, point).abs()
            second += torch.autograd.functional.hessian(loss, point).abs()
            for index in range(split):
                near = point.clone()
                near[index] += DOMINANT
                outweighed[index] += torch.autograd.functional.jacobian(loss, near).abs()[split:]

        if not (loss(point).isfinite() and first.isfinite().all() and second.isfinite().all()):
            raise ValueError("the loss or a derivative is not finite: mind that P is -inf on its diagonal")
        least = 1e-9 * float(first.max())
        used = (first > least).tolist()
        together = second > least
        self.positives = [p for p, yes in zip(positives, used[:split], strict=True) if yes]
        self.energies = {e for e, yes in zip(energies, used[split:], strict=True) if yes}
        self.positives_together = _related(positives, positives, together[:split, :split])
        self.energies_together = _related(energies, energies, together[split:, split:])
        self.coupled = _related(positives, energies, together[:split, split:])
        self.outweighed = _related(positives, energies, outweighed <= least)


Relation = dict[Pair, set[Pair]]


def _related(rows: list[Pair], columns: list[Pair], matrix: Tensor) -> Relation:
    return {
        row: {column for column, yes in zip(columns, line, strict=True) if yes}
        for row, line in zip(rows, matrix.tolist(), strict=True)
    }


def _groups(members: list[Pair], together: Relation) -> list[frozenset[Pair]]:
    """Connected groups of members."""
    groups: list[frozenset[Pair]] = []
    left = set(members)
    while left:
        group: set[Pair] = set()
        reached = {min(left)}
        while reached:
            group |= reached
            reached = {n for r in reached for n in together[r]} - group
        groups.append(frozenset(group))
        left -= group
    return groups


def _views(pairs: set[Pair] | frozenset[Pair]) -> set[int]:
    return {view for pair in pairs for view in pair}


def _count_terms(found: _Derivatives) -> int:
    terms: set[frozenset[object]] = set()
    for group in _groups(found.positives, found.positives_together):
        seen = {energy for positive in group for energy in found.coupled[positive]}
        if _views(seen) <= _views(group):
            terms.add(frozenset(frozenset(positive) for positive in group))
        else:
            terms.add(frozenset(group))
    return len(terms)


def _others(view: int, views: int) -> set[Pair]:
    return {(view, m) for m in range(views) if m != view}


def _simultaneous(found: _Derivatives, views: int) -> bool:
    groups = _groups(found.positives, found.positives_together)
    return all(any(_others(l, views) <= group for group in groups) for l in range(views))


def _accurate(found: _Derivatives, views: int) -> bool:
    for energy in found.energies:
        view = energy[0]
        used = {e for e in found.energies if e[0] == view}
        if used == {(view, view)}:
            continue
        others = _others(view, views)
        complete = others <= found.energies_together[energy] | {energy} and all(
            energy in found.outweighed.get(positive, ()) for positive in others
        )
        if not complete:
            return False
    return bool(found.energies)


def _coupling(found: _Derivatives) -> Literal["direct", "indirect", "none"]:
    if any(found.coupled.values()):
        return "direct"
    return "indirect" if any(l != m for l, m in found.energies) else "none"
