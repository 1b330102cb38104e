"""Energies without the (MN x MN) matrix: symmetric tiles, recomputed in the backward pass.

For rows x[l,i] (view l of instance i) and a function f of the inner product

    A[i,l,m] = log sum_{j != i} exp f(x[l,i] . x[m,j])        or        sum_{j != i} f(x[l,i] . x[m,j])

The tile of views (l, m) is the transpose of the tile of (m, l), so each unordered pair of tiles is computed once: its
row sums belong to view l, its column sums to view m. The backward pass needs each tile again: as many as fit in
`TILE_CACHE_BYTES` are kept from the forward pass, the others are recomputed. Memory is linear in the number of rows.

`_dense.compute_dense_energies` is the readable version of the same function.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, autograd
from torch import distributed as dist

from manyviews.losses._accumulate import MAX_SAFE_LOGIT, KernelFunction, SharedExpAccumulator, StableAccumulator, Tile

TILE_ROWS = {"cpu": 512, "cuda": 4096}
"""Rows of a tile: small enough for the cache of a CPU, large enough to fill a GPU."""
TILE_CACHE_BYTES = 24 * 2**20
"""Memory for tiles that are kept from the forward pass for the backward pass."""


def plan_tiles(required: Tensor, instances: int, size: int) -> list[Tile]:
    """List tiles that cover each unordered pair of views in `required` (N, N) once."""
    chunks = [slice(a, min(a + size, instances)) for a in range(0, instances, size)]
    tiles = []
    for view, row in enumerate((required | required.T).tolist()):
        if row[view]:
            tiles += [
                Tile(view, rows, slice(view, view + 1), cols, a == b, a == b)
                for a, rows in enumerate(chunks)
                for b, cols in enumerate(chunks[a:], a)
            ]
        others = [m for m in range(view + 1, len(row)) if row[m]]
        tiles += [
            Tile(view, rows, col_views, cols, False, a == b)
            for col_views in _split_consecutive(others, size // instances)
            for a, rows in enumerate(chunks)
            for b, cols in enumerate(chunks)
        ]
    return tiles


def _split_consecutive(indices: Sequence[int], max_length: int) -> list[slice]:
    """Return slices of consecutive indices, each of at most `max_length` (but at least 1)."""
    slices: list[slice] = []
    for i in indices:
        if slices and slices[-1].stop == i and i - slices[-1].start < max_length:
            slices[-1] = slice(slices[-1].start, i + 1)
        else:
            slices.append(slice(i, i + 1))
    return slices


def compute_tiled_energies(
    x: Tensor,
    required: Tensor,
    mask: Tensor | None = None,
    *,
    kernel_fn: KernelFunction | None = None,
    parameters: tuple[Tensor, ...] = (),
    log_space: bool = True,
    max_logit: float | None = None,
    tile_rows: int | None = None,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """Compute energies (M, N, N) of rows x (M, N, d) for the pairs of views in `required` (N, N).

    `kernel_fn(similarity, *parameters)` is f, the identity if None. The result is the log of the sum of exponentials,
    or the plain sum if `log_space` is false. Views that are missing in `mask` (M, N) are not negatives; their energies,
    and those not `required`, are empty sums. `max_logit` bounds the squared norm of the rows (computed if None). With a
    `group`, x must be equal on all ranks: each rank computes a part of the tiles, and all get the result.
    """
    size = tile_rows or TILE_ROWS.get(x.device.type, TILE_ROWS["cuda"])
    is_plain_logsumexp = log_space and kernel_fn is None
    if is_plain_logsumexp and max_logit is None:
        max_logit = float(x.detach().square().sum(-1).max())
    use_shared_exp = is_plain_logsumexp and max_logit is not None and max_logit < MAX_SAFE_LOGIT[x.dtype]
    energies: Tensor = _TiledEnergies.apply(
        x, required, mask, None if use_shared_exp else kernel_fn or torch.clone, log_space, size, group, *parameters
    )
    if not torch.equal(required, required.T):
        # A tile gives the energies of (l, m) and (m, l), even if only one of them is required.
        energies = energies.masked_fill(~required.to(x.device), -torch.inf if log_space else 0.0)
    return energies


class _TiledEnergies(autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        required: Tensor,
        mask: Tensor | None,
        kernel_fn: KernelFunction | None,
        log_space: bool,
        size: int,
        group: dist.ProcessGroup | None,
        *parameters: Tensor,
    ) -> Tensor:
        tiles = plan_tiles(required, len(x), size)
        if group is not None:
            tiles = tiles[dist.get_rank(group) :: dist.get_world_size(group)]
        accumulator: SharedExpAccumulator | StableAccumulator
        if kernel_fn is None:
            accumulator = SharedExpAccumulator(x, mask, tiles, TILE_CACHE_BYTES if ctx.needs_input_grad[0] else 0)
        else:
            accumulator = StableAccumulator(x, mask, kernel_fn, parameters, log_space)
        total = x.new_zeros(x.shape[1], x.shape[0], x.shape[1])
        for tile in tiles:
            accumulator.add(total, tile)
        energies = accumulator.finish(total, group)
        ctx.accumulator, ctx.tiles, ctx.group = accumulator, tiles, group
        # The backward pass frees saved tensors; attributes live as long as the graph.
        ctx.save_for_backward(energies, *accumulator.release_tensors())
        return energies.transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "tiled energies can be differentiated only once (create_graph=True needs a second time): "
                'create the loss with implementation="dense"'
            )
        with torch.autocast(grad.device.type, enabled=False):  # backward may run under autocast
            return _TiledEnergies._backward_impl(ctx, grad)

    @staticmethod
    def _backward_impl(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        energies, *tensors = ctx.saved_tensors
        accumulator: SharedExpAccumulator | StableAccumulator = ctx.accumulator
        accumulator.restore_tensors(*tensors)
        weight = grad.transpose(0, 1).contiguous()
        if ctx.group is not None:
            # Each rank has the gradient of its own loss, but the tiles are distributed over all ranks.
            weight = weight.clone()
            dist.all_reduce(weight, group=ctx.group)
        accumulator.start_backward(weight, energies)
        views, instances, dim = accumulator.rows.shape
        # Two-dimensional, so that a tile's part is a slice: reshape could return a copy, and addmm_ would be lost.
        gradient = accumulator.rows.new_zeros(views * instances, dim)
        for tile in ctx.tiles:
            similarity_grad = accumulator.similarity_grad(tile).flatten(1)
            rows, cols = tile.flat_slices(instances)
            gradient[rows].addmm_(similarity_grad, accumulator.col_block(tile))
            if not tile.symmetric:
                gradient[cols].addmm_(similarity_grad.T, accumulator.row_block(tile))
        gradient, *parameters = accumulator.finish_backward(gradient)
        accumulator.release_tensors()
        return (gradient.view(views, instances, dim).transpose(0, 1), *[None] * 6, *parameters)
