"""Energies without the (MN x MN) matrix: symmetric tiles, recomputed in the backward pass.

For rows x[l,i] (view l of instance i) and a function f of the inner product

    A[i,l,m] = log sum_{j != i} exp f(x[l,i] . x[m,j])        or        sum_{j != i} f(x[l,i] . x[m,j])

The tile of views (l, m) is the transpose of the tile of (m, l), so each unordered pair of tiles is computed once: its
row sums belong to view l, its column sums to view m. The backward pass needs each tile again: as many as fit in
`TILE_CACHE_BYTES` are kept from the forward pass, the others are recomputed. Memory is linear in the number of rows.

`_dense.compute_dense_energies` is the readable version of the same function.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

import torch
from torch import Tensor, autograd
from torch import distributed as dist

from manyviews.losses._accumulate import (
    IDENTITY,
    MAX_SAFE_LOGIT,
    RegisteredKernel,
    SharedExpAccumulator,
    StableAccumulator,
    Tile,
    count_cached_values,
    get_registered_kernel,
)

TILE_ROWS = {"cpu": 512, "cuda": 4096}
"""Rows of a tile: small enough for the cache of a CPU, large enough to fill a GPU."""
TILE_CACHE_BYTES = 24 * 2**20
"""Memory for tiles that are kept from the forward pass for the backward pass."""

Pairs = Set[tuple[int, int]]
"""Pairs (l, m) of views."""


def plan_tiles(required: Pairs, views: int, instances: int, size: int) -> list[Tile]:
    """List tiles that cover each unordered pair of views in `required` once."""
    either_order = required | {(m, l) for l, m in required}
    chunks = [slice(a, min(a + size, instances)) for a in range(0, instances, size)]
    tiles = []
    for view in range(views):
        if (view, view) in either_order:
            tiles += [
                Tile(view, rows, slice(view, view + 1), cols, a == b, a == b)
                for a, rows in enumerate(chunks)
                for b, cols in enumerate(chunks[a:], a)
            ]
        others = [m for m in range(view + 1, views) if (view, m) in either_order]
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
    required: Pairs,
    mask: Tensor | None = None,
    *,
    ids: Tensor | None = None,
    kernel: RegisteredKernel = IDENTITY,
    parameters: tuple[Tensor, ...] = (),
    log_space: bool = True,
    max_logit: float | None = None,
    tile_rows: int | None = None,
    distributed: bool = False,
) -> Tensor:
    """Compute energies (M, N, N) of rows x (M, N, d) for the pairs of views in `required`.

    `kernel` is f (`register_kernel`). The result is the log of the sum of exponentials, or the
    plain sum if `log_space` is false. Views that are missing in `mask` (M, N) are not negatives, nor are instances with
    the same id in `ids` (M,); their energies, and those not `required`, are empty sums. `max_logit` bounds the squared
    norm of the rows; if it is unknown or large, sums have a running maximum. If `distributed`, x must be equal on all
    ranks: each computes a part of the tiles, and all get the result.
    """
    instances, views, _ = x.shape
    size = tile_rows or TILE_ROWS.get(x.device.type, TILE_ROWS["cuda"])
    pairs = [l * views + m for l, m in sorted(required)]
    is_bounded = log_space and kernel == IDENTITY and max_logit is not None and max_logit < MAX_SAFE_LOGIT[x.dtype]
    num_cached = 0
    if is_bounded and x.requires_grad and torch.is_grad_enabled():
        tiles = _plan_tiles_of_rank(required, views, instances, size, distributed)
        num_cached = count_cached_values(tiles, TILE_CACHE_BYTES // x.element_size())
    options = (num_cached, pairs, kernel.number, log_space, max_logit, size, distributed)
    if torch.compiler.is_compiling():
        energies: Tensor = _tiled_energies(x, mask, ids, parameters, *options)[0]
    else:  # the same without the cost of an operator
        energies = _TiledEnergies.apply(x, mask, ids, options, *parameters)
    energies = energies.transpose(0, 1)
    if any((m, l) not in required for l, m in required):
        # A tile gives the energies of (l, m) and (m, l), even if only one of them is required.
        needed = torch.tensor([[(l, m) in required for m in range(views)] for l in range(views)])
        needed = needed.to(x.device, non_blocking=True)
        energies = energies.masked_fill(~needed, -torch.inf if log_space else 0.0)
    return energies


def _plan_tiles_of_rank(required: Pairs, views: int, instances: int, size: int, distributed: bool) -> list[Tile]:
    tiles = plan_tiles(required, views, instances, size)
    return tiles[dist.get_rank() :: dist.get_world_size()] if distributed else tiles


def _make_accumulator(
    x: Tensor,
    mask: Tensor | None,
    ids: Tensor | None,
    parameters: Sequence[Tensor],
    cache: Tensor,
    pairs: Sequence[int],
    kernel: int,
    log_space: bool,
    max_logit: float | None,
    size: int,
    distributed: bool,
) -> tuple[SharedExpAccumulator | StableAccumulator, list[Tile]]:
    instances, views, _ = x.shape
    required = {(pair // views, pair % views) for pair in pairs}
    tiles = _plan_tiles_of_rank(required, views, instances, size, distributed)
    function = get_registered_kernel(kernel)
    is_plain_logsumexp = log_space and function == IDENTITY
    if is_plain_logsumexp and max_logit is not None and max_logit < MAX_SAFE_LOGIT[x.dtype]:
        return SharedExpAccumulator(x, mask, ids, tiles, cache), tiles
    return StableAccumulator(x, mask, ids, function.function, tuple(parameters), log_space), tiles


def _sum_tiles(
    x: Tensor, mask: Tensor | None, ids: Tensor | None, parameters: Sequence[Tensor], num_cached: int, *options: Any
) -> tuple[Tensor, Tensor]:
    """Return energies (N, M, N), and the values of the tiles that are kept for the backward pass."""
    cache = x.new_empty(num_cached)
    accumulator, tiles = _make_accumulator(x, mask, ids, parameters, cache, *options)
    total = x.new_zeros(x.shape[1], x.shape[0], x.shape[1])
    for tile in tiles:
        accumulator.add(total, tile)
    return accumulator.finish(total, options[-1]), cache


def _differentiate_tiles(
    grad: Tensor,
    energies: Tensor,
    cache: Tensor,
    x: Tensor,
    mask: Tensor | None,
    ids: Tensor | None,
    parameters: Sequence[Tensor],
    *options: Any,
) -> tuple[Tensor, list[Tensor]]:
    """Return the gradients of x (M, N, d) and of the parameters, given that of the energies (N, M, N)."""
    accumulator, tiles = _make_accumulator(x, mask, ids, parameters, cache, *options)
    weight = grad.contiguous()
    if options[-1]:
        # Each rank has the gradient of its own loss, but the tiles are distributed over all ranks.
        weight = weight.clone()
        dist.all_reduce(weight)
    accumulator.start_backward(weight, energies)
    views, instances, dim = accumulator.rows.shape
    # Two-dimensional, so that a tile's part is a slice: reshape could return a copy, and addmm_ would be lost.
    gradient = accumulator.rows.new_zeros(views * instances, dim)
    with torch.autocast(x.device.type, enabled=False):  # backward may run under autocast
        for tile in tiles:
            similarity_grad = accumulator.similarity_grad(tile).flatten(1)
            rows, cols = tile.flat_slices(instances)
            gradient[rows].addmm_(similarity_grad, accumulator.col_block(tile))
            if not tile.symmetric:
                gradient[cols].addmm_(similarity_grad.T, accumulator.row_block(tile))
    gradient, *parameter_grads = accumulator.finish_backward(gradient)
    return gradient.view(views, instances, dim).transpose(0, 1), parameter_grads


class _TiledEnergies(autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, mask: Tensor | None, ids: Tensor | None, options: tuple[Any, ...], *parameters: Tensor
    ) -> Tensor:
        energies, cache = _sum_tiles(x, mask, ids, parameters, *options)
        ctx.options = options[1:]
        ctx.save_for_backward(energies, cache, x, mask, ids, *parameters)
        return energies

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "tiled energies can be differentiated only once (create_graph=True needs a second time): "
                'create the loss with implementation="dense"'
            )
        energies, cache, x, mask, ids, *parameters = ctx.saved_tensors
        gradient, parameter_grads = _differentiate_tiles(grad, energies, cache, x, mask, ids, parameters, *ctx.options)
        return (gradient, None, None, None, *parameter_grads)


# The same as operators, so that a compiled loss has no graph break here: unrolled tiles would take minutes to compile.
@torch.library.custom_op("manyviews::tiled_energies", mutates_args=())
def _tiled_energies(
    x: Tensor,
    mask: Tensor | None,
    ids: Tensor | None,
    parameters: Sequence[Tensor],
    num_cached: int,
    pairs: Sequence[int],
    kernel: int,
    log_space: bool,
    max_logit: float | None,
    size: int,
    distributed: bool,
) -> tuple[Tensor, Tensor]:
    max_logit = _read_max_logit(x) if max_logit is None else max_logit
    return _sum_tiles(x, mask, ids, parameters, num_cached, pairs, kernel, log_space, max_logit, size, distributed)


@torch.library.custom_op("manyviews::tiled_energies_backward", mutates_args=())
def _tiled_energies_backward(
    grad: Tensor,
    energies: Tensor,
    cache: Tensor,
    x: Tensor,
    mask: Tensor | None,
    ids: Tensor | None,
    parameters: Sequence[Tensor],
    pairs: Sequence[int],
    kernel: int,
    log_space: bool,
    max_logit: float | None,
    size: int,
    distributed: bool,
) -> tuple[Tensor, list[Tensor]]:
    max_logit = _read_max_logit(x) if max_logit is None else max_logit
    tensors = (grad, energies, cache, x, mask, ids, parameters)
    return _differentiate_tiles(*tensors, pairs, kernel, log_space, max_logit, size, distributed)


def _read_max_logit(x: Tensor) -> float | None:
    """Return the largest squared norm, or None on a device that would have to stop for it."""
    return float(x.square().sum(-1).max()) if x.device.type == "cpu" else None


@_tiled_energies.register_fake
def _(x: Tensor, *inputs: Any) -> tuple[Tensor, Tensor]:
    num_cached = inputs[3]
    return x.new_empty(x.shape[1], x.shape[0], x.shape[1]), x.new_empty(num_cached)


@_tiled_energies_backward.register_fake
def _(*inputs: Any) -> tuple[Tensor, list[Tensor]]:
    x, parameters = inputs[3], inputs[6]
    gradient = x.new_empty(x.shape[1], x.shape[0], x.shape[2]).transpose(0, 1)
    return gradient, [torch.empty_like(p) for p in parameters]


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, mask, ids, parameters, _, *ctx.options = inputs
    ctx.save_for_backward(*output, x, mask, ids, *parameters)
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Any, ...]:
    energies, cache, x, mask, ids, *parameters = ctx.saved_tensors
    gradient, parameter_grads = _tiled_energies_backward(grad, energies, cache, x, mask, ids, parameters, *ctx.options)
    return (gradient, None, None, parameter_grads, *[None] * 7)


_tiled_energies.register_autograd(_backward, setup_context=_save_for_backward)
