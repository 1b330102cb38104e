"""Sentiment metrics under their real names: what is called binary accuracy means three different things in this field.

For quantities from -3 to 3 (MOSI, MOSEI): `Has0_acc_2` (>= 0 against < 0), `Non0_acc_2` (> 0 against < 0, neutral
instances left out), `Acc_5` and `Acc_7` (clipped to two and three, then rounded, halves to even). For quantities from
-1 to 1 (CH-SIMS), clipped first: `Mult_acc_2` (<= 0 against > 0), `Mult_acc_3` (cuts at -0.1 and 0.1), `Mult_acc_5`
(cuts at -0.7, -0.1, 0.1 and 0.7). F1 is the mean of the classes' F1, weighted by how many instances each has.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from manyviews.evaluation.knn import check_finite

Scale = Literal["mosi", "sims"]
CUTS = {"Mult_acc_2": (0.0,), "Mult_acc_3": (-0.1, 0.1), "Mult_acc_5": (-0.7, -0.1, 0.1, 0.7)}
"""Of CH-SIMS; a class reaches up to its cut, which is part of it."""


def sentiment_metrics(predictions: Tensor, truth: Tensor, scale: Scale = "mosi") -> dict[str, float]:
    """All metrics of a scale, for predictions and truth (n,).

    `Corr` is Pearson's, and 0 where predictions or truth are all the same. Where every instance is neutral there is no
    `Non0_acc_2` and no `Non0_F1`.

    Examples:
        >>> truth = torch.tensor([-1.0, 0.0, 2.0, 0.5])
        >>> found = sentiment_metrics(torch.tensor([-0.5, 0.2, 2.2, -0.1]), truth)
        >>> found["Has0_acc_2"], round(found["MAE"], 3), round(found["Non0_acc_2"], 3)
        (0.75, 0.375, 0.667)
    """
    guess, known = _numbers(predictions, truth)
    found = _classes(guess, known, scale)
    if scale == "sims":
        guess, known = guess.clamp(-1, 1), known.clamp(-1, 1)
    scores = {name: _accuracy(*pair) for name, pair in found.items()}
    scores |= {_f1_name(name): weighted_f1(*pair) for name, pair in found.items() if name.endswith("acc_2")}
    return {**scores, **quantity_metrics(guess, known)}


def majority_baseline(train: Tensor, truth: Tensor, scale: Scale = "mosi") -> dict[str, float]:
    """The same metrics for one who knows the training labels (m,) alone: their commonest class, their median.

    Examples:
        >>> majority_baseline(torch.tensor([1.0, 2.0, -1.0]), torch.tensor([1.0, -1.0]))["Has0_acc_2"]
        0.5
    """
    labels, known = _numbers(train, train)[0], _numbers(truth, truth)[0]
    of_train, of_truth = _classes(labels, labels, scale), _classes(known, known, scale)
    scores: dict[str, float] = {}
    for name, (_, asked) in of_truth.items():
        guess = of_train[name][1].mode().values.expand_as(asked) if name in of_train else asked.new_zeros(asked.shape)
        scores[name] = _accuracy(guess, asked)
        if name.endswith("acc_2"):
            scores[_f1_name(name)] = weighted_f1(guess, asked)
    clip = 1.0 if scale == "sims" else torch.inf
    error = (known.clamp(-clip, clip) - labels.clamp(-clip, clip).median()).abs().mean().item()
    return {**scores, "MAE": error, "Corr": 0.0}


def _numbers(predictions: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    if predictions.shape != truth.shape or truth.dim() != 1 or not len(truth):
        shapes = f"{tuple(predictions.shape)} and {tuple(truth.shape)}"
        raise ValueError(f"predictions and truth must both be (n,), got {shapes}")
    check_finite("predictions", predictions.float())
    check_finite("truth", truth.float())
    # Cuts are numbers of float32, as labels are: 0.1 is not above 0.1.
    return predictions.detach().cpu().float().double(), truth.detach().cpu().float().double()


def _classes(guess: Tensor, known: Tensor, scale: Scale) -> dict[str, tuple[Tensor, Tensor]]:
    """For each accuracy the classes of predictions and truth."""
    if scale == "sims":
        pair = guess.clamp(-1, 1), known.clamp(-1, 1)
        cuts = {name: torch.tensor(values).double() for name, values in CUTS.items()}
        return {name: (torch.bucketize(pair[0], at), torch.bucketize(pair[1], at)) for name, at in cuts.items()}
    if scale != "mosi":
        raise ValueError(f"scale must be mosi or sims, got {scale!r}")
    not_neutral = known != 0
    found = {"Has0_acc_2": (guess >= 0, known >= 0)}
    if not_neutral.any():
        found["Non0_acc_2"] = guess[not_neutral] > 0, known[not_neutral] > 0
    for name, most in (("Acc_5", 2), ("Acc_7", 3)):
        found[name] = guess.clamp(-most, most).round(), known.clamp(-most, most).round()
    return {name: (one.long(), other.long()) for name, (one, other) in found.items()}


def _f1_name(accuracy: str) -> str:
    return "F1" if accuracy.startswith("Mult") else accuracy.replace("acc_2", "F1")


def _accuracy(guess: Tensor, known: Tensor) -> float:
    return (guess == known).double().mean().item()


def quantity_metrics(predictions: Tensor, truth: Tensor) -> dict[str, float]:
    """Of quantities that are no sentiment: the mean absolute error, and Pearson's correlation.

    Examples:
        >>> quantity_metrics(torch.tensor([1.0, 3.0]), torch.tensor([1.0, 2.0]))["MAE"]
        0.5
    """
    guess, known = _numbers(predictions, truth)
    return {"MAE": (guess - known).abs().mean().item(), "Corr": _correlation(guess, known)}


def weighted_f1(guess: Tensor, known: Tensor) -> float:
    """The mean of the classes' F1 (classes (n,) both), weighted by how many instances each has."""
    total = 0.0
    for label in known.unique():
        both, either = ((guess == label) & (known == label)).sum(), (guess == label).sum() + (known == label).sum()
        total += (2 * both / either).item() * int((known == label).sum())
    return total / len(known)


def _correlation(guess: Tensor, known: Tensor) -> float:
    one, other = guess - guess.mean(), known - known.mean()
    size = one.norm() * other.norm()
    return (one @ other / size).item() if size > 0 else 0.0
