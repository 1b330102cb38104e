"""Positives and energies, the two tensors of which every loss is a function.

For unit embeddings u (M instances, N views) and a kernel K

    P[i,l,m] = log K(u_il, u_im)                     positives: two views of the same instance
    A[i,l,m] = log sum_{j != i} K(u_il, u_jm)        energies: all other instances, view by view

Both are (M, N, N). Undefined entries are -inf = log 0: a view with itself in P, and any pair with a missing view.
`compute_dense_energies` is the readable reference; `_tiled.py` computes the same energies fast and in little memory.
"""

from typing import Any

import torch
from torch import Tensor, autograd

from manyviews.losses._accumulate import IDENTITY, RegisteredKernel
from manyviews.losses._masked import masked_logsumexp
from manyviews.losses._tiled import Pairs


def compute_similarities(x: Tensor) -> Tensor:
    """Compute inner products (M, N, N) between the views (M, N, d) of each instance."""
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
    """Compute `a @ b` with a gradient in full precision, also if `backward` runs under autocast."""
    product: Tensor = _MatMul.apply(a, b)
    return product


def compute_dense_energies(
    x: Tensor,
    required: Pairs,
    mask: Tensor | None = None,
    *,
    ids: Tensor | None = None,
    kernel: RegisteredKernel = IDENTITY,
    parameters: tuple[Tensor, ...] = (),
    log_space: bool = True,
) -> Tensor:
    """Compute energies (M, N, N) with plain autograd; the arguments are those of `compute_tiled_energies`."""
    instances, views, _ = x.shape
    fill = -torch.inf if log_space else 0.0
    same_instance = torch.eye(instances, dtype=torch.bool, device=x.device) if ids is None else ids[:, None] == ids
    energies = []
    for view in range(views):
        other_views = [m for m in range(views) if (view, m) in required]
        if not other_views:
            energies.append(x.new_full((instances, views), fill))
            continue
        keys = torch.cat([x[:, m] for m in other_views])
        values = matmul(x[:, view], keys.T).view(instances, len(other_views), instances)
        values = kernel.function(values, *parameters)
        excluded = same_instance[:, None]
        if mask is not None:
            excluded = excluded | ~torch.stack([mask[:, m] for m in other_views]) | ~mask[:, view, None, None]
        values = values.masked_fill(excluded, fill)
        energy = masked_logsumexp(values, 2) if log_space else values.sum(2)
        columns = dict(zip(other_views, energy.unbind(1), strict=True))
        empty_column = energy.new_full((instances,), fill)
        energies.append(torch.stack([columns.get(m, empty_column) for m in range(views)], 1))
    return torch.stack(energies, 1)
