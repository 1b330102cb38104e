"""Optimizers, their parameter groups, and the learning rate schedule."""

import math
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from manyviews.training.config import Config

SCALAR_LR_MULT = 0.01
"""Learning rate multiplier of scalar parameters under SGD and LARS; AdamW's steps are independent of gradient size."""


def build_optimizer(config: Config, model: nn.Module, lr_scales: Mapping[Tensor, float]) -> Optimizer:
    """Build the optimizer; the trainer sets its learning rate at every step."""
    scalar_lr_mult = 1.0 if config.optimizer == "adamw" else SCALAR_LR_MULT
    groups = build_parameter_groups(model, config.weight_decay or 0.0, lr_scales, scalar_lr_mult)
    if config.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=0.0)
    if config.optimizer == "lars":
        return LARS(groups, lr=0.0, momentum=config.momentum, trust_coefficient=config.lars_trust_coefficient)
    return torch.optim.SGD(groups, lr=0.0, momentum=config.momentum)


def build_parameter_groups(
    model: nn.Module,
    weight_decay: float,
    lr_scales: Mapping[Tensor, float] = MappingProxyType({}),
    scalar_lr_mult: float = SCALAR_LR_MULT,
) -> list[dict[str, Any]]:
    """Group parameters: weights (with decay, and LARS scaling), biases and norms (without), and scalars.

    `lr_mult` of a group multiplies the learning rate. The whole loss depends on a scalar such as a learned temperature,
    which diverges at the learning rate of the weights. Parameters in `lr_scales` are in groups of their own.

    Examples:
        >>> groups = build_parameter_groups(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), 1e-6)
        >>> [(len(group["params"]), group["weight_decay"], group["lars_adapt"]) for group in groups]
        [(1, 1e-06, True), (3, 0.0, False)]
    """
    members: dict[tuple[float, int], list[nn.Parameter]] = {(1.0, 2): [], (1.0, 1): []}
    for parameter in model.parameters():
        if parameter.requires_grad:
            key = lr_scales.get(parameter, 1.0), min(parameter.dim(), 2)
            members.setdefault(key, []).append(parameter)
    return [
        {
            "params": part,
            "weight_decay": weight_decay if dim == 2 else 0.0,
            "lars_adapt": dim == 2,
            "lr_mult": scale * (1.0 if dim else scalar_lr_mult),
        }
        for (scale, dim), part in members.items()
    ]


class LARS(Optimizer):
    """SGD with momentum whose step is scaled, for each weight, by |weight| / |gradient| (You et al. 2017).

    Args:
        params: parameters, or groups of them; groups with `lars_adapt` False use plain SGD.
        lr: learning rate.
        momentum: momentum of the scaled gradients.
        weight_decay: weight decay, added to the gradient before scaling.
        trust_coefficient: norm of a step at learning rate 1, relative to the norm of the weight.

    Examples:
        >>> weight = nn.Parameter(torch.ones(2, 2))
        >>> optimizer = LARS([weight], lr=1.0, trust_coefficient=0.1)
        >>> (weight.sum() * 1000).backward()      # the size of the gradient has no effect
        >>> optimizer.step()
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
        trust_coefficient: float = 1e-3,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust_coefficient": trust_coefficient,
        }
        for name, value in defaults.items():
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must be a finite number >= 0, got {value}")
        super().__init__(params, defaults | {"lars_adapt": True})

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
                update = weight.grad.add(weight, alpha=group["weight_decay"])
                if group["lars_adapt"]:
                    # The norm includes weight decay; zero weights and zero gradients use plain SGD.
                    scale = group["trust_coefficient"] * weight.norm() / update.norm()
                    update *= torch.where(torch.isfinite(scale) & (scale > 0), scale, 1.0)
                state = self.state[weight]
                if not state:
                    state["momentum"] = torch.zeros_like(weight)
                state["momentum"].mul_(group["momentum"]).add_(update)
                weight.sub_(state["momentum"], alpha=group["lr"])
        return loss
