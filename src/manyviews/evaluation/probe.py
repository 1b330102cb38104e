"""Linear probes on frozen representations: how much of the classes, or of a number, lies open in them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, l1_loss, linear

from manyviews.evaluation.knn import check_finite, check_labelled
from manyviews.evaluation.progress import tracked

Method = Literal["lbfgs", "sgd"]
Augment = Callable[[int, Sequence[Tensor]], Iterator[tuple[Tensor, Tensor]]]
"""From an epoch and its batches of instances to their representations (B, d), and which instances these are."""

STRENGTHS = (10.0, 1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
HELD_OUT = 5
"""A fifth of the instances, drawn once and for all, chooses among the strengths."""


class Settings(TypedDict):
    """Of the SGD probe, and of the probe of quantities."""

    learning_rate: float
    epochs: int


PAPER_PROBE: dict[str, Settings] = {
    "cifar10": {"learning_rate": 0.1, "epochs": 200},
    "cifar100": {"learning_rate": 0.1, "epochs": 200},
    "imagenet100": {"learning_rate": 0.5, "epochs": 200},
    "imagenet1k": {"learning_rate": 1.6, "epochs": 100},
}
"""The paper's SGD probe for each data set: `linear_probe(h, labels, method="sgd", **PAPER_PROBE["imagenet1k"])`."""

QUANTITIES: Settings = {"learning_rate": 0.01, "epochs": 100}
"""Of `linear_regression_probe`, if not given."""


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
        labels = check_labelled("representations", h, labels, len(self.weight))
        return int((self.logits(h).argmax(1) == labels).sum()) / len(labels)


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
    method: Method = "lbfgs",
    strengths: Sequence[float] = STRENGTHS,
    learning_rate: float = 0.1,
    epochs: int = 200,
    batch_size: int = 256,
    seed: int = 0,
    augment: Augment | None = None,
) -> LinearProbe:
    """Fit a linear classifier to representations (n, d).

    "lbfgs" finds the minimum for a penalty chosen on a part of the instances: the same result every time. "sgd" is the
    paper's: steps with momentum 0.9 whose rate falls to zero as a cosine, with the settings in `PAPER_PROBE`.

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
        augment: gives "sgd" the representations of other crops in each epoch, instead of `h`; `augmented` makes it of
            an encoder and images.

    Examples:
        >>> h = torch.cat([torch.randn(50, 4) + 3, torch.randn(50, 4) - 3])
        >>> labels = torch.arange(2).repeat_interleave(50)
        >>> linear_probe(h, labels).accuracy(h, labels)
        1.0
    """
    labels = check_labelled("representations", h, labels, classes)
    count = int(labels.max()) + 1 if classes is None else classes
    if method == "sgd":
        descent = _Descent(count, learning_rate, epochs, batch_size, seed)
        return LinearProbe(*descent(h.float(), labels, _classifying, augment), 0.0)
    if method != "lbfgs":
        raise ValueError(f"method must be lbfgs or sgd, got {method!r}")
    if augment is not None:
        raise ValueError("augment is for the method sgd: lbfgs looks at all representations at once")
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
    for strength in tracked(sorted(strengths, reverse=True), "penalties of the linear probe", len(strengths)):
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
    learning_rate: float = QUANTITIES["learning_rate"],
    epochs: int = QUANTITIES["epochs"],
    batch_size: int = 256,
    seed: int = 0,
) -> LinearRegressionProbe:
    """Fit a linear function from representations (n, d) to numbers (n,), by the mean absolute error.

    Examples:
        >>> h = torch.randn(200, 4)
        >>> linear_regression_probe(h, h.sum(1), learning_rate=0.1).error(h, h.sum(1)) < 0.05
        True
    """
    if h.dim() != 2 or targets.shape != h.shape[:1] or not len(h):
        raise ValueError(
            f"representations must be (n, d) with n targets, got {tuple(h.shape)} and {tuple(targets.shape)}"
        )
    check_finite("representations", h)
    check_finite("targets", targets.float())
    x, y = h.float(), targets.float()
    mean, spread = x.mean(0), x.std(0, correction=0).clamp_min(1e-6)
    middle = y.median()  # the constant of least absolute error
    descent = _Descent(1, learning_rate, epochs, batch_size, seed)
    weight, bias = descent((x - mean) / spread, (y - middle)[:, None], _regressing)
    final = weight[0] / spread
    return LinearRegressionProbe(final, bias[0] + middle - final @ mean)


def _classifying(logits: Tensor, labels: Tensor) -> Tensor:
    """The slope of the mean cross-entropy by the logits (B, classes)."""
    slope = logits.softmax(1)
    slope.scatter_add_(1, labels[:, None], slope.new_full((len(labels), 1), -1.0))
    return slope.div_(len(labels))


def _regressing(guess: Tensor, targets: Tensor) -> Tensor:
    """The slope of the mean absolute error by the guesses (B, 1)."""
    return (guess - targets).sign_().div_(len(targets))


@dataclass(frozen=True)
class _Descent:
    """SGD with momentum, from zero, the rate falling to zero as a cosine; slopes by hand are faster than autograd."""

    outputs: int
    rate: float
    epochs: int
    batch_size: int
    seed: int

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1 or not self.rate > 0:
            given = f"{self.epochs}, {self.batch_size} and {self.rate}"
            raise ValueError(f"epochs, batch_size and learning_rate must be > 0, got {given}")

    def __call__(
        self, x: Tensor, y: Tensor, slope_of: Callable[[Tensor, Tensor], Tensor], augment: Augment | None = None
    ) -> tuple[Tensor, Tensor]:
        """Weight (outputs, d) and bias."""
        weight, bias = x.new_zeros(self.outputs, x.shape[1]), x.new_zeros(self.outputs)
        pull, lift = torch.zeros_like(weight), torch.zeros_like(bias)
        generator = torch.Generator().manual_seed(self.seed)
        for epoch in tracked(range(self.epochs), "epochs of the linear probe", self.epochs):
            rate = self.rate * 0.5 * (1 + math.cos(math.pi * epoch / self.epochs))
            order = torch.randperm(len(x), generator=generator).split(self.batch_size)
            cached = ((x.index_select(0, index.to(x.device)), index) for index in order)
            for rows, index in cached if augment is None else augment(epoch, order):
                # The product is this way round because few rows times many are faster than many times few.
                slope = slope_of(torch.addmm(bias[:, None], weight, rows.T).T, y[index.to(y.device)])
                pull.addmm_(slope.T, rows, beta=0.9)
                lift.mul_(0.9).add_(slope.sum(0))
                weight.sub_(pull, alpha=rate)
                bias.sub_(lift, alpha=rate)
        return weight, bias


def few_labels(labels: Tensor, share: float, seed: int = 0) -> Tensor:
    """Places of a share of the labels (n,), the same share of each class as nearly as can be, but at least one.

    Examples:
        >>> labels = torch.arange(2).repeat_interleave(100)
        >>> labels[few_labels(labels, 0.02)]
        tensor([0, 0, 1, 1])
    """
    if not 0 < share <= 1:
        raise ValueError(f"share must lie between 0 and 1, got {share}")
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    names, here, counts = labels.cpu()[shuffled].unique(return_inverse=True, return_counts=True)
    quota = share * counts.double()
    take = quota.floor().clamp_min(1).long()
    # What is left of whole labels goes to the classes that lost most by rounding down.
    left = max(0, round(share * len(labels)) - int(take.sum()))
    take[(quota - take).argsort(descending=True, stable=True)[:left]] += 1
    chosen = [shuffled[here == number][: int(take[number])] for number in range(len(names))]
    return torch.cat(chosen).sort().values.to(labels.device)


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
