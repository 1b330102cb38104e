"""Sentiment metrics under unambiguous names: "binary accuracy" has three different definitions in the literature.

For targets from -3 to 3 (MOSI, MOSEI): `Has0_acc_2` (>= 0 against < 0), `Non0_acc_2` (> 0 against < 0, without neutral
instances), `Acc_5` and `Acc_7` (clipped to [-2, 2] and [-3, 3], then rounded half to even). For targets from -1 to 1
(CH-SIMS), clipped first: `Mult_acc_2` (<= 0 against > 0), `Mult_acc_3` (thresholds -0.1 and 0.1), `Mult_acc_5`
(thresholds -0.7, -0.1, 0.1 and 0.7). F1 is the mean of the F1 of the classes, weighted by their number of instances.
"""

from typing import Literal

import torch
from torch import Tensor

from manyviews.utils import check_finite

SentimentScale = Literal["mosi", "sims"]
SIMS_CUTS = {"Mult_acc_2": (0.0,), "Mult_acc_3": (-0.1, 0.1), "Mult_acc_5": (-0.7, -0.1, 0.1, 0.7)}
"""Thresholds of CH-SIMS; each class includes its upper threshold."""


def compute_sentiment_metrics(predictions: Tensor, targets: Tensor, scale: SentimentScale = "mosi") -> dict[str, float]:
    """Compute all metrics of a scale for predictions and targets (n,).

    `Corr` is Pearson's correlation, and 0 if predictions or targets are constant. `Non0_acc_2` and `Non0_F1` are absent
    if every instance is neutral.

    Examples:
        >>> targets = torch.tensor([-1.0, 0.0, 2.0, 0.5])
        >>> metrics = compute_sentiment_metrics(torch.tensor([-0.5, 0.2, 2.2, -0.1]), targets)
        >>> metrics["Has0_acc_2"], round(metrics["MAE"], 3), round(metrics["Non0_acc_2"], 3)
        (0.75, 0.375, 0.667)
    """
    predictions, targets = _to_float64(predictions, targets)
    scores = _score_classes(_bin_classes(predictions, targets, scale))
    clip = _get_clip(scale)
    return {**scores, **compute_regression_metrics(predictions.clamp(-clip, clip), targets.clamp(-clip, clip))}


def compute_majority_baseline(train: Tensor, targets: Tensor, scale: SentimentScale = "mosi") -> dict[str, float]:
    """Compute the same metrics for constant predictions: the majority class and the median of training labels (m,).

    Examples:
        >>> compute_majority_baseline(torch.tensor([1.0, 2.0, -1.0]), torch.tensor([1.0, -1.0]))["Has0_acc_2"]
        0.5
    """
    (train, _), (targets, _) = _to_float64(train, train), _to_float64(targets, targets)
    train_classes, classes = _bin_classes(train, train, scale), _bin_classes(targets, targets, scale)
    for name, (_, test) in classes.items():
        majority = train_classes[name][1].mode().values if name in train_classes else test.new_zeros(())
        classes[name] = majority.expand_as(test), test
    clip = _get_clip(scale)
    error = (targets.clamp(-clip, clip) - train.clamp(-clip, clip).median()).abs().mean().item()
    return {**_score_classes(classes), "MAE": error, "Corr": 0.0}


def _to_float64(predictions: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    if predictions.shape != targets.shape or targets.dim() != 1 or not len(targets):
        shapes = f"{tuple(predictions.shape)} and {tuple(targets.shape)}"
        raise ValueError(f"predictions and targets must both be (n,), got {shapes}")
    check_finite("predictions", predictions.float())
    check_finite("targets", targets.float())
    # Round to float32 like the thresholds, so that 0.1 is not above 0.1.
    return predictions.detach().cpu().float().double(), targets.detach().cpu().float().double()


def _bin_classes(predictions: Tensor, targets: Tensor, scale: SentimentScale) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the classes of predictions and targets for each accuracy."""
    if scale == "sims":
        pair = predictions.clamp(-1, 1), targets.clamp(-1, 1)
        cuts = {name: torch.tensor(values).double() for name, values in SIMS_CUTS.items()}
        return {name: (torch.bucketize(pair[0], at), torch.bucketize(pair[1], at)) for name, at in cuts.items()}
    if scale != "mosi":
        raise ValueError(f"scale must be mosi or sims, got {scale!r}")
    not_neutral = targets != 0
    classes = {"Has0_acc_2": (predictions >= 0, targets >= 0)}
    if not_neutral.any():
        classes["Non0_acc_2"] = predictions[not_neutral] > 0, targets[not_neutral] > 0
    for name, limit in (("Acc_5", 2), ("Acc_7", 3)):
        classes[name] = predictions.clamp(-limit, limit).round(), targets.clamp(-limit, limit).round()
    return {name: (predicted.long(), true.long()) for name, (predicted, true) in classes.items()}


def _get_clip(scale: SentimentScale) -> float:
    return 1.0 if scale == "sims" else torch.inf


def _score_classes(classes: dict[str, tuple[Tensor, Tensor]]) -> dict[str, float]:
    """Return each accuracy, and the F1 of the binary ones, from classes of predictions and targets."""
    scores = {name: (predicted == true).double().mean().item() for name, (predicted, true) in classes.items()}
    for name in [name for name in classes if name.endswith("acc_2")]:
        scores["F1" if name.startswith("Mult") else name.replace("acc_2", "F1")] = compute_weighted_f1(*classes[name])
    return scores


def compute_regression_metrics(predictions: Tensor, targets: Tensor) -> dict[str, float]:
    """Compute the mean absolute error and Pearson's correlation of predictions (n,) with regression targets (n,).

    Examples:
        >>> compute_regression_metrics(torch.tensor([1.0, 3.0]), torch.tensor([1.0, 2.0]))["MAE"]
        0.5
    """
    predictions, targets = _to_float64(predictions, targets)
    error = (predictions - targets).abs().mean().item()
    x, y = predictions - predictions.mean(), targets - targets.mean()
    size = x.norm() * y.norm()
    return {"MAE": error, "Corr": (x @ y / size).item() if size > 0 else 0.0}


def compute_weighted_f1(predictions: Tensor, targets: Tensor) -> float:
    """Return the mean F1 of the classes (n,), weighted by their number of instances."""
    total = 0.0
    for label in targets.unique():
        is_predicted, is_true = predictions == label, targets == label
        f1 = 2 * (is_predicted & is_true).sum() / (is_predicted.sum() + is_true.sum())
        total += f1.item() * int(is_true.sum())
    return total / len(targets)
