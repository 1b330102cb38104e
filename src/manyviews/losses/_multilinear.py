"""Symile: each view against products of the other views.

The functions take unit embeddings (M, N, d), zero where a view is missing, and return the losses (M,) of the instances.
Only instances that are `complete` (M,) take part.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from manyviews.losses._contrast import CACHED_NUMEL, compute_contrast
from manyviews.losses._dense import matmul
from manyviews.losses._masked import masked_logsumexp
from manyviews.utils import hash_key


def draw_permutations(step: Tensor, seed: int, views: int, instances: int, complete: Tensor | None) -> Tensor:
    """Return permutations (N, N, M) of the instances for each anchor view and other view; a function of seed and step.

    The first of the other views is not permuted. So the negatives of instance i, which are the columns j != i, never
    contain all of its own views. Only instances that are `complete` (M,) are permuted, as if there were no others.
    """
    device = step.device
    index = torch.arange(instances, device=device)
    position = index if complete is None else (complete.cumsum(0) - 1).clamp_min(0)
    pair = torch.arange(views * views, device=device).view(views, views, 1)
    bits = hash_key(seed, step, pair, position)
    if complete is None:
        order = bits.argsort(dim=-1, stable=True)
    else:
        order = bits.masked_fill(~complete, torch.iinfo(torch.int64).max).argsort(dim=-1, stable=True)
        order = order.gather(2, position.expand(views, views, instances))
    view = torch.arange(views, device=device)
    is_first_other = view == (view[:, None] == 0).long()
    return torch.where(is_first_other[:, :, None], index, order)


def compute_permuted_symile(
    z: Tensor, inverse_temperature: Tensor, permutations: Tensor, complete: Tensor | None, tile_rows: int | None = None
) -> Tensor:
    """Contrast each view with products of the other views, each in the order of its permutation (N, N, M)."""
    views = list(z.unbind(1))
    positive = math.prod(views[1:], start=views[0]).sum(1) * inverse_temperature
    losses = []
    for anchor, rows in enumerate(views):
        others = [view.index_select(0, permutations[anchor, m]) for m, view in enumerate(views) if m != anchor]
        columns = math.prod(others[1:], start=others[0])
        losses.append(
            compute_contrast(
                multiply,
                (rows * inverse_temperature,),
                (columns,),
                positive,
                complete,
                complete,
                both_ways=False,
                recompute=len(views) * len(z) ** 2 > CACHED_NUMEL,
                tile_rows=tile_rows,
            )
        )
    return torch.stack(losses).mean(0)


def compute_exhaustive_symile(z: Tensor, inverse_temperature: Tensor, complete: Tensor | None) -> Tensor:
    """Contrast each view with the products of all M^(N-1) combinations of the other views."""
    views = list(z.unbind(1))
    positive = math.prod(views[1:], start=views[0]).sum(1) * inverse_temperature
    losses = []
    for anchor, rows in enumerate(views):
        others = [view for m, view in enumerate(views) if m != anchor]
        columns, valid = others[0], complete
        for other in others[1:]:
            columns = (columns[:, None] * other).flatten(0, 1)
            valid = None if valid is None or complete is None else (valid[:, None] & complete).flatten()
        logits = matmul(rows * inverse_temperature, columns.T)
        if valid is not None:
            logits = logits.masked_fill(~valid, -torch.inf)
        losses.append(masked_logsumexp(logits, 1) - positive)
    return torch.stack(losses).mean(0)


def multiply(rows: Tensor, columns: Tensor) -> Tensor:
    return matmul(rows, columns.T)
