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

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd.functional import hessian, jacobian

from manyviews.losses.base import MultiViewLoss
from manyviews.losses.energy import EnergyLoss

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
    if isinstance(loss, MultiViewLoss) and not isinstance(loss, EnergyLoss):
        reason = loss.audit_error or "it is not a function of P and A"
        raise TypeError(f"the principles of {type(loss).__name__} cannot be measured: {reason}")
    max_views = loss.max_views if isinstance(loss, MultiViewLoss) else math.inf
    views = int(min(4, max_views)) if views is None else views
    if views < 2:
        raise ValueError(f"views must be >= 2, got {views}: one view has no positives")
    if views > max_views:
        raise ValueError(f"{type(loss).__name__} is a loss of {max_views} views, got {views}")
    pairs = ~torch.eye(views, dtype=torch.bool)
    formula: Callable[[Tensor, Tensor], Tensor] = loss
    if isinstance(loss, EnergyLoss):
        formula, pairs = loss.formula, loss.positive_pairs(views)
    default = _differentiate(formula, pairs, energy_offset=1.0)
    with_large_energies = _differentiate(formula, pairs, energy_offset=DOMINANT_LOG_GAP)
    return PrinciplesReport(
        simultaneous_alignment=_has_simultaneous_alignment(with_large_energies),
        accurate_energy=_has_accurate_energy(default),
        terms=_count_terms(default),
        coupling=_get_coupling_kind(default),
    )


class _Interactions(NamedTuple):
    """The entries of P and A that a loss uses (NN,), and those that interact (NN, NN), as bools.

    A pair of views (l, m) has the index l * N + m.
    """

    positives: Tensor
    energies: Tensor
    among_positives: Tensor
    among_energies: Tensor
    coupled: Tensor
    """A positive (row) and an energy (column) interact."""
    dominated: Tensor
    """An energy (column) does not matter if a positive (row) is very close."""

    @property
    def views(self) -> int:
        return math.isqrt(len(self.positives))

    def list_other_pairs(self, view: int) -> list[int]:
        """List the pairs of a view and each other view."""
        return [view * self.views + m for m in range(self.views) if m != view]

    def find_groups(self) -> Tensor:
        """Return groups (G, NN) of positives that interact, directly or through others."""
        reached = self.among_positives | torch.eye(len(self.positives), dtype=torch.bool)
        for _ in range(self.views):  # each round doubles the length of the paths
            reached = (reached.double() @ reached.double()) > 0
        return reached[self.positives].unique(dim=0)


def _differentiate(formula: Callable[[Tensor, Tensor], Tensor], pairs: Tensor, energy_offset: float) -> _Interactions:
    """Differentiate a formula at random points; `pairs` (N, N) are the positives."""
    views = len(pairs)
    split, size = int(pairs.sum()), views**2
    count = split + size
    neg_inf = torch.full((views, views), -torch.inf, dtype=torch.float64)

    def loss(point: Tensor) -> Tensor:
        P = neg_inf.masked_scatter(pairs, point[:split])
        return formula(P[None], point[split:].view(1, views, views)).sum()

    generator = torch.Generator().manual_seed(0)
    first, second = torch.zeros(count, dtype=torch.float64), torch.zeros(count, count, dtype=torch.float64)
    with_close_positive = torch.zeros(split, size, dtype=torch.float64)
    for _ in range(NUM_POINTS):
        point = torch.randn(count, dtype=torch.float64, generator=generator)
        point[split:] += energy_offset
        first += jacobian(loss, point).abs()
        second += hessian(loss, point).abs()
        for i in range(split):
            close = point.clone()
            close[i] += DOMINANT_LOG_GAP
            with_close_positive[i] += jacobian(loss, close).abs()[split:]
    if not (loss(point).isfinite() and first.isfinite().all() and second.isfinite().all()):
        raise ValueError("the loss or a derivative is not finite: note that the diagonal of P is -inf")
    tolerance = 1e-9 * float(first.max())
    # From the variables at which the formula is differentiated to all pairs of views.
    index = torch.cat([pairs.flatten(), torch.ones(size, dtype=torch.bool)]).nonzero().squeeze(1)
    used = torch.zeros(2 * size, dtype=torch.bool).index_put((index,), first > tolerance)
    interacts = torch.zeros(2 * size, 2 * size, dtype=torch.bool)
    interacts[index[:, None], index] = second > tolerance
    dominated = torch.zeros(size, size, dtype=torch.bool)
    dominated[pairs.flatten()] = with_close_positive <= tolerance
    return _Interactions(
        used[:size], used[size:], interacts[:size, :size], interacts[size:, size:], interacts[:size, size:], dominated
    )


def _has_simultaneous_alignment(interactions: _Interactions) -> bool:
    groups = interactions.find_groups()
    return all(bool(groups[:, interactions.list_other_pairs(l)].all(1).any()) for l in range(interactions.views))


def _has_accurate_energy(interactions: _Interactions) -> bool:
    used = interactions.energies.view(interactions.views, -1)
    for view, m in used.nonzero().tolist():
        if used[view].nonzero().tolist() == [[view]]:
            continue
        energy, others = view * interactions.views + m, interactions.list_other_pairs(view)
        in_one_sum = all(pair == energy or interactions.among_energies[energy, pair] for pair in others)
        if not in_one_sum or not interactions.dominated[others, energy].all():
            return False
    return bool(used.any())


def _count_terms(interactions: _Interactions) -> int:
    terms = set()
    for group in interactions.find_groups():
        positives = group.view(interactions.views, -1)
        energies = interactions.coupled[group].any(0).view(interactions.views, -1)
        reads_only_its_views = set(energies.nonzero().flatten().tolist()) <= set(positives.nonzero().flatten().tolist())
        term = positives | positives.T if reads_only_its_views else positives
        terms.add((reads_only_its_views, *term.flatten().tolist()))
    return len(terms)


def _get_coupling_kind(interactions: _Interactions) -> Literal["direct", "indirect", "none"]:
    if interactions.coupled.any():
        return "direct"
    between_views = interactions.energies.view(interactions.views, -1) & ~torch.eye(interactions.views).bool()
    return "indirect" if between_views.any() else "none"
