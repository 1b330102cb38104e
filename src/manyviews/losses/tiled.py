"""Energies without the (MN x MN) matrix: symmetric tiles, recomputed in the backward pass.

For rows x[l,i] (view l of instance i) and a pointwise function f of the inner product

    A[i,l,m] = log sum_{j != i} exp f(x[l,i] . x[m,j])        or        sum_{j != i} f(x[l,i] . x[m,j])

The tile of views (l, m) is the transpose of the tile of (m, l), so each unordered pair of tiles is
multiplied and exponentiated once and serves both its rows (by row sums) and its columns (by column
sums). The backward pass needs each tile again: as many as fit in `KEEP_BYTES` are kept from the
forward pass, the others are computed a second time. Memory is linear in the number of rows.

There are two kinds of sums. `_Exponential`: f is the identity and the rows are so short that no
exponential can overflow or vanish (a temperature above 0.025); one exponential serves both sides.
`_General`: any f, and under a logarithm each side subtracts its own running maximum.

`affinity.dense_energies` is the same function, written to be read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor, autograd
from torch import distributed as dist

TILE = {"cpu": 512, "cuda": 4096}
"""Rows of a tile: small enough for the cache of a CPU, large enough to fill a GPU."""
KEEP_BYTES = 24 * 2**20
"""How much of the forward pass is kept for the backward pass."""
SAFE_EXPONENT = {torch.float32: 40.0, torch.float64: 300.0}
"""Largest |f| whose exponential, summed and inverted, stays far from overflow and underflow."""
# torch's exp2 takes half the time of its exp on a CPU, so log2(e) goes into the rows.
BASE = math.sqrt(math.log2(math.e))

Pointwise = Callable[..., Tensor]


class Tile(NamedTuple):
    """Rows i of view l against columns j of views m; several views only with all instances."""

    view: int
    rows: slice
    views: slice
    columns: slice
    symmetric: bool
    """The tile is its own transpose."""
    own: bool
    """The tile holds pairs j = i, which are no negatives."""

    @property
    def place(self) -> tuple[int, int, int, int]:
        """Where it begins."""
        return self.view, self.rows.start, self.views.start, self.columns.start

    @property
    def shape(self) -> tuple[int, int, int]:
        rows, views, columns = (s.stop - s.start for s in (self.rows, self.views, self.columns))
        return rows, views, columns


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
    tile: int | None = None,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """Energies (M, N, N) of rows x (M, N, d) for the view pairs wanted in `blocks` (N, N).

    `pointwise(similarity, *parameters)` is f, the identity if None. `logarithmic` chooses the log of
    the sum of exponentials, else the plain sum. Views absent in `present` (M, N) are no negatives and
    have no energy. What `blocks` does not want is left an empty sum or computed all the same. With a
    `group`, x must be equal on all its ranks: each computes a share of the tiles, all get the result.
    """
    size = tile or TILE.get(x.device.type, TILE["cuda"])
    energies: Tensor = _TiledEnergies.apply(x, blocks, present, pointwise, logarithmic, size, group, *parameters)
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
        sums: _Exponential | _General
        plain = logarithmic and pointwise is None
        if plain and float(x.square().sum(-1).max()) < SAFE_EXPONENT[x.dtype]:
            sums = _Exponential(x, present, tiles, KEEP_BYTES if ctx.needs_input_grad[0] else 0)
        else:
            sums = _General(x, present, pointwise or torch.clone, parameters, logarithmic)
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
        energies, *held = ctx.saved_tensors
        sums: _Exponential | _General = ctx.sums
        sums.pick_up(*held)
        weight = grad.transpose(0, 1).contiguous()
        if ctx.group is not None:
            # Each rank differentiates its own loss through tiles that all of them share.
            weight = weight.clone()
            dist.all_reduce(weight, group=ctx.group)
        sums.start_backward(weight, energies)
        gradient = torch.zeros_like(sums.rows)
        for tile in ctx.tiles:
            slope = sums.slope(tile).flatten(1)
            gradient[tile.view, tile.rows].addmm_(slope, sums.contrasts(tile))
            if not tile.symmetric:
                columns = gradient[tile.views, tile.columns].flatten(0, 1)
                columns.addmm_(slope.T, sums.anchors(tile))
        gradient, *parameters = sums.finish_backward(gradient)
        sums.put_down()
        return (gradient.transpose(0, 1), *[None] * 6, *parameters)


class _Sums:
    """Sums over tiles: what a tile holds (i, m, j), and how it answers to a change of the sums."""

    def __init__(self, rows: Tensor, present: Tensor | None) -> None:
        self.rows = rows
        self.absent = None if present is None else ~present.T

    def put_down(self) -> tuple[Tensor, ...]:
        """Let go of all that is large, for the caller to hold."""
        held = (self.rows,)
        del self.rows
        return held

    def pick_up(self, *held: Tensor) -> None:
        (self.rows,) = held

    def anchors(self, tile: Tile) -> Tensor:
        return self.rows[tile.view, tile.rows]

    def contrasts(self, tile: Tile) -> Tensor:
        return self.rows[tile.views, tile.columns].flatten(0, 1)

    def leave_out(self, values: Tensor, tile: Tile, fill: float) -> Tensor:
        """Put `fill` in place of an instance's pair with itself and of absent views."""
        if tile.own:
            values.diagonal(dim1=0, dim2=2).fill_(fill)
        if self.absent is not None:
            values.masked_fill_(self.absent[tile.view, tile.rows, None, None], fill)
            values.masked_fill_(self.absent[tile.views, tile.columns], fill)
        return values


class _Exponential(_Sums):
    """log sum exp, one exponential for both sides."""

    def __init__(self, x: Tensor, present: Tensor | None, tiles: list[Tile], keep: int) -> None:
        super().__init__(x.transpose(0, 1).mul(BASE).contiguous(), present)
        sizes = [math.prod(tile.shape) for tile in tiles]
        ends = [end for end in accumulate(sizes) if end * x.element_size() <= keep]
        self.kept_at = {tile.place: end for tile, end in zip(tiles, ends, strict=False)}
        # Fresh memory costs more than the arithmetic done in it: one block each, used many times.
        self.kept = x.new_empty(ends[-1] if ends else 0)
        self.largest_tile = max(sizes, default=0)
        self.scratch = x.new_empty(self.largest_tile)

    def put_down(self) -> tuple[Tensor, ...]:
        held = (*super().put_down(), self.kept)
        del self.kept, self.scratch
        return held

    def pick_up(self, *held: Tensor) -> None:
        rows, self.kept = held
        super().pick_up(rows)

    def kept_place(self, tile: Tile) -> Tensor | None:
        end = self.kept_at.get(tile.place)
        return None if end is None else _part(self.kept[:end], tile)

    def values(self, tile: Tile, into: Tensor) -> Tensor:
        torch.mm(self.anchors(tile), self.contrasts(tile).T, out=into.flatten(1))
        return self.leave_out(into.exp2_(), tile, 0.0)

    def add(self, total: Tensor, tile: Tile) -> None:
        kept = self.kept_place(tile)
        values = self.values(tile, _part(self.scratch, tile) if kept is None else kept)
        across, down = _sides(tile, total)
        across += values.sum(2)
        if not tile.symmetric:
            down += values.sum(0)

    def finish(self, total: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        if group is not None:
            dist.all_reduce(total, group=group)
        return total.log_()

    def start_backward(self, weight: Tensor, energies: Tensor) -> None:
        # An empty sum has the energy -inf and no gradient.
        inverse = torch.exp(-energies.masked_fill(energies == -torch.inf, torch.inf))
        self.across = weight * inverse
        self.down = self.across.permute(2, 0, 1).contiguous()
        self.outer, self.scratch = self.rows.new_empty(2, self.largest_tile)

    def slope(self, tile: Tile) -> Tensor:
        outer = _part(self.outer, tile)
        across = self.across[tile.view, tile.rows, tile.views, None]
        torch.add(across, self.down[tile.view, tile.views, tile.columns], out=outer)
        kept = self.kept_place(tile)
        return outer.mul_(self.values(tile, _part(self.scratch, tile)) if kept is None else kept)

    def finish_backward(self, gradient: Tensor) -> tuple[Tensor, ...]:
        del self.across, self.down, self.outer
        return (gradient.div_(BASE),)


class _General(_Sums):
    """Sum of f, or log sum exp f with a running maximum for each sum."""

    def __init__(
        self,
        x: Tensor,
        present: Tensor | None,
        pointwise: Pointwise,
        parameters: tuple[Tensor, ...],
        logarithmic: bool,
    ) -> None:
        super().__init__(x.transpose(0, 1).contiguous(), present)
        self.pointwise = pointwise
        self.parameters = parameters
        self.logarithmic = logarithmic
        self.empty = -torch.inf if logarithmic else 0.0
        self.largest = x.new_full((x.shape[1], x.shape[0], x.shape[1]), -torch.inf)

    def similarities(self, tile: Tile) -> Tensor:
        return (self.anchors(tile) @ self.contrasts(tile).T).view(tile.shape)

    def add(self, total: Tensor, tile: Tile) -> None:
        values = self.pointwise(self.similarities(tile), *self.parameters)
        values = self.leave_out(values, tile, self.empty)
        sides = zip((2, 0), _sides(tile, total), _sides(tile, self.largest), strict=True)
        for dim, running, maximum in list(sides)[: 1 if tile.symmetric else 2]:
            if self.logarithmic:
                new = torch.maximum(maximum, values.amax(dim))
                running.mul_(_exp_difference(maximum, new))
                running.add_(_exp_difference(values, new.unsqueeze(dim)).sum(dim))
                maximum.copy_(new)
            else:
                running.add_(values.sum(dim))

    def finish(self, total: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        if group is not None:
            if self.logarithmic:
                local, self.largest = self.largest, self.largest.clone()
                dist.all_reduce(self.largest, dist.ReduceOp.MAX, group)
                total *= _exp_difference(local, self.largest)
            dist.all_reduce(total, group=group)
        return total.log_().add_(self.largest) if self.logarithmic else total

    def start_backward(self, weight: Tensor, energies: Tensor) -> None:
        self.weight = weight
        self.energies = energies.masked_fill(energies == -torch.inf, torch.inf)
        self.gradients = [torch.zeros_like(p) for p in self.parameters]

    def slope(self, tile: Tile) -> Tensor:
        leaves = [self.similarities(tile), *(p.detach() for p in self.parameters)]
        with torch.enable_grad():
            values = self.pointwise(*(leaf.requires_grad_() for leaf in leaves))
        across, down = _sides(tile, self.weight)
        if self.logarithmic:
            logs = self.leave_out(values.detach().clone(), tile, self.empty)
            log_across, log_down = _sides(tile, self.energies)
            share = across[:, :, None] * torch.exp(logs - log_across[:, :, None])
            share += down * torch.exp(logs - log_down)
        else:
            share = self.leave_out(across[:, :, None] + down, tile, 0.0)
        slope, *gradients = autograd.grad(values, leaves, share)
        for total, gradient in zip(self.gradients, gradients, strict=True):
            # A tile that is its own transpose holds each pair twice.
            total.add_(gradient, alpha=0.5 if tile.symmetric else 1.0)
        return slope

    def finish_backward(self, gradient: Tensor) -> tuple[Tensor, ...]:
        return (gradient, *self.gradients)


def _sides(tile: Tile, tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Of an (N, M, N) tensor: what belongs to the tile's rows (i, m) and to its columns (m, j)."""
    return tensor[tile.view, tile.rows, tile.views], tensor[tile.views, tile.columns, tile.view]


def _part(block: Tensor, tile: Tile) -> Tensor:
    """As much of the end of a block of memory as the tile takes."""
    return block[len(block) - math.prod(tile.shape) :].view(tile.shape)


def _exp_difference(values: Tensor, maximum: Tensor) -> Tensor:
    """exp(values - maximum), zero where both are -inf."""
    return torch.exp(values - maximum.clamp_min(torch.finfo(values.dtype).min))
