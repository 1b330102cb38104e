"""Energies without the (MN x MN) matrix: symmetric tiles, recomputed in the backward pass.

For rows x[l,i] (view l of instance i) and a pointwise function f of the inner product

    A[i,l,m] = log sum_{j != i} exp f(x[l,i] . x[m,j])        or        sum_{j != i} f(x[l,i] . x[m,j])

The tile of views (l, m) is the transpose of the tile of (m, l), so each unordered pair of tiles is
multiplied and exponentiated once and serves both its rows (by row sums) and its columns (by column
sums). The backward pass needs each tile again: as many as fit in `KEEP_BYTES` are kept from the
forward pass, the others are computed a second time. Memory is linear in the number of rows.

`affinity.dense_energies` is the same function, written to be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, autograd
from torch import distributed as dist

from manyviews.losses.sums import SAFE_EXPONENT, Exponential, General, Pointwise, Tile

TILE = {"cpu": 512, "cuda": 4096}
"""Rows of a tile: small enough for the cache of a CPU, large enough to fill a GPU."""
KEEP_BYTES = 24 * 2**20
"""How much of the forward pass is kept for the backward pass."""


def plan(blocks: Tensor, instances: int, size: int) -> list[Tile]:
    """Tiles that cover each unordered pair of views wanted in `blocks` (N, N) once."""
    wanted = (blocks | blocks.T).tolist()
    cuts = [slice(a, min(a + size, instances)) for a in range(0, instances, size)]
    tiles = []
    for view, row in enumerate(wanted):
        if row[view]:
            tiles += [
                Tile(view, rows, slice(view, view + 1), columns, a == b, a == b)
                for a, rows in enumerate(cuts)
                for b, columns in enumerate(cuts[a:], a)
            ]
        others = [m for m in range(view + 1, len(row)) if row[m]]
        tiles += [
            Tile(view, rows, run, columns, False, a == b)
            for run in _runs(others, size // instances)
            for a, rows in enumerate(cuts)
            for b, columns in enumerate(cuts)
        ]
    return tiles


def _runs(numbers: Sequence[int], longest: int) -> list[slice]:
    """Consecutive numbers as slices of at most `longest`, at least one."""
    runs: list[slice] = []
    for n in numbers:
        if runs and runs[-1].stop == n and n - runs[-1].start < longest:
            runs[-1] = slice(runs[-1].start, n + 1)
        else:
            runs.append(slice(n, n + 1))
    return runs


def tiled_energies(
    x: Tensor,
    blocks: Tensor,
    present: Tensor | None = None,
    *,
    pointwise: Pointwise | None = None,
    parameters: tuple[Tensor, ...] = (),
    logarithmic: bool = True,
    exponent: float | None = None,
    tile: int | None = None,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """Energies (M, N, N) of rows x (M, N, d) for the view pairs wanted in `blocks` (N, N).

    `pointwise(similarity, *parameters)` is f, the identity if None. `logarithmic` chooses the log of
    the sum of exponentials, else the plain sum. Views absent in `present` (M, N) are no negatives and
    have no energy, nor has what `blocks` does not want: an empty sum. `exponent` bounds the squared length of the
    rows, which is measured if not given. With a `group`, x must be equal on all its ranks: each computes a share of the
    tiles, all get the result.
    """
    size = tile or TILE.get(x.device.type, TILE["cuda"])
    plain = logarithmic and pointwise is None
    if plain and exponent is None:
        exponent = float(x.detach().square().sum(-1).max())
    shared = plain and exponent is not None and exponent < SAFE_EXPONENT[x.dtype]
    energies: Tensor = _TiledEnergies.apply(
        x, blocks, present, None if shared else pointwise or torch.clone, logarithmic, size, group, *parameters
    )
    if not torch.equal(blocks, blocks.T):
        # A tile serves both ways round, wanted or not.
        energies = energies.masked_fill(~blocks.to(x.device), -torch.inf if logarithmic else 0.0)
    return energies


class _TiledEnergies(autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        blocks: Tensor,
        present: Tensor | None,
        pointwise: Pointwise | None,
        logarithmic: bool,
        size: int,
        group: dist.ProcessGroup | None,
        *parameters: Tensor,
    ) -> Tensor:
        tiles = plan(blocks, len(x), size)
        if group is not None:
            tiles = tiles[dist.get_rank(group) :: dist.get_world_size(group)]
        sums: Exponential | General
        if pointwise is None:
            sums = Exponential(x, present, tiles, KEEP_BYTES if ctx.needs_input_grad[0] else 0)
        else:
            sums = General(x, present, pointwise, parameters, logarithmic)
        total = x.new_zeros(x.shape[1], x.shape[0], x.shape[1])
        for tile in tiles:
            sums.add(total, tile)
        energies = sums.finish(total, group)
        ctx.sums, ctx.tiles, ctx.group = sums, tiles, group
        # Saved tensors are freed by the backward pass, attributes only with the whole graph.
        ctx.save_for_backward(energies, *sums.put_down())
        return energies.transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "tiled energies can be differentiated once, but create_graph=True asks for more: "
                'make the objective with implementation="dense"'
            )
        with torch.autocast(grad.device.type, enabled=False):  # backward may run inside the user's
            return _TiledEnergies.differentiate(ctx, grad)

    @staticmethod
    def differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        energies, *held = ctx.saved_tensors
        sums: Exponential | General = ctx.sums
        sums.pick_up(*held)
        weight = grad.transpose(0, 1).contiguous()
        if ctx.group is not None:
            # Each rank differentiates its own loss through tiles that all of them share.
            weight = weight.clone()
            dist.all_reduce(weight, group=ctx.group)
        sums.start_backward(weight, energies)
        views, instances, dim = sums.rows.shape
        # Two-dimensional, so that a tile's part is a slice: a reshaped part may be a copy, to which adding is lost.
        gradient = sums.rows.new_zeros(views * instances, dim)
        for tile in ctx.tiles:
            slope = sums.slope(tile).flatten(1)
            rows, columns = tile.flat_slices(instances)
            gradient[rows].addmm_(slope, sums.contrasts(tile))
            if not tile.symmetric:
                gradient[columns].addmm_(slope.T, sums.anchors(tile))
        gradient, *parameters = sums.finish_backward(gradient)
        sums.put_down()
        return (gradient.view(views, instances, dim).transpose(0, 1), *[None] * 6, *parameters)
