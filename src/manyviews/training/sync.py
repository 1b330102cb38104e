"""Batch norm over the batch of all ranks, where torch's own refuses: on a CPU.

On W ranks the statistics are those of one process with the whole batch, and so are the gradients once averaged.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, autograd, nn
from torch import distributed as dist
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm


class _NormalisedOverRanks(autograd.Function):
    """Batch norm of x (B, C, ...) by the mean and variance over the rows of all ranks, by torch's own kernels."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        variance: Tensor,
        eps: float,
        rows: float,
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mean, variance)
        ctx.eps, ctx.rows = eps, rows
        return batch_norm(x, mean, variance, weight, bias, training=False, eps=eps)

    @staticmethod
    @autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, variance = ctx.saved_tensors
        wanted = [False, True, True]
        _, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward(
            grad, x, weight, mean, variance, None, None, False, ctx.eps, wanted
        )
        # The statistics depend on every row of every rank: so do the gradients.
        sums = torch.cat([of_weight, of_bias])
        dist.all_reduce(sums, group=dist.group.WORLD)
        slope, level = (sums / ctx.rows).chunk(2)
        inverse = torch.rsqrt(variance + ctx.eps)
        of_grad = inverse if weight is None else inverse * weight
        of_x = -of_grad * inverse * slope
        shape = [1, -1] + [1] * (x.dim() - 2)
        constant = (-of_grad * level - of_x * mean).view(shape)
        out = torch.addcmul(constant, x, of_x.view(shape)).addcmul_(grad, of_grad.view(shape))
        return out, None if weight is None else of_weight, None if weight is None else of_bias, None, None, None, None


class RankBatchNorm(_BatchNorm):
    """Batch norm of (B, C, ...) with the statistics of all ranks; plain batch norm in a single process.

    Examples:
        >>> RankBatchNorm(8)(torch.randn(4, 8, 5, 5)).shape
        torch.Size([4, 8, 5, 5])
    """

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002
        if input.dim() < 2:
            raise ValueError(f"batch norm needs (batch, channels, ...), got shape {tuple(input.shape)}")

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        if not (self.training and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
            return super().forward(input)
        self._check_input_dim(input)
        over = [dim for dim in range(input.dim()) if dim != 1]
        x = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        mean, variance, rows = self._statistics(x.detach(), over)
        self._track(mean, variance, rows)
        out: Tensor = _NormalisedOverRanks.apply(x, self.weight, self.bias, mean, variance, self.eps, rows)
        return out.to(input.dtype)

    @staticmethod
    def _statistics(x: Tensor, over: list[int]) -> tuple[Tensor, Tensor, float]:
        """Mean, variance and number of rows over all ranks.

        Each rank's squares are about its own mean: E[x^2] - mean^2 would lose the digits of a small variance.
        """
        variance, mean = torch.var_mean(x, over, correction=0)
        own = torch.stack([mean, variance, torch.full_like(mean, x.numel() / len(mean))])
        every = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(every, own)
        means, variances, counts = torch.stack(every).unbind(1)
        share = counts / counts.sum(0)
        mean = (share * means).sum(0)
        variance = (share * (variances + (means - mean).square())).sum(0)
        return mean, variance, float(counts[:, 0].sum())

    def _track(self, mean: Tensor, variance: Tensor, rows: float) -> None:
        """Move the running statistics as torch does: towards the unbiased variance."""
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        share = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean), share)
        self.running_var.lerp_((variance * rows / (rows - 1)).to(self.running_var), share)


_PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def synchronised(model: nn.Module, device: torch.device | str) -> nn.Module:
    """The model with every batch norm made one over all ranks: torch's on CUDA, ours elsewhere.

    Raises:
        ValueError: a batch norm does more than torch's, such as timm's with their activation: it would be lost.

    Examples:
        >>> synchronised(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)), "cpu")[1]
        RankBatchNorm(8, eps=1e-05, momentum=0.1, affine=True, bias=True, track_running_stats=True)
    """
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and type(module) not in (*_PLAIN, nn.SyncBatchNorm, RankBatchNorm):
            kind = type(module).__name__
            raise ValueError(f"{name} is a {kind}, which cannot be synchronised over ranks: try --no-sync-batch-norm")
    if torch.device(device).type == "cuda":
        converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        return converted
    return _converted(model)


def _converted(module: nn.Module) -> nn.Module:
    if isinstance(module, _PLAIN):
        norm = RankBatchNorm(
            module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats
        )
        # The same tensors, so that an optimiser made before still holds the right ones.
        norm._parameters, norm._buffers = module._parameters, module._buffers
        return norm.train(module.training)
    for name, child in module.named_children():
        setattr(module, name, _converted(child))
    return module
