"""Batch norm over the batch of all ranks, where torch's own refuses: on a CPU.

On W ranks the statistics are those of one process with the whole batch, and so are the gradients once averaged.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, autograd, nn
from torch import distributed as dist
from torch.nn.modules.batchnorm import _BatchNorm


class _SumOverRanks(autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.contiguous().clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class RankBatchNorm(_BatchNorm):
    """Batch norm of (B, C, ...) with the statistics of all ranks; plain batch norm in a single process."""

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002
        if input.dim() < 2:
            raise ValueError(f"batch norm needs (batch, channels, ...), got shape {tuple(input.shape)}")

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        if not (self.training and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
            return super().forward(input)
        self._check_input_dim(input)
        over = [dim for dim in range(input.dim()) if dim != 1]
        x = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        channels, group = x.shape[1], dist.group.WORLD
        count = x.new_full((1,), x.numel() / channels)
        total = _SumOverRanks.apply(torch.cat([x.sum(over), count]), group)
        mean, rows = total[:-1] / total[-1], total[-1]
        shape = [1, channels] + [1] * (x.dim() - 2)
        # Squares about the mean, in a second exchange: E[x^2] - mean^2 would lose the digits of a small variance.
        centred = x - mean.view(shape)
        variance = _SumOverRanks.apply(centred.square().sum(over), group) / rows
        self._track(mean.detach(), variance.detach(), rows.detach())
        scale = torch.rsqrt(variance + self.eps)
        out = centred * (scale if self.weight is None else scale * self.weight).view(shape)
        return (out if self.bias is None else out + self.bias.view(shape)).to(input.dtype)

    def _track(self, mean: Tensor, variance: Tensor, rows: Tensor) -> None:
        """Move the running statistics as torch does: towards the unbiased variance."""
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        share = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean), share)
        self.running_var.lerp_((variance * rows / (rows - 1)).to(self.running_var), share)


def synchronised(model: nn.Module, device: torch.device | str) -> nn.Module:
    """The model with every batch norm made one over all ranks: torch's on CUDA, ours elsewhere."""
    if torch.device(device).type == "cuda":
        converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        return converted
    return _converted(model)


def _converted(module: nn.Module) -> nn.Module:
    if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)):
        norm = RankBatchNorm(
            module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats
        )
        # The same tensors, so that an optimiser made before still holds the right ones.
        norm._parameters, norm._buffers = module._parameters, module._buffers
        return norm.train(module.training)
    for name, child in module.named_children():
        setattr(module, name, _converted(child))
    return module
