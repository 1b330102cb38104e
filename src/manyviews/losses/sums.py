"""What is summed over tiles, and how a tile answers to a change of the sums.

`Exponential`: f is the identity and the rows are so short that no exponential can overflow or vanish (a temperature
above 0.025); one exponential serves the rows and the columns of a tile. `General`: any f, and under a logarithm each
side subtracts its own running maximum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor, autograd
from torch import distributed as dist

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

    def flat_slices(self, instances: int) -> tuple[slice, slice]:
        """The tile's rows and its columns among all views * instances rows."""
        last = self.views.stop - 1
        return (
            slice(self.view * instances + self.rows.start, self.view * instances + self.rows.stop),
            slice(self.views.start * instances + self.columns.start, last * instances + self.columns.stop),
        )


class Sums:
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


class Exponential(Sums):
    """log sum exp, one exponential for both sides."""

    def __init__(self, x: Tensor, present: Tensor | None, tiles: list[Tile], keep: int) -> None:
        rows = x.new_empty(x.shape[1], x.shape[0], x.shape[2])
        super().__init__(torch.mul(x.transpose(0, 1), BASE, out=rows), present)
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
        torch.mm(self.anchors(tile), self.contrasts(tile).T, out=into.view(len(into), -1))
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


class General(Sums):
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
        if self.logarithmic:
            total.log_().add_(self.largest)
        del self.largest
        return total

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
        gradients = self.gradients
        del self.weight, self.energies, self.gradients
        return (gradient, *gradients)


def _sides(tile: Tile, tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Of an (N, M, N) tensor: what belongs to the tile's rows (i, m) and to its columns (m, j)."""
    return tensor[tile.view, tile.rows, tile.views], tensor[tile.views, tile.columns, tile.view]


def _part(block: Tensor, tile: Tile) -> Tensor:
    """As much of the end of a block of memory as the tile takes."""
    return block[len(block) - math.prod(tile.shape) :].view(tile.shape)


def _exp_difference(values: Tensor, maximum: Tensor) -> Tensor:
    """exp(values - maximum), zero where both are -inf."""
    return torch.exp(values - maximum.clamp_min(torch.finfo(values.dtype).min))
