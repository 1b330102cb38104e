"""Linear probes on frozen representations: how linearly decodable labels are."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, l1_loss, linear

from manyviews.utils import check_finite, check_labels, track, warmup_cosine_lr

ProbeSolver = Literal["lbfgs", "sgd"]
FeatureStream = Callable[[int, Sequence[Tensor]], Iterator[tuple[Tensor, Tensor]]]
"""Maps an epoch and its batches of indices to batches of representations (B, d) and indices (B,)."""

L2_GRID = (10.0, 1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
VAL_FOLDS = 5
"""One of this many parts of the instances, a fixed random one, is the validation set for the L2 penalty."""


class ProbeSettings(TypedDict):
    learning_rate: float
    epochs: int


PAPER_PROBE_SETTINGS: dict[str, ProbeSettings] = {
    "cifar10": {"learning_rate": 0.1, "epochs": 200},
    "cifar100": {"learning_rate": 0.1, "epochs": 200},
    "imagenet100": {"learning_rate": 0.5, "epochs": 200},
    "imagenet1k": {"learning_rate": 1.6, "epochs": 100},
}
"""The paper's SGD probe for each dataset: arguments of `fit_linear_probe(h, labels, solver="sgd", ...)`."""

REGRESSION_PROBE_SETTINGS: ProbeSettings = {"learning_rate": 0.01, "epochs": 100}
"""Defaults of `fit_regression_probe`."""


@dataclass(frozen=True)
class LinearProbe:
    """A linear classifier."""

    weight: Tensor
    """(classes, d), for representations that are not standardized."""
    bias: Tensor
    l2: float
    """Penalty l2 / 2 |weight|^2 on the mean cross-entropy of standardized representations; 0 for none."""

    def logits(self, h: Tensor) -> Tensor:
        return linear(h.to(self.weight), self.weight, self.bias)

    def accuracy(self, h: Tensor, labels: Tensor) -> float:
        """Return the fraction of representations (n, d) that are classified correctly."""
        labels = check_labels("representations", h, labels, len(self.weight))
        return int((self.logits(h).argmax(1) == labels).sum()) / len(labels)


@dataclass(frozen=True)
class LinearRegressionProbe:
    """A linear regressor."""

    weight: Tensor
    """(d,)"""
    bias: Tensor

    def predict(self, h: Tensor) -> Tensor:
        """Return predictions (n,) for representations (n, d)."""
        return h.to(self.weight) @ self.weight + self.bias

    def error(self, h: Tensor, targets: Tensor) -> float:
        """Return the mean absolute error."""
        return l1_loss(self.predict(h), targets.to(self.weight)).item()


def fit_linear_probe(
    h: Tensor,
    labels: Tensor,
    *,
    num_classes: int | None = None,
    solver: ProbeSolver = "lbfgs",
    l2_grid: Sequence[float] = L2_GRID,
    learning_rate: float = 0.1,
    epochs: int = 200,
    batch_size: int = 256,
    seed: int = 0,
    augment: FeatureStream | None = None,
) -> LinearProbe:
    """Fit a linear classifier to representations (n, d).

    "lbfgs" is converged logistic regression with the L2 penalty chosen on a validation part; it is deterministic.
    "sgd" is the paper's protocol: momentum 0.9 and a cosine schedule, with the settings in `PAPER_PROBE_SETTINGS`.

    Args:
        h: training representations.
        labels: classes (n,), from 0.
        num_classes: number of classes; default: the largest label + 1.
        solver: "lbfgs" or "sgd".
        l2_grid: L2 penalties of "lbfgs". They are tried in descending order until the cross-entropy on the validation
            part (a fifth of the instances) increases; the best one is used for a fit to all instances.
        learning_rate: initial learning rate of "sgd".
        epochs: epochs of "sgd".
        batch_size: batch size of "sgd".
        seed: seed of the order of instances in "sgd".
        augment: returns the representations of new crops for each epoch of "sgd", used instead of `h`; see
            `stream_augmented_features`.

    Examples:
        >>> h = torch.cat([torch.randn(50, 4) + 3, torch.randn(50, 4) - 3])
        >>> labels = torch.arange(2).repeat_interleave(50)
        >>> fit_linear_probe(h, labels).accuracy(h, labels)
        1.0
    """
    labels = check_labels("representations", h, labels, num_classes)
    num_classes = int(labels.max()) + 1 if num_classes is None else num_classes
    if solver == "sgd":
        gradient_fn, x = _compute_cross_entropy_gradient, h.float()
        fit = _fit_momentum_sgd(x, labels, num_classes, gradient_fn, learning_rate, epochs, batch_size, seed, augment)
        return LinearProbe(*fit, 0.0)
    if solver != "lbfgs":
        raise ValueError(f"solver must be lbfgs or sgd, got {solver!r}")
    if augment is not None:
        raise ValueError("augment requires solver sgd: lbfgs uses all representations at once")
    if not l2_grid or min(l2_grid) <= 0:
        raise ValueError(f"l2_grid must be one or more values > 0, got {tuple(l2_grid)}")
    if len(l2_grid) == 1:
        return _fit_logistic_regression(h, labels, num_classes, l2_grid[0])
    is_val = torch.zeros(len(h), dtype=torch.bool)
    is_val[torch.randperm(len(h), generator=torch.Generator().manual_seed(0))[: len(h) // VAL_FOLDS]] = True
    is_val = is_val.to(h.device)
    if not is_val.any():
        raise ValueError(f"{len(h)} instances are too few for a validation part: pass a single penalty in l2_grid")
    min_loss, probe, best = math.inf, None, max(l2_grid)
    for l2 in track(sorted(l2_grid, reverse=True), "L2 penalties of the linear probe", len(l2_grid)):
        probe = _fit_logistic_regression(h[~is_val], labels[~is_val], num_classes, l2, probe)
        loss = cross_entropy(probe.logits(h[is_val]), labels[is_val]).item()
        if loss > min_loss:
            break
        min_loss, best = loss, l2
    return _fit_logistic_regression(h, labels, num_classes, best, probe)


def fit_regression_probe(
    h: Tensor,
    targets: Tensor,
    *,
    learning_rate: float = REGRESSION_PROBE_SETTINGS["learning_rate"],
    epochs: int = REGRESSION_PROBE_SETTINGS["epochs"],
    batch_size: int = 256,
    seed: int = 0,
) -> LinearRegressionProbe:
    """Fit a linear regressor from representations (n, d) to regression targets (n,) with an L1 loss.

    Examples:
        >>> h = torch.randn(200, 4)
        >>> fit_regression_probe(h, h.sum(1), learning_rate=0.1).error(h, h.sum(1)) < 0.05
        True
    """
    if h.dim() != 2 or targets.shape != h.shape[:1] or not len(h):
        got = f"{tuple(h.shape)} and {tuple(targets.shape)}"
        raise ValueError(f"representations must be (n, d) with n targets, got {got}")
    check_finite("representations", h)
    check_finite("targets", targets.float())
    x, y = h.float(), targets.float()
    mean, spread = x.mean(0), x.std(0, correction=0).clamp_min(1e-6)
    median = y.median()  # the constant with the smallest absolute error
    x, y = (x - mean) / spread, (y - median)[:, None]
    weight, bias = _fit_momentum_sgd(x, y, 1, _compute_l1_gradient, learning_rate, epochs, batch_size, seed)
    final = weight[0] / spread
    return LinearRegressionProbe(final, bias[0] + median - final @ mean)


def _compute_cross_entropy_gradient(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the gradient of the mean cross-entropy with respect to the logits (B, classes)."""
    gradient = logits.softmax(1)
    gradient.scatter_add_(1, labels[:, None], gradient.new_full((len(labels), 1), -1.0))
    return gradient.div_(len(labels))


def _compute_l1_gradient(predictions: Tensor, targets: Tensor) -> Tensor:
    """Return the gradient of the mean absolute error with respect to the predictions (B, 1)."""
    return (predictions - targets).sign_().div_(len(targets))


def _fit_momentum_sgd(
    x: Tensor,
    y: Tensor,
    num_outputs: int,
    gradient_fn: Callable[[Tensor, Tensor], Tensor],
    learning_rate: float,
    epochs: int,
    batch_size: int,
    seed: int,
    augment: FeatureStream | None = None,
) -> tuple[Tensor, Tensor]:
    """Fit the weight (outputs, d) and bias (outputs,) by SGD from zero with momentum 0.9 and a cosine schedule.

    Explicit gradients take a third to half of the time of autograd.
    """
    if epochs < 1 or batch_size < 1 or not learning_rate > 0:
        values = f"{epochs}, {batch_size} and {learning_rate}"
        raise ValueError(f"epochs, batch_size and learning_rate must be > 0, got {values}")
    weight, bias = x.new_zeros(num_outputs, x.shape[1]), x.new_zeros(num_outputs)
    weight_velocity, bias_velocity = torch.zeros_like(weight), torch.zeros_like(bias)
    generator = torch.Generator().manual_seed(seed)
    for epoch in track(range(epochs), "epochs of the linear probe", epochs):
        rate = warmup_cosine_lr(epoch, epochs, 0, learning_rate)
        order = torch.randperm(len(x), generator=generator).split(batch_size)
        batches = ((x.index_select(0, index.to(x.device)), index) for index in order)
        for features, index in batches if augment is None else augment(epoch, order):
            # weight @ features.T is faster than features @ weight.T, because weight has few rows.
            gradient = gradient_fn(torch.addmm(bias[:, None], weight, features.T).T, y[index.to(y.device)])
            weight_velocity.addmm_(gradient.T, features, beta=0.9)
            bias_velocity.mul_(0.9).add_(gradient.sum(0))
            weight.sub_(weight_velocity, alpha=rate)
            bias.sub_(bias_velocity, alpha=rate)
    return weight, bias


def sample_stratified(labels: Tensor, fraction: float, seed: int = 0) -> Tensor:
    """Return the indices of a random fraction of the labels (n,), stratified by class, with at least one per class.

    Examples:
        >>> labels = torch.arange(2).repeat_interleave(100)
        >>> labels[sample_stratified(labels, 0.02)]
        tensor([0, 0, 1, 1])
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction must be in (0, 1], got {fraction}")
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    classes, inverse, counts = labels.cpu()[shuffled].unique(return_inverse=True, return_counts=True)
    quota = fraction * counts.double()
    take = quota.floor().clamp_min(1).long()
    # The remaining labels go to the classes with the largest rounding loss.
    remaining = max(0, round(fraction * len(labels)) - int(take.sum()))
    take[(quota - take).argsort(descending=True, stable=True)[:remaining]] += 1
    chosen = [shuffled[inverse == i][: int(take[i])] for i in range(len(classes))]
    return torch.cat(chosen).sort().values.to(labels.device)


def _fit_logistic_regression(
    h: Tensor, labels: Tensor, num_classes: int, l2: float, start: LinearProbe | None = None
) -> LinearProbe:
    """Fit with an L2 penalty, starting from zero or from another probe."""
    h = h.float()
    mean, spread = h.mean(0), h.std(0, correction=0)
    scale = torch.where(spread > 1e-6 * spread.max(), 1 / spread, 0.0)  # constant features get 0
    x = (h - mean) * scale
    if start is None:
        weight, bias = x.new_zeros(num_classes, x.shape[1]), x.new_zeros(num_classes)
    else:
        weight, bias = start.weight * spread, start.bias + start.weight @ mean
    weight, bias = (t.clone().requires_grad_() for t in (weight, bias))
    optimizer = torch.optim.LBFGS(
        [weight, bias], max_iter=200, tolerance_grad=1e-4, tolerance_change=1e-7, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = cross_entropy(linear(x, weight, bias), labels) + l2 / 2 * weight.square().sum()
        value.backward()
        return value

    with torch.enable_grad():
        optimizer.step(loss)
    final = weight.detach() * scale
    return LinearProbe(final, bias.detach() - final @ mean, l2)
