"""Learning from labels: what contrastive training is compared with."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import cross_entropy, l1_loss

from manyviews.losses.gather import all_gather, ranks


class Supervised(nn.Module):
    """Cross-entropy of classes, mean absolute error of quantities; on many ranks, of the whole batch.

    Examples:
        >>> import torch
        >>> Supervised()(torch.zeros(4, 10), torch.arange(4)).item()
        2.3025851249694824
    """

    def forward(self, predictions: Tensor, labels: Tensor) -> Tensor:
        """The loss of predictions (B, outputs) and classes (B,), or (B, 1) and quantities (B,)."""
        group = ranks(True)
        if group is not None:
            predictions, labels = all_gather(predictions, group), all_gather(labels, group)
        if labels.is_floating_point():
            return l1_loss(predictions[:, 0], labels.to(predictions))
        return cross_entropy(predictions, labels)
