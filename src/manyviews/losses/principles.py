"""The paper's principles, measured on any function of P and A.

Two entries of P and A of an instance *interact* if the mixed second derivative of its loss is not zero: then they are
under one logarithm. The first derivative shows on which entries the loss depends.

P1  simultaneous alignment: for each view l, its positives P[l,.] interact in the alignment, which is the dependence of
    the loss on P when the energies are so large that positives do not matter in them.
P2  accurate energy: for each view l, the energies that interact are those of a complete configuration of points: view l
    of all instances, or all views of all instances. In the second case the other views of the instance are in the same
    sum, so that one very close view dominates the energies.
P3  number of terms of an instance: groups of positives that interact. If a term reads no other views than those of its
    positives, (l, m) and (m, l) are the same term.
Coupling: "direct" if a positive interacts with an energy, "indirect" if energies are between different views (which
    alignment pulls together), else "none": alignment and uniformity are decoupled.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from manyviews.losses.base import MultiViewLoss

Pair = tuple[int, int]

DOMINANT_LOG_GAP = 40.0
"""Difference of logarithms at which the smaller term is negligible."""
NUM_POINTS = 3
"""Number of random points at which a loss is differentiated."""


@dataclass(frozen=True)
class PrinciplesReport:
    """Result of `check_principles`."""

    simultaneous_alignment: bool
    """P1."""
    accurate_energy: bool
    """P2."""
    terms: int
    """P3: the number of terms of an instance, ideally 1."""
    coupling: Literal["direct", "indirect", "none"]

    @property
    def decoupled(self) -> bool:
        return self.coupling == "none"


def check_principles(
    loss: MultiViewLoss | Callable[[Tensor, Tensor], Tensor], views: int | None = None
) -> PrinciplesReport:
    """Measure the paper's principles for a loss, or for any callable of P and A (M, N, N).

    The default of `views` is 4 (2 for a loss of two views). The diagonal of P is -inf: a view is not its own positive.
    The callable may return a loss for each instance or their mean.

    Examples:
        >>> check_principles(lambda P, A: A.diagonal(dim1=1, dim2=2).sum(1) - P.flatten(1).logsumexp(1))
        PrinciplesReport(simultaneous_alignment=True, accurate_energy=True, terms=1, coupling='none')
    """
    if not callable(loss):
        raise TypeError(f"loss must be a MultiViewLoss or a function of P and A, got {loss!r}: use get_loss(...)")
    max_views = loss.max_views if isinstance(loss, MultiViewLoss) else math.inf
    views = int(min(4, max_views)) if views is None else views
    if views < 2:
        raise ValueError(f"views must be >= 2, got {views}: one view has no positives")
    if views > max_views:
        raise ValueError(f"{type(loss).__name__} is a loss of {max_views} views, got {views}")
    pairs = ~torch.eye(views, dtype=torch.bool)
    formula: Callable[[Tensor, Tensor], Tensor] = loss
    if isinstance(loss, MultiViewLoss):
        formula, pairs = loss.formula, loss.positive_pairs(views)
    default = _DependencyStructure(formula, pairs, energy_offset=1.0)
    with_large_energies = _DependencyStructure(formula, pairs, energy_offset=DOMINANT_LOG_GAP)
    return PrinciplesReport(
        simultaneous_alignment=_has_simultaneous_alignment(with_large_energies, len(pairs)),
        accurate_energy=_has_accurate_energy(default, len(pairs)),
        terms=_count_terms(default),
        coupling=_get_coupling_kind(default),
    )


class _DependencyStructure:
    """The positives and energies on which a loss depends, and those that interact, at random points."""

    def __init__(self, formula: Callable[[Tensor, Tensor], Tensor], pairs: Tensor, energy_offset: float) -> None:
        views = len(pairs)
        positives = [(l, m) for l, m in pairs.nonzero().tolist()]
        energies = [(l, m) for l in range(views) for m in range(views)]
        split, count = len(positives), len(positives) + len(energies)
        neg_inf = torch.full((views, views), -torch.inf, dtype=torch.float64)

        def loss(point: Tensor) -> Tensor:
            P = neg_inf.masked_scatter(pairs, point[:split])
            return formula(P[None], point[split:].view(1, views, views)).sum()

        generator = torch.Generator().manual_seed(0)
        with_close_positive = torch.zeros(split, len(energies), dtype=torch.float64)
        first = torch.zeros(count, dtype=torch.float64)
        second = torch.zeros(count, count, dtype=torch.float64)
        for _ in range(NUM_POINTS):
            point = torch.randn(count, dtype=torch.float64, generator=generator)
            point[split:] += energy_offset
            first += torch.autograd.functional.jacobian(loss, point).abs()
            second += torch.autograd.functional.hessian(loss, point).abs()
            for i in range(split):
                close = point.clone()
                close[i] += DOMINANT_LOG_GAP
                with_close_positive[i] += torch.autograd.functional.jacobian(loss, close).abs()[split:]

        if not (loss(point).isfinite() and first.isfinite().all() and second.isfinite().all()):
            raise ValueError("the loss or a derivative is not finite: note that the diagonal of P is -inf")
        tolerance = 1e-9 * float(first.max())
        used = (first > tolerance).tolist()
        interacts = second > tolerance
        self.positives = [p for p, is_used in zip(positives, used[:split], strict=True) if is_used]
        self.energies = {e for e, is_used in zip(energies, used[split:], strict=True) if is_used}
        self.interacting_positives = _to_relation(positives, positives, interacts[:split, :split])
        self.interacting_energies = _to_relation(energies, energies, interacts[split:, split:])
        self.coupled = _to_relation(positives, energies, interacts[:split, split:])
        self.dominated = _to_relation(positives, energies, with_close_positive <= tolerance)


Relation = dict[Pair, set[Pair]]


def _to_relation(rows: list[Pair], columns: list[Pair], matrix: Tensor) -> Relation:
    return {
        row: {column for column, value in zip(columns, values, strict=True) if value}
        for row, values in zip(rows, matrix.tolist(), strict=True)
    }


def _find_connected_components(pairs: list[Pair], relation: Relation) -> list[frozenset[Pair]]:
    groups: list[frozenset[Pair]] = []
    remaining = set(pairs)
    while remaining:
        group: set[Pair] = set()
        reached = {min(remaining)}
        while reached:
            group |= reached
            reached = {n for r in reached for n in relation[r]} - group
        groups.append(frozenset(group))
        remaining -= group
    return groups


def _collect_views(pairs: set[Pair] | frozenset[Pair]) -> set[int]:
    return {view for pair in pairs for view in pair}


def _count_terms(structure: _DependencyStructure) -> int:
    terms: set[frozenset[object]] = set()
    for group in _find_connected_components(structure.positives, structure.interacting_positives):
        energies = {energy for positive in group for energy in structure.coupled[positive]}
        if _collect_views(energies) <= _collect_views(group):
            terms.add(frozenset(frozenset(positive) for positive in group))
        else:
            terms.add(frozenset(group))
    return len(terms)


def _list_other_pairs(view: int, views: int) -> set[Pair]:
    return {(view, m) for m in range(views) if m != view}


def _has_simultaneous_alignment(structure: _DependencyStructure, views: int) -> bool:
    groups = _find_connected_components(structure.positives, structure.interacting_positives)
    return all(any(_list_other_pairs(l, views) <= group for group in groups) for l in range(views))


def _has_accurate_energy(structure: _DependencyStructure, views: int) -> bool:
    for energy in structure.energies:
        view = energy[0]
        used = {e for e in structure.energies if e[0] == view}
        if used == {(view, view)}:
            continue
        others = _list_other_pairs(view, views)
        complete = others <= structure.interacting_energies[energy] | {energy} and all(
            energy in structure.dominated.get(positive, ()) for positive in others
        )
        if not complete:
            return False
    return bool(structure.energies)


def _get_coupling_kind(structure: _DependencyStructure) -> Literal["direct", "indirect", "none"]:
    if any(structure.coupled.values()):
        return "direct"
    return "indirect" if any(l != m for l, m in structure.energies) else "none"
