"""Optimisers, which parameters they decay, and the learning rate of each step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

SHARE = 0.01
"""Of the learning rate, for single numbers; all of it for AdamW, whose steps do not depend on the gradient's size."""


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameters in groups: weights, which decay and adapt; biases and norms, which do neither; and single numbers.

    A single number, such as a learned temperature, stands under the whole loss: at the rate of the weights it jumps, so
    its group has a `share` of it.

    Examples:
        >>> groups = parameter_groups(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), 1e-6)
        >>> [(len(group["params"]), group["weight_decay"], group["adapt"]) for group in groups]
        [(1, 1e-06, True), (3, 0.0, False)]
    """
    learned = [p for p in model.parameters() if p.requires_grad]
    numbers = [p for p in learned if p.dim() == 0]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in learned if p.dim() > 1], "weight_decay": weight_decay, "adapt": True},
        {"params": [p for p in learned if p.dim() == 1], "weight_decay": 0.0, "adapt": False},
    ]
    return groups + [{"params": numbers, "weight_decay": 0.0, "adapt": False, "share": SHARE}] * bool(numbers)


class LARS(Optimizer):
    """SGD with momentum whose step is scaled, for each weight, by |weight| / |gradient| (You et al. 2017).

    Args:
        params: parameters, or groups of them; a group with `adapt` False is plain SGD.
        lr: learning rate.
        momentum: of the scaled gradients.
        weight_decay: added to the gradient before it is scaled.
        trust: the share of a weight's norm that a step of learning rate 1 may change.

    Examples:
        >>> weight = nn.Parameter(torch.ones(2, 2))
        >>> optimiser = LARS([weight], lr=1.0, trust=0.1)
        >>> (weight.sum() * 1000).backward()      # however large the gradient
        >>> optimiser.step()
        >>> weight.data
        tensor([[0.9000, 0.9000],
                [0.9000, 0.9000]])
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 1e-3,
    ) -> None:
        for name, value in (("lr", lr), ("momentum", momentum), ("weight_decay", weight_decay), ("trust", trust)):
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must be a finite number >= 0, got {value}")
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust, "adapt": True}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                change = weight.grad.add(weight, alpha=group["weight_decay"])
                if group["adapt"]:
                    # By the decayed gradient's norm; a weight or gradient of zero is left to plain SGD.
                    scale = group["trust"] * weight.norm() / change.norm()
                    change *= torch.where(torch.isfinite(scale) & (scale > 0), scale, 1.0)
                state = self.state[weight]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(weight)
                state["momentum"].mul_(group["momentum"]).add_(change)
                weight.sub_(state["momentum"], alpha=group["lr"])
        return loss


def learning_rate(step: int, steps: int, warmup: int, peak: float) -> float:
    """Linear warm-up to `peak` over the first steps, then a cosine to zero: the rate of step 0, 1, ..., steps - 1.

    Examples:
        >>> [round(learning_rate(step, 6, 2, 1.0), 3) for step in range(6)]
        [0.5, 1.0, 1.0, 0.854, 0.5, 0.146]
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))
