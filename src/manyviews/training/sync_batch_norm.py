"""Synchronized batch norm on CPUs, where torch's `SyncBatchNorm` is not available.

The statistics over W ranks equal those of one process with the full batch, and so do the averaged gradients.
"""

from typing import Any

import torch
from torch import Tensor, autograd, nn
from torch import distributed as dist
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm


class _SyncBatchNormFunction(autograd.Function):
    """Batch norm of x (B, C, ...) with the mean and variance of all ranks, computed by torch's kernels."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        variance: Tensor,
        eps: float,
        count: float,
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mean, variance)
        ctx.eps, ctx.count = eps, count
        return batch_norm(x, mean, variance, weight, bias, training=False, eps=eps)

    @staticmethod
    @autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, variance = ctx.saved_tensors
        output_mask = [False, True, True]
        _, grad_weight, grad_bias = torch.ops.aten.native_batch_norm_backward(
            grad, x, weight, mean, variance, None, None, False, ctx.eps, output_mask
        )
        # The statistics depend on the samples of all ranks, and so does the gradient of x.
        sums = torch.cat([grad_weight, grad_bias])
        dist.all_reduce(sums, group=dist.group.WORLD)
        mean_grad_weight, mean_grad_bias = (sums / ctx.count).chunk(2)
        inverse_std = torch.rsqrt(variance + ctx.eps)
        # grad_x = grad_factor * grad + x_factor * x + constant
        grad_factor = inverse_std if weight is None else inverse_std * weight
        x_factor = -grad_factor * inverse_std * mean_grad_weight
        shape = [1, -1] + [1] * (x.dim() - 2)
        constant = (-grad_factor * mean_grad_bias - x_factor * mean).view(shape)
        grad_x = torch.addcmul(constant, x, x_factor.view(shape)).addcmul_(grad, grad_factor.view(shape))
        if weight is None:
            grad_weight = grad_bias = None
        return grad_x, grad_weight, grad_bias, None, None, None, None


class CPUSyncBatchNorm(_BatchNorm):
    """Batch norm of (B, C, ...) over all ranks; in a single process it is plain batch norm.

    Examples:
        >>> CPUSyncBatchNorm(8)(torch.randn(4, 8, 5, 5)).shape
        torch.Size([4, 8, 5, 5])
    """

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002
        if input.dim() < 2:
            raise ValueError(f"batch norm requires (batch, channels, ...), got shape {tuple(input.shape)}")

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        if not (self.training and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
            return super().forward(input)
        self._check_input_dim(input)
        dims = [dim for dim in range(input.dim()) if dim != 1]
        x = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        mean, variance, count = self._compute_statistics(x.detach(), dims)
        self._update_running_statistics(mean, variance, count)
        out: Tensor = _SyncBatchNormFunction.apply(x, self.weight, self.bias, mean, variance, self.eps, count)
        return out.to(input.dtype)

    @staticmethod
    def _compute_statistics(x: Tensor, dims: list[int]) -> tuple[Tensor, Tensor, float]:
        """Return mean, variance and number of samples over all ranks.

        Each rank's variance is about its local mean: E[x^2] - mean^2 would lose the digits of a small variance.
        """
        variance, mean = torch.var_mean(x, dims, correction=0)
        local = torch.stack([mean, variance, torch.full_like(mean, x.numel() / len(mean))])
        gathered = [torch.empty_like(local) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, local)
        means, variances, counts = torch.stack(gathered).unbind(1)
        fraction = counts / counts.sum(0)
        mean = (fraction * means).sum(0)
        variance = (fraction * (variances + (means - mean).square())).sum(0)
        return mean, variance, float(counts[:, 0].sum())

    def _update_running_statistics(self, mean: Tensor, variance: Tensor, count: float) -> None:
        """Update the running statistics as torch does, with the unbiased variance."""
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        momentum = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean), momentum)
        self.running_var.lerp_((variance * count / (count - 1)).to(self.running_var), momentum)


_PLAIN_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def convert_sync_batch_norm(model: nn.Module, device: torch.device | str) -> nn.Module:
    """Replace every batch norm of a model by a synchronized one: torch's on CUDA, `CPUSyncBatchNorm` elsewhere.

    Raises:
        ValueError: the model has another subclass of batch norm, such as timm's with an activation.

    Examples:
        >>> convert_sync_batch_norm(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)), "cpu")[1]
        CPUSyncBatchNorm(8, eps=1e-05, momentum=0.1, affine=True, bias=True, track_running_stats=True)
    """
    supported = (*_PLAIN_BATCH_NORMS, nn.SyncBatchNorm, CPUSyncBatchNorm)
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and type(module) not in supported:
            raise ValueError(
                f"{name} is of type {type(module).__name__}, which cannot be synchronized: use --no-sync-batch-norm"
            )
    if torch.device(device).type == "cuda":
        converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        return converted
    return _convert_module(model)


def _convert_module(module: nn.Module) -> nn.Module:
    if isinstance(module, _PLAIN_BATCH_NORMS):
        norm = CPUSyncBatchNorm(
            module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats
        )
        # Share the tensors, so that an existing optimizer still refers to them.
        norm._parameters, norm._buffers = module._parameters, module._buffers
        return norm.train(module.training)
    for name, child in module.named_children():
        setattr(module, name, _convert_module(child))
    return module
