"""Sentiment metrics under unambiguous names: "binary accuracy" has three different definitions in the literature.

For targets from -3 to 3 (MOSI, MOSEI): `Has0_acc_2` (>= 0 against < 0), `Non0_acc_2` (> 0 against < 0, without neutral
instances), `Acc_5` and `Acc_7` (clipped to [-2, 2] and [-3, 3], then rounded half to even). For targets from -1 to 1
(CH-SIMS), clipped first: `Mult_acc_2` (<= 0 against > 0), `Mult_acc_3` (thresholds -0.1 and 0.1), `Mult_acc_5`
(thresholds -0.7, -0.1, 0.1 and 0.7). F1 is the mean of the F1 of the classes, weighted by their number of instances.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from manyviews.utils import check_finite

SentimentScale = Literal["mosi", "sims"]
SIMS_CUTS = {"Mult_acc_2": (0.0,), "Mult_acc_3": (-0.1, 0.1), "Mult_acc_5": (-0.7, -0.1, 0.1, 0.7)}
"""Thresholds of CH-SIMS; each class includes its upper threshold."""


def compute_sentiment_metrics(predictions: Tensor, truth: Tensor, scale: SentimentScale = "mosi") -> dict[str, float]:
    """Compute all metrics of a scale for predictions and truth (n,).

    `Corr` is Pearson's correlation, and 0 if predictions or truth are constant. `Non0_acc_2` and `Non0_F1` are absent
    if every instance is neutral.

    Examples:
        >>> truth = torch.tensor([-1.0, 0.0, 2.0, 0.5])
        >>> metrics = compute_sentiment_metrics(torch.tensor([-0.5, 0.2, 2.2, -0.1]), truth)
        >>> metrics["Has0_acc_2"], round(metrics["MAE"], 3), round(metrics["Non0_acc_2"], 3)
        (0.75, 0.375, 0.667)
    """
    predictions, truth = _to_float64(predictions, truth)
    classes = _bin_classes(predictions, truth, scale)
    if scale == "sims":
        predictions, truth = predictions.clamp(-1, 1), truth.clamp(-1, 1)
    scores = {name: _compute_accuracy(*pair) for name, pair in classes.items()}
    scores |= {
        _get_f1_name(name): compute_weighted_f1(*pair) for name, pair in classes.items() if name.endswith("acc_2")
    }
    return {**scores, **compute_regression_metrics(predictions, truth)}


def compute_majority_baseline(train: Tensor, truth: Tensor, scale: SentimentScale = "mosi") -> dict[str, float]:
    """Compute the same metrics for constant predictions: the majority class and the median of training labels (m,).

    Examples:
        >>> compute_majority_baseline(torch.tensor([1.0, 2.0, -1.0]), torch.tensor([1.0, -1.0]))["Has0_acc_2"]
        0.5
    """
    labels, truth = _to_float64(train, train)[0], _to_float64(truth, truth)[0]
    train_classes, test_classes = _bin_classes(labels, labels, scale), _bin_classes(truth, truth, scale)
    scores: dict[str, float] = {}
    for name, (_, test) in test_classes.items():
        majority = train_classes[name][1].mode().values if name in train_classes else test.new_zeros(())
        scores[name] = _compute_accuracy(majority.expand_as(test), test)
        if name.endswith("acc_2"):
            scores[_get_f1_name(name)] = compute_weighted_f1(majority.expand_as(test), test)
    clip = 1.0 if scale == "sims" else torch.inf
    error = (truth.clamp(-clip, clip) - labels.clamp(-clip, clip).median()).abs().mean().item()
    return {**scores, "MAE": error, "Corr": 0.0}


def _to_float64(predictions: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    if predictions.shape != truth.shape or truth.dim() != 1 or not len(truth):
        shapes = f"{tuple(predictions.shape)} and {tuple(truth.shape)}"
        raise ValueError(f"predictions and truth must both be (n,), got {shapes}")
    check_finite("predictions", predictions.float())
    check_finite("truth", truth.float())
    # Round to float32 like the thresholds, so that 0.1 is not above 0.1.
    return predictions.detach().cpu().float().double(), truth.detach().cpu().float().double()


def _bin_classes(predictions: Tensor, truth: Tensor, scale: SentimentScale) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the classes of predictions and truth for each accuracy."""
    if scale == "sims":
        pair = predictions.clamp(-1, 1), truth.clamp(-1, 1)
        cuts = {name: torch.tensor(values).double() for name, values in SIMS_CUTS.items()}
        return {name: (torch.bucketize(pair[0], at), torch.bucketize(pair[1], at)) for name, at in cuts.items()}
    if scale != "mosi":
        raise ValueError(f"scale must be mosi or sims, got {scale!r}")
    not_neutral = truth != 0
    classes = {"Has0_acc_2": (predictions >= 0, truth >= 0)}
    if not_neutral.any():
        classes["Non0_acc_2"] = predictions[not_neutral] > 0, truth[not_neutral] > 0
    for name, limit in (("Acc_5", 2), ("Acc_7", 3)):
        classes[name] = predictions.clamp(-limit, limit).round(), truth.clamp(-limit, limit).round()
    return {name: (one.long(), other.long()) for name, (one, other) in classes.items()}


def _get_f1_name(accuracy: str) -> str:
    return "F1" if accuracy.startswith("Mult") else accuracy.replace("acc_2", "F1")


def _compute_accuracy(predictions: Tensor, truth: Tensor) -> float:
    return (predictions == truth).double().mean().item()


def compute_regression_metrics(predictions: Tensor, truth: Tensor) -> dict[str, float]:
    """Compute the mean absolute error and Pearson's correlation of predictions (n,) with regression targets (n,).

    Examples:
        >>> compute_regression_metrics(torch.tensor([1.0, 3.0]), torch.tensor([1.0, 2.0]))["MAE"]
        0.5
    """
    predictions, truth = _to_float64(predictions, truth)
    return {"MAE": (predictions - truth).abs().mean().item(), "Corr": _compute_correlation(predictions, truth)}


def compute_weighted_f1(predictions: Tensor, truth: Tensor) -> float:
    """Return the mean F1 of the classes (n,), weighted by their number of instances."""
    total = 0.0
    for label in truth.unique():
        both, either = (
            ((predictions == label) & (truth == label)).sum(),
            (predictions == label).sum() + (truth == label).sum(),
        )
        total += (2 * both / either).item() * int((truth == label).sum())
    return total / len(truth)


def _compute_correlation(predictions: Tensor, truth: Tensor) -> float:
    one, other = predictions - predictions.mean(), truth - truth.mean()
    size = one.norm() * other.norm()
    return (one @ other / size).item() if size > 0 else 0.0
