"""Fused predictions of several modalities, which a weak modality does not make worse.

The candidates are one probe on the concatenated representations of all modalities, and the mean of the predictions of
probes on single modalities (log-probabilities of classes, or regression targets) for every subset of the modalities.
The candidate with the smallest error on validation instances is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import l1_loss, nll_loss

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
    """Choose how to fuse the `modalities`: fit to `train`, compare on `valid`. Of equal candidates the first is chosen.

    Examples:
        >>> from manyviews.metrics import fit_regression_probe
        >>> labels = torch.randn(200)
        >>> h = torch.stack([labels, torch.randn(200)], 1)[..., None]  # the second modality is noise
        >>> part = EncodedInstances(h, torch.ones(200, 2, dtype=torch.bool), labels)
        >>> choose_fusion(lambda h, labels: fit_regression_probe(h, labels).predict, part, part, [0, 1])
        (0,)
    """
    subsets = [tuple(modalities[i] for i in subset) for subset in list_modality_subsets(len(modalities))]
    # The larger subsets first: fewer instances lack all modalities of them.
    candidates = [CONCATENATION, *reversed(subsets)]
    predictions = predict_fusions(fit, train, valid, candidates)
    errors = [_compute_error(prediction, valid.labels) for prediction in predictions]
    return candidates[min(range(len(candidates)), key=errors.__getitem__)]


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


def _compute_error(predictions: Tensor, labels: Tensor) -> float:
    """Return the cross-entropy of log-probabilities, or the mean absolute error of regression targets.

    A mean of log-probabilities is less confident than each of them. So that candidates are compared by their order of
    classes, the cross-entropy is the smallest over factors of the log-probabilities.
    """
    if labels.is_floating_point():
        return l1_loss(predictions, labels.to(predictions)).item()
    return min(nll_loss((factor * predictions).log_softmax(1), labels.long()).item() for factor in CONFIDENCE_FACTORS)
