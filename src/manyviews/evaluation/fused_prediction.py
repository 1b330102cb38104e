"""Fused predictions of several modalities, which a weak modality does not make worse.

The candidates are one probe on the concatenated representations of all modalities, and the mean of the predictions of
probes on single modalities (log-probabilities of classes, or regression targets) for every subset of the modalities.
The choice is made on validation instances, and prefers the concatenation to candidates that are not clearly better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import nll_loss

from manyviews.evaluation.modality_features import list_modality_subsets
from manyviews.metrics import VAL_FOLDS

Predictor: TypeAlias = Callable[[Tensor], Tensor]
"""Maps representations (n, d) to log-probabilities of classes (n, C), or to regression targets (n,)."""
FitPredictor: TypeAlias = Callable[[Tensor, Tensor], Predictor]
"""Fits a predictor to representations (n, d) and labels (n,)."""
Fusion: TypeAlias = tuple[int, ...]
"""Positions of the modalities whose predictions are averaged; empty for a probe on the concatenation of all."""
CONCATENATION: Fusion = ()
CONFIDENCE_FACTORS = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)
"""Factors of log-probabilities, of which the best is used to compare candidates."""
MAX_STANDARD_ERRORS = 1.0


@dataclass(frozen=True)
class EncodedInstances:
    """Representations (n, K, d) of K modalities, the mask (n, K) and the labels (n,).

    Missing representations are the mean of the training split.
    """

    h: Tensor
    mask: Tensor
    labels: Tensor

    def select(self, index: Tensor) -> EncodedInstances:
        return EncodedInstances(self.h[index], self.mask[index], self.labels[index])


def average_predictions(predictions: Tensor, mask: Tensor) -> Tensor:
    """Average predictions (n, K, ...) over the modalities in the mask (n, K), or over all if an instance has none.

    Examples:
        >>> average_predictions(torch.tensor([[1.0, 3.0], [1.0, 3.0]]), torch.tensor([[True, True], [True, False]]))
        tensor([2., 1.])
    """
    weight = torch.where(mask.any(1, keepdim=True), mask, True).to(predictions)
    weight = (weight / weight.sum(1, keepdim=True)).view(*weight.shape, *[1] * (predictions.dim() - 2))
    return (predictions * weight).sum(1)


def choose_fusion(
    fit: FitPredictor, train: EncodedInstances, valid: EncodedInstances, modalities: Sequence[int]
) -> Fusion:
    """Choose how to fuse the `modalities`: fit to `train`, compare on `valid`.

    Candidates are in the order of preference: the concatenation, then the larger subsets. The first one is chosen whose
    error exceeds the smallest by no more than `MAX_STANDARD_ERRORS` standard errors of their difference, because the
    smallest of many errors on few instances is often so by chance.
    """
    subsets = [tuple(modalities[i] for i in subset) for subset in list_modality_subsets(len(modalities))]
    candidates = [CONCATENATION, *reversed(subsets)]
    predictions = predict_fusions(fit, train, valid, candidates)
    errors = torch.stack([_compute_errors(prediction, valid.labels) for prediction in predictions])
    excess = errors - errors[errors.mean(1).argmin()]
    standard_error = excess.std(1, correction=0) / len(valid.labels) ** 0.5
    is_good = excess.mean(1) <= MAX_STANDARD_ERRORS * standard_error
    return candidates[int(is_good.nonzero()[0])]


def predict_fusions(
    fit: FitPredictor, train: EncodedInstances, test: EncodedInstances, fusions: Sequence[Fusion]
) -> Iterator[Tensor]:
    """Yield the predictions of each fusion for `test`, with probes that are fitted to `train`.

    The probe of a modality is fitted to the instances that have it, or to all if they are too few.
    """
    used, single = sorted({i for fusion in fusions for i in fusion}), {}
    for i in used:
        exists = train.mask[:, i]
        part = train.select(exists) if int(exists.sum()) >= 2 * VAL_FOLDS else train
        single[i] = fit(part.h[:, i], part.labels)(test.h[:, i])
    for fusion in fusions:
        if fusion == CONCATENATION:
            yield fit(train.h.flatten(1), train.labels)(test.h.flatten(1))
        else:
            yield average_predictions(torch.stack([single[i] for i in fusion], 1), test.mask[:, list(fusion)])


def describe_fusion(fusion: Fusion, names: Sequence[str]) -> str:
    """Describe a fusion.

    Examples:
        >>> describe_fusion((0, 2), ["text", "audio", "video"]), describe_fusion((1,), ["text", "audio"])
        ('the mean prediction of text and video', 'the prediction of audio alone')
    """
    if fusion == CONCATENATION:
        return "a probe on the concatenation of all modalities"
    if len(fusion) == 1:
        return f"the prediction of {names[fusion[0]]} alone"
    *first, last = (names[i] for i in fusion)
    return f"the mean prediction of {', '.join(first)} and {last}"


def _compute_errors(predictions: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of log-probabilities, or the absolute error of regression targets, of each instance.

    A mean of log-probabilities is less confident than each of them. So that candidates are compared by their order of
    classes, the log-probabilities are multiplied by the factor with the smallest cross-entropy.
    """
    if labels.is_floating_point():
        return (predictions.double() - labels.double()).abs()
    scaled = [(factor * predictions.double()).log_softmax(1) for factor in CONFIDENCE_FACTORS]
    errors = torch.stack([nll_loss(logs, labels.long(), reduction="none") for logs in scaled])
    return errors[errors.mean(1).argmin()]
