"""Sums, means and log-sum-exps that ignore missing entries, with finite gradients."""

from typing import Any

import torch
from torch import Tensor, autograd


class _LogSumExp(autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, dim: int) -> Tensor:
        total = torch.logsumexp(values, dim)
        ctx.dim = dim
        ctx.save_for_backward(values, total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        values, total = ctx.saved_tensors
        total = total.masked_fill(total == -torch.inf, 0.0).unsqueeze(ctx.dim)
        return grad.unsqueeze(ctx.dim) * torch.exp(values - total), None


def masked_logsumexp(values: Tensor, dim: int) -> Tensor:
    """Compute `torch.logsumexp`, where -inf marks a missing entry; if all are missing, the gradient is 0, not NaN.

    Examples:
        >>> masked_logsumexp(torch.tensor([[0.0, -torch.inf], [-torch.inf, -torch.inf]]), 1)
        tensor([0., -inf])
    """
    total: Tensor = _LogSumExp.apply(values, dim)
    return total


def safe_logaddexp(a: Tensor, *others: Tensor) -> Tensor:
    """Compute log(e^a + e^b + ...) of tensors that broadcast; -inf marks a missing entry, as in `masked_logsumexp`.

    Examples:
        >>> safe_logaddexp(torch.zeros(2, 1), torch.zeros(3)).shape
        torch.Size([2, 3])
    """
    return masked_logsumexp(torch.stack(torch.broadcast_tensors(a, *others)), 0)


def masked_sum(values: Tensor, mask: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """Sum the values where `mask` is true; the mask broadcasts to the values.

    Examples:
        >>> masked_sum(torch.tensor([1.0, 2.0, torch.nan]), torch.tensor([True, True, False]), 0)
        tensor(3.)
    """
    return torch.where(mask, values, 0.0).sum(dim)


def masked_mean(values: Tensor, mask: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """Average the values where `mask` is true; 0 if it is true nowhere.

    Examples:
        >>> masked_mean(torch.tensor([1.0, 2.0, torch.nan]), torch.tensor([True, True, False]), 0)
        tensor(1.5000)
    """
    mask = mask.expand_as(values)
    return masked_sum(values, mask, dim) / mask.sum(dim).clamp_min(1)
