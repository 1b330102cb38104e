"""Losses with random numbers that are functions of a seed and of the number of calls."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from manyviews.losses.base import MultiViewLoss


class KeyedLoss(MultiViewLoss):
    """Base class of losses with random numbers.

    The buffer `step` counts the calls in training mode. It is in the state dict, so that a resumed training draws the
    numbers of an uninterrupted one, and it is equal on all ranks, because all of them call the loss.
    """

    step: Tensor
    _evaluation_step: Tensor

    def __init__(self, temperature: float | Tensor | None = None, *, seed: int = 0, **options: Any) -> None:
        super().__init__(temperature, **options)
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise TypeError(f"seed must be an integer, got {seed!r}")
        self.seed = seed
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        # A buffer: inductor folds a constant into other random numbers than eager mode draws.
        self.register_buffer("_evaluation_step", torch.zeros((), dtype=torch.int64), persistent=False)

    def get_next_step(self, device: torch.device) -> Tensor:
        """Return the number of this call, from 1, as a tensor; 0 in evaluation mode, which does not count."""
        if not self.training:
            return self._evaluation_step.to(device)
        self.step.add_(1)
        # A copy, because the next call changes the buffer.
        return self.step.to(device, copy=True)
