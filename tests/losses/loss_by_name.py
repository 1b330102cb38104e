"""Losses by name that need only embeddings and a mask."""

from typing import Any

import torch
from torch import Tensor

from manyviews import losses
from manyviews.losses import MultiViewLoss, SupConLoss


class SupConWithDistinctLabels(SupConLoss):
    """SupCon in which each instance has its own label."""

    def forward(self, z: Tensor, mask: Tensor | None = None, labels: Tensor | None = None) -> Tensor:
        return super().forward(z, mask, torch.arange(len(z), device=z.device) if labels is None else labels)


def get_loss(name: str, **options: Any) -> MultiViewLoss:
    return SupConWithDistinctLabels(**options) if name == "supcon" else losses.get_loss(name, **options)
