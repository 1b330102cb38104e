"""Linear probes on frozen representations: how much of the classes, or of a number, lies open in them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, l1_loss, linear

from manyviews.evaluation.knn import check_labelled

STRENGTHS = (10.0, 1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
HELD_OUT = 5
"""A fifth of the instances, drawn once and for all, chooses among the strengths."""


@dataclass(frozen=True)
class LinearProbe:
    """A linear classifier."""

    weight: Tensor
    """(classes, d), for representations as they come."""
    bias: Tensor
    strength: float
    """Of the penalty strength / 2 |weight|^2 on the mean cross-entropy of standardised representations; 0 for none."""

    def logits(self, h: Tensor) -> Tensor:
        return linear(h.to(self.weight), self.weight, self.bias)

    def accuracy(self, h: Tensor, labels: Tensor) -> float:
        """Share of representations (n, d) put into their class."""
        check_labelled("representations", h, labels)
        return (self.logits(h).argmax(1) == labels).double().mean().item()


@dataclass(frozen=True)
class LinearRegressionProbe:
    """A number from a representation."""

    weight: Tensor
    """(d,)"""
    bias: Tensor

    def predict(self, h: Tensor) -> Tensor:
        """Numbers (n,) for representations (n, d)."""
        return h.to(self.weight) @ self.weight + self.bias

    def error(self, h: Tensor, targets: Tensor) -> float:
        """Mean absolute error."""
        return l1_loss(self.predict(h), targets.to(self.weight)).item()


def linear_probe(
    h: Tensor,
    labels: Tensor,
    *,
    classes: int | None = None,
    method: Literal["lbfgs", "sgd"] = "lbfgs",
    strengths: Sequence[float] = STRENGTHS,
    learning_rate: float = 0.1,
    epochs: int = 200,
    batch_size: int = 256,
    seed: int = 0,
) -> LinearProbe:
    """Fit a linear classifier to representations (n, d).

    "lbfgs" finds the minimum for a penalty chosen on a part of the instances: the same result every time. "sgd" is the
    paper's: steps with momentum 0.9 whose rate falls to zero as a cosine (0.1 and 200 epochs for CIFAR, 0.5 and 200 for
    ImageNet-100, 1.6 and 100 for ImageNet).

    Args:
        h: representations of the training set.
        labels: their classes (n,), from 0.
        classes: how many there are; one more than the largest label if not given.
        method: "lbfgs" or "sgd".
        strengths: of the penalty of "lbfgs". From the strongest down, as long as the cross-entropy on a fifth of the
            instances falls; the best is taken for all of them.
        learning_rate: of "sgd", at the beginning.
        epochs: of "sgd".
        batch_size: of "sgd".
        seed: of the order of instances in "sgd".

    Example:
        >>> h = torch.cat([torch.randn(50, 4) + 3, torch.randn(50, 4) - 3])
        >>> labels = torch.arange(2).repeat_interleave(50)
        >>> linear_probe(h, labels).accuracy(h, labels)
        1.0
    """
    check_labelled("representations", h, labels, classes)
    count = int(labels.max()) + 1 if classes is None else classes
    if method == "sgd":
        weight, bias = _descend(h.float(), labels, cross_entropy, count, learning_rate, epochs, batch_size, seed)
        return LinearProbe(weight, bias, 0.0)
    if method != "lbfgs":
        raise ValueError(f"method must be lbfgs or sgd, got {method!r}")
    if not strengths or min(strengths) <= 0:
        raise ValueError(f"strengths must be > 0, at least one, got {tuple(strengths)}")
    if len(strengths) == 1:
        return fit(h, labels, count, strengths[0])
    held = torch.zeros(len(h), dtype=torch.bool)
    held[torch.randperm(len(h), generator=torch.Generator().manual_seed(0))[: len(h) // HELD_OUT]] = True
    held = held.to(h.device)
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


def linear_regression_probe(
    h: Tensor,
    targets: Tensor,
    *,
    learning_rate: float = 0.01,
    epochs: int = 100,
    batch_size: int = 256,
    seed: int = 0,
) -> LinearRegressionProbe:
    """Fit a linear function from representations (n, d) to numbers (n,), by the mean absolute error.

    Example:
        >>> h = torch.randn(200, 4)
        >>> linear_regression_probe(h, h.sum(1), learning_rate=0.1).error(h, h.sum(1)) < 0.05
        True
    """
    if h.dim() != 2 or targets.shape != h.shape[:1] or not len(h):
        raise ValueError(
            f"representations must be (n, d) with n targets, got {tuple(h.shape)} and {tuple(targets.shape)}"
        )
    x, y = h.float(), targets.float()
    mean, spread = x.mean(0), x.std(0, correction=0).clamp_min(1e-6)
    middle = y.median()  # the constant of least absolute error
    weight, bias = _descend(
        (x - mean) / spread, (y - middle)[:, None], l1_loss, 1, learning_rate, epochs, batch_size, seed
    )
    final = weight[0] / spread
    return LinearRegressionProbe(final, bias[0] + middle - final @ mean)


def _descend(
    x: Tensor,
    y: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor],
    outputs: int,
    rate: float,
    epochs: int,
    batch_size: int,
    seed: int,
) -> tuple[Tensor, Tensor]:
    """Weight (outputs, d) and bias by SGD with momentum, from zero, the rate falling to zero as a cosine."""
    if epochs < 1 or batch_size < 1 or not rate > 0:
        raise ValueError(f"epochs, batch_size and learning_rate must be > 0, got {epochs}, {batch_size} and {rate}")
    weight, bias = x.new_zeros(outputs, x.shape[1]).requires_grad_(), x.new_zeros(outputs).requires_grad_()
    solver = torch.optim.SGD([weight, bias], lr=rate, momentum=0.9)
    generator = torch.Generator().manual_seed(seed)
    with torch.enable_grad():
        for epoch in range(epochs):
            solver.param_groups[0]["lr"] = rate * 0.5 * (1 + math.cos(math.pi * epoch / epochs))
            for index in torch.randperm(len(x), generator=generator).to(x.device).split(batch_size):
                solver.zero_grad()
                loss(linear(x[index], weight, bias), y[index]).backward()
                solver.step()
    return weight.detach(), bias.detach()


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
