"""The two tensors on which every objective stands, and the sums objectives are made of.

For unit rows u (M instances, N views) and a kernel K

    P[i,l,m] = log K(u_il, u_im)                     positives: two views of the same instance
    A[i,l,m] = log sum_{j != i} K(u_il, u_jm)        energies: all other instances, view by view

Both are (M, N, N). What is not there is -inf, the logarithm of nothing: a view with itself in P, any
pair with an absent view. `dense_energies` is the reference, to be read; `tiled.py` makes the same
energies fast and in little memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, autograd

from manyviews.losses.sums import Pointwise


def similarities(x: Tensor) -> Tensor:
    """Inner products (M, N, N) between the views (M, N, d) of each instance."""
    return matmul(x, x.mT)


class _MatMul(autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        with torch.autocast(grad.device.type, enabled=False):
            return matmul(grad, b.mT), matmul(a.mT, grad)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """`a @ b`, whose gradient keeps its precision where `backward` is called under autocast."""
    product: Tensor = _MatMul.apply(a, b)
    return product


def dense_energies(
    x: Tensor,
    blocks: Tensor,
    present: Tensor | None = None,
    *,
    pointwise: Pointwise | None = None,
    parameters: tuple[Tensor, ...] = (),
    logarithmic: bool = True,
) -> Tensor:
    """Energies (M, N, N) through plain autograd; arguments as in `tiled.tiled_energies`."""
    instances, views, _ = x.shape
    empty = -torch.inf if logarithmic else 0.0
    own = torch.eye(instances, dtype=torch.bool, device=x.device)
    energies = []
    for view, row in enumerate(blocks.tolist()):
        against = [m for m in range(views) if row[m]]
        if not against:
            energies.append(x.new_full((instances, views), empty))
            continue
        contrasts = x[:, against].transpose(0, 1).flatten(0, 1)
        values = matmul(x[:, view], contrasts.T).view(instances, len(against), instances)
        if pointwise is not None:
            values = pointwise(values, *parameters)
        left_out = own[:, None]
        if present is not None:
            left_out = left_out | ~present[:, against].T | ~present[:, view, None, None]
        values = values.masked_fill(left_out, empty)
        energy = logsumexp(values, 2) if logarithmic else values.sum(2)
        columns = dict(zip(against, energy.unbind(1), strict=True))
        nothing = energy.new_full((instances,), empty)
        energies.append(torch.stack([columns.get(m, nothing) for m in range(views)], 1))
    return torch.stack(energies, 1)


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


def logsumexp(values: Tensor, dim: int) -> Tensor:
    """`torch.logsumexp` of values (..., n, ...) over what is there: with a zero gradient, not NaN, where nothing is.

    Examples:
        >>> logsumexp(torch.tensor([[0.0, -torch.inf], [-torch.inf, -torch.inf]]), 1)
        tensor([0., -inf])
    """
    total: Tensor = _LogSumExp.apply(values, dim)
    return total


def logaddexp(a: Tensor, *others: Tensor) -> Tensor:
    """log(e^a + e^b + ...) of tensors that broadcast, over what is there.

    Examples:
        >>> logaddexp(torch.zeros(2, 1), torch.zeros(3)).shape
        torch.Size([2, 3])
    """
    return logsumexp(torch.stack(torch.broadcast_tensors(a, *others)), 0)


def total(values: Tensor, where: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """Sum of the values that are there; `where` broadcasts to them.

    Examples:
        >>> total(torch.tensor([1.0, 2.0, torch.nan]), torch.tensor([True, True, False]), 0)
        tensor(3.)
    """
    return torch.where(where, values, 0.0).sum(dim)


def mean(values: Tensor, where: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """Mean of the values that are there, 0 where none is.

    Examples:
        >>> mean(torch.tensor([1.0, 2.0, torch.nan]), torch.tensor([True, True, False]), 0)
        tensor(1.5000)
    """
    where = where.expand_as(values)
    return total(values, where, dim) / where.sum(dim).clamp_min(1)
