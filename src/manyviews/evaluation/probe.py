"""A linear classifier on frozen representations: how much of the classes lies open in them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from manyviews.evaluation.knn import check_labelled

STRENGTHS = (10.0, 1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
HELD_OUT = 5
"""Every fifth instance chooses among the strengths."""


@dataclass(frozen=True)
class LinearProbe:
    """Logistic regression on standardised representations."""

    weight: Tensor
    """(classes, d), for representations as they come."""
    bias: Tensor
    strength: float
    """Of the penalty strength / 2 |weight|^2 on the mean cross-entropy of standardised representations."""

    def logits(self, h: Tensor) -> Tensor:
        return linear(h.to(self.weight), self.weight, self.bias)

    def accuracy(self, h: Tensor, labels: Tensor) -> float:
        """Share of representations (n, d) put into their class."""
        check_labelled("representations", h, labels)
        return (self.logits(h).argmax(1) == labels).double().mean().item()


def linear_probe(
    h: Tensor, labels: Tensor, *, classes: int | None = None, strengths: Sequence[float] = STRENGTHS
) -> LinearProbe:
    """Fit a linear classifier to representations (n, d) by L-BFGS: the same result every time.

    Args:
        h: representations of the training set.
        labels: their classes (n,), from 0.
        classes: how many there are; one more than the largest label if not given.
        strengths: of the penalty. From the strongest down, as long as the cross-entropy on a fifth of the instances
            falls; the best is taken for all of them.

    Example:
        >>> h = torch.cat([torch.randn(50, 4) + 3, torch.randn(50, 4) - 3])
        >>> labels = torch.arange(2).repeat_interleave(50)
        >>> linear_probe(h, labels).accuracy(h, labels)
        1.0
    """
    check_labelled("representations", h, labels, classes)
    if not strengths or min(strengths) <= 0:
        raise ValueError(f"strengths must be > 0, at least one, got {tuple(strengths)}")
    count = int(labels.max()) + 1 if classes is None else classes
    if len(strengths) == 1:
        return fit(h, labels, count, strengths[0])
    held = torch.arange(len(h), device=h.device) % HELD_OUT == HELD_OUT - 1
    if not held.any():
        raise ValueError(f"{len(h)} instances are too few to choose a strength on a part of them: give one")
    least, probe, best = math.inf, None, max(strengths)
    for strength in sorted(strengths, reverse=True):
        probe = fit(h[~held], labels[~held], count, strength, probe)
        loss = cross_entropy(probe.logits(h[held]), labels[held]).item()
        if loss > least:
            break
        least, best = loss, strength
    return fit(h, labels, count, best, probe)


def fit(h: Tensor, labels: Tensor, classes: int, strength: float, start: LinearProbe | None = None) -> LinearProbe:
    """Fit with a penalty of this strength, beginning with another probe's weights."""
    h = h.float()
    mean, spread = h.mean(0), h.std(0, correction=0)
    scale = torch.where(spread > 1e-6 * spread.max(), 1 / spread, 0.0)  # what is constant says nothing
    x = (h - mean) * scale
    if start is None:
        weight, bias = x.new_zeros(classes, x.shape[1]), x.new_zeros(classes)
    else:
        weight, bias = start.weight * spread, start.bias + start.weight @ mean
    weight, bias = (t.clone().requires_grad_() for t in (weight, bias))
    solver = torch.optim.LBFGS(
        [weight, bias], max_iter=200, tolerance_grad=1e-4, tolerance_change=1e-7, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        solver.zero_grad()
        value = cross_entropy(linear(x, weight, bias), labels) + strength / 2 * weight.square().sum()
        value.backward()
        return value

    with torch.enable_grad():
        solver.step(loss)
    final = weight.detach() * scale
    return LinearProbe(final, bias.detach() - final @ mean, strength)
