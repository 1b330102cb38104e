"""Supervised loss, the baseline of contrastive training."""

from torch import Tensor, nn
from torch.nn.functional import cross_entropy, l1_loss

from manyviews.losses._distributed import all_gather, has_ranks


class SupervisedLoss(nn.Module):
    """Cross-entropy of classes, or mean absolute error of regression targets; on several ranks, of the global batch.

    Examples:
        >>> import torch
        >>> SupervisedLoss()(torch.zeros(4, 10), torch.arange(4)).item()
        2.3025851249694824
    """

    def forward(self, predictions: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss of predictions (B, classes) and labels (B,), or (B, 1) and regression targets (B,)."""
        if has_ranks():
            predictions, labels = all_gather(predictions), all_gather(labels)
        if labels.is_floating_point():
            return l1_loss(predictions[:, 0], labels.to(predictions))
        return cross_entropy(predictions, labels)
