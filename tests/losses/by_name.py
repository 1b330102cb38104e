"""Losses by name that are called with embeddings and a mask alone."""

from typing import Any

import torch
from torch import Tensor

from manyviews.losses import Objective, SupCon, get_objective


class SupConOfOwnLabels(SupCon):
    """Each instance has a label of its own."""

    def forward(self, z: Tensor, present: Tensor | None = None, labels: Tensor | None = None) -> Tensor:
        return super().forward(z, present, torch.arange(len(z), device=z.device) if labels is None else labels)


def get_loss(name: str, **options: Any) -> Objective:
    return SupConOfOwnLabels(**options) if name == "supcon" else get_objective(name, **options)
