"""Losses by name that need only embeddings and a mask, and are functions of them."""

from typing import Any

import torch
from torch import Tensor

from manyviews import losses
from manyviews.losses import LOSSES, EnergyLoss, MultiViewLoss, SupConLoss


class SupConWithDistinctLabels(SupConLoss):
    """SupCon in which each instance has its own label."""

    def forward(
        self,
        z: Tensor,
        mask: Tensor | None = None,
        labels: Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        labels = torch.arange(len(z), device=z.device) if labels is None else labels
        return super().forward(z, mask, labels, **options)


_DEFAULTS = {name: losses.get_loss(name) for name in LOSSES}
ENERGY_LOSSES = [name for name, loss in _DEFAULTS.items() if isinstance(loss, EnergyLoss)]
WITH_TEMPERATURE = [name for name, loss in _DEFAULTS.items() if loss.temperature is not None]
MANY_VIEWS = [name for name, loss in _DEFAULTS.items() if loss.max_views > 2]


def get_loss(name: str, **options: Any) -> MultiViewLoss:
    """Create a loss, without the temperature if it has none, and in evaluation mode if it draws random numbers."""
    if name in LOSSES and name not in WITH_TEMPERATURE:
        options = {key: value for key, value in options.items() if "temperature" not in key}
    loss = SupConWithDistinctLabels(**options) if name == "supcon" else losses.get_loss(name, **options)
    return loss.eval() if hasattr(loss, "step") else loss


def limit_views(name: str, views: int) -> int:
    """Return the number of views closest to `views` that a loss supports."""
    loss = losses.get_loss(name)
    return int(max(loss.min_views, min(views, loss.max_views)))
