"""Cross-entropy of all pairs of M rows and M columns against the diagonal, in tiles that the backward pass recomputes.

For logits L (M, M) the loss of instance i is

    LSE_j L_ij - (1 - eps) L_ii - eps mean_j L_ij        with label smoothing eps,

or the mean of this and of the same over the column i. The logits are any function of row and column tensors. A tile has
some rows and all columns, and its intermediate results are freed at once: memory is linear in M.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, autograd
from torch.autograd.function import once_differentiable

from manyviews.losses._masked import masked_logsumexp, masked_sum

CACHED_NUMEL = 2**22
"""Number of logits up to which one tile is kept for the backward pass, where the caller allows it."""
MIN_TILE_ROWS = 16
"""Number of rows of a tile, also if it then has more logits."""
TILE_NUMEL = {"cpu": 2**17, "cuda": 2**24}
"""Number of logits in a tile: small enough for the cache of a CPU, large enough to fill a GPU."""

LogitFunction = Callable[..., Tensor]
"""`logit_fn(row_tensors, column_tensors)`, (R, M) for row tensors (R, ...) and column tensors (M, ...)."""


def compute_contrast(
    logit_fn: LogitFunction,
    rows: tuple[Tensor, ...],
    columns: tuple[Tensor, ...],
    diagonal: Tensor,
    row_mask: Tensor | None = None,
    column_mask: Tensor | None = None,
    *,
    both_ways: bool = True,
    label_smoothing: float = 0.0,
    recompute: bool = True,
    tile_rows: int | None = None,
) -> Tensor:
    """Compute the losses (M,) of logits (M, M), whose diagonal (M,) is given.

    Rows and columns that are false in a mask (M,) are not contrasted with; their losses have no meaning. Without
    `recompute` there is one tile, which is kept for the backward pass.
    """
    instances, device = len(diagonal), diagonal.device
    if row_mask is None or column_mask is None:
        row_mask = column_mask = None
        num_rows = num_columns = diagonal.new_full((), instances)
    else:
        num_rows, num_columns = (mask.sum().clamp_min(1).to(diagonal) for mask in (row_mask, column_mask))
    # A compiler unrolls the loop: few, large tiles.
    device_type = "cuda" if torch.compiler.is_compiling() else device.type
    size = tile_rows or max(MIN_TILE_ROWS, TILE_NUMEL.get(device_type, TILE_NUMEL["cuda"]) // instances)
    size = size if recompute else instances
    use_sums = label_smoothing > 0

    def reduce_tile(start: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        tile_rows, tile_columns = tensors[1 : 1 + len(rows)], tensors[1 + len(rows) :]
        logits = torch.diagonal_scatter(logit_fn(*tile_rows, *tile_columns), tensors[0], start)
        valid = None
        if row_mask is not None and column_mask is not None:
            valid = row_mask[start : start + len(logits), None] & column_mask
        return _reduce_logits(logits, valid, both_ways, use_sums)

    tiles = []
    for start in range(0, instances, size):
        block = [tensor[start : start + size] for tensor in (diagonal, *rows)]
        # Recomputing the only tile would save nothing.
        is_kept = size >= instances or not torch.is_grad_enabled()
        tiles.append((reduce_tile if is_kept else partial(_recompute, reduce_tile))(start, *block, *columns))
    row_lse, row_sum, column_lse, column_sum = zip(*tiles, strict=True)
    losses = torch.cat(row_lse) - (1 - label_smoothing) * diagonal
    if use_sums:
        losses = losses - label_smoothing * torch.cat(row_sum) / num_columns
    if not both_ways:
        return losses
    total = column_lse[0] if len(tiles) == 1 else masked_logsumexp(torch.stack(column_lse), 0)
    column_losses = total - (1 - label_smoothing) * diagonal
    if use_sums:
        column_losses = column_losses - label_smoothing * torch.stack(column_sum).sum(0) / num_rows
    return (losses + column_losses) / 2


def _recompute(function: Callable[..., tuple[Tensor, ...]], start: int, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Call a function whose intermediate results are computed again in the backward pass."""
    if torch.compiler.is_compiling():
        from torch.utils.checkpoint import checkpoint  # in eager mode it would load the compiler, 70 MB

        results = checkpoint(function, start, *tensors, use_reentrant=False, preserve_rng_state=False)
    else:
        results = _Recomputed.apply(function, start, *tensors)
    return tuple(results)


class _Recomputed(autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, function: Callable[..., tuple[Tensor, ...]], start: int, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.function, ctx.start = function, start
        ctx.save_for_backward(*tensors)
        return function(start, *tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        leaves = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
        with torch.autocast(leaves[0].device.type, enabled=False):  # backward may run under autocast
            with torch.enable_grad():
                results = ctx.function(ctx.start, *leaves)
            used = [(result, grad) for result, grad in zip(results, grads, strict=True) if result.requires_grad]
            outputs, output_grads = zip(*used, strict=True)
            return (None, None, *autograd.grad(outputs, leaves, output_grads))


def _reduce_logits(logits: Tensor, valid: Tensor | None, both_ways: bool, use_sums: bool) -> tuple[Tensor, ...]:
    """Return log-sum-exps and sums over columns (R,) and over rows (M,), empty where they are not used."""
    masked = logits if valid is None else logits.masked_fill(~valid, -torch.inf)
    empty = logits.new_empty(0)
    results = []
    for dim in (1, 0):
        is_used = dim == 1 or both_ways
        results.append(masked_logsumexp(masked, dim) if is_used else empty)
        if is_used and use_sums:
            results.append(logits.sum(dim) if valid is None else masked_sum(logits, valid, dim))
        else:
            results.append(empty)
    return tuple(results)
