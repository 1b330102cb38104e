"""Accumulators over tiles: forward sums, and the gradient of each tile given the gradient of the sums.

`SharedExpAccumulator`: f is the identity and the rows are so short that no exponential can overflow or underflow (a
temperature above 0.025); the rows and the columns of a tile share one exponential. `StableAccumulator`: any f; in log
space each side subtracts its own running maximum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import accumulate
from types import MethodType
from typing import NamedTuple

import torch
from torch import Tensor, autograd
from torch import distributed as dist

MAX_SAFE_LOGIT = {torch.float32: 40.0, torch.float64: 300.0}
"""Largest |f| for which sums of exp(f) and their inverses stay far from overflow and underflow."""
# On a CPU torch's exp2 takes half the time of its exp, so the rows are scaled by the square root of log2(e).
SQRT_LOG2_E = math.sqrt(math.log2(math.e))

KernelFunction = Callable[..., Tensor]
"""f(similarity, *parameters), elementwise."""
_REGISTERED: dict[Hashable, RegisteredKernel] = {}


class RegisteredKernel(NamedTuple):
    """A function of similarities with a number: an operator takes numbers, not functions."""

    function: KernelFunction
    number: int


def register_kernel(function: KernelFunction) -> RegisteredKernel:
    """Return the function with its number in this process; functions of equal kernels have the same number."""
    key: Hashable = function
    if isinstance(function, partial):
        key = function.func, function.args
    elif isinstance(function, MethodType):
        key = function.__func__, function.__self__
    try:
        registered = _REGISTERED.get(key)
    except TypeError:  # a kernel without a hash
        key = object()
        registered = None
    if registered is None:
        registered = _REGISTERED[key] = RegisteredKernel(function, len(_REGISTERED))
    return registered


def get_registered_kernel(number: int) -> RegisteredKernel:
    return list(_REGISTERED.values())[number]


IDENTITY = register_kernel(torch.clone)
"""f(s) = s."""


class Tile(NamedTuple):
    """Rows i of view l against columns j of views m; a tile of several views has all instances."""

    row_view: int
    rows: slice
    col_views: slice
    cols: slice
    symmetric: bool
    """The tile is its own transpose."""
    has_self_pairs: bool
    """The tile contains pairs j = i, which are not negatives."""

    @property
    def origin(self) -> tuple[int, int, int, int]:
        return self.row_view, self.rows.start, self.col_views.start, self.cols.start

    @property
    def shape(self) -> tuple[int, int, int]:
        rows, views, cols = (s.stop - s.start for s in (self.rows, self.col_views, self.cols))
        return rows, views, cols

    def flat_slices(self, instances: int) -> tuple[slice, slice]:
        """Return slices of the tile's rows and columns in a tensor of all views * instances rows."""
        last = self.col_views.stop - 1
        return (
            slice(self.row_view * instances + self.rows.start, self.row_view * instances + self.rows.stop),
            slice(self.col_views.start * instances + self.cols.start, last * instances + self.cols.stop),
        )


class TileAccumulator:
    """Base class; the values of a tile have the shape (i, m, j)."""

    def __init__(self, rows: Tensor, mask: Tensor | None, ids: Tensor | None) -> None:
        self.rows = rows
        self.missing = None if mask is None else ~mask.T
        self.ids = ids

    def row_block(self, tile: Tile) -> Tensor:
        return self.rows[tile.row_view, tile.rows]

    def col_block(self, tile: Tile) -> Tensor:
        return self.rows[tile.col_views, tile.cols].flatten(0, 1)

    def mask_excluded_(self, values: Tensor, tile: Tile, fill: float) -> Tensor:
        """Fill in place the pairs of an instance with itself or one of the same id, and of missing views."""
        if self.ids is not None:
            values.masked_fill_(self.ids[tile.rows, None, None] == self.ids[tile.cols], fill)
        elif tile.has_self_pairs:
            values.diagonal(dim1=0, dim2=2).fill_(fill)
        if self.missing is not None:
            values.masked_fill_(self.missing[tile.row_view, tile.rows, None, None], fill)
            values.masked_fill_(self.missing[tile.col_views, tile.cols], fill)
        return values


class SharedExpAccumulator(TileAccumulator):
    """log sum exp, with one exponential for both sides."""

    def __init__(self, x: Tensor, mask: Tensor | None, ids: Tensor | None, tiles: list[Tile], cache: Tensor) -> None:
        rows = x.new_empty(x.shape[1], x.shape[0], x.shape[2])
        super().__init__(torch.mul(x.detach().transpose(0, 1), SQRT_LOG2_E, out=rows), mask, ids)
        sizes = [math.prod(tile.shape) for tile in tiles]
        ends = [end for end in accumulate(sizes) if end <= len(cache)]
        self.cache_offsets = {tile.origin: end for tile, end in zip(tiles, ends, strict=False)}
        # Allocating memory costs more than the arithmetic in it, so each buffer is allocated once.
        self.cache = cache
        self.max_tile_numel = max(sizes, default=0)
        self.workspace = x.new_empty(self.max_tile_numel)

    def cached_tile(self, tile: Tile) -> Tensor | None:
        end = self.cache_offsets.get(tile.origin)
        return None if end is None else _take_tail_view(self.cache[:end], tile)

    def compute_values(self, tile: Tile, out: Tensor) -> Tensor:
        torch.mm(self.row_block(tile), self.col_block(tile).T, out=out.view(len(out), -1))
        return self.mask_excluded_(out.exp2_(), tile, 0.0)

    def add(self, total: Tensor, tile: Tile) -> None:
        cached = self.cached_tile(tile)
        values = self.compute_values(tile, _take_tail_view(self.workspace, tile) if cached is None else cached)
        row_sums, col_sums = _get_row_col_slices(tile, total)
        row_sums += values.sum(2)
        if not tile.symmetric:
            col_sums += values.sum(0)

    def finish(self, total: Tensor, distributed: bool) -> Tensor:
        if distributed:
            dist.all_reduce(total)
        return total.log_()

    def start_backward(self, weight: Tensor, energies: Tensor) -> None:
        # An empty sum has the energy -inf and a zero gradient.
        inverse = torch.exp(-energies.masked_fill(energies == -torch.inf, torch.inf))
        self.row_weight = weight * inverse
        self.col_weight = self.row_weight.permute(2, 0, 1).contiguous()
        self.weight_buffer = self.rows.new_empty(self.max_tile_numel)

    def similarity_grad(self, tile: Tile) -> Tensor:
        weight = _take_tail_view(self.weight_buffer, tile)
        row_weight = self.row_weight[tile.row_view, tile.rows, tile.col_views, None]
        torch.add(row_weight, self.col_weight[tile.row_view, tile.col_views, tile.cols], out=weight)
        values = self.cached_tile(tile)
        if values is None:
            values = self.compute_values(tile, _take_tail_view(self.workspace, tile))
        return weight.mul_(values)

    def finish_backward(self, gradient: Tensor) -> tuple[Tensor, ...]:
        return (gradient.div_(SQRT_LOG2_E),)


class StableAccumulator(TileAccumulator):
    """Sum of f, or log sum exp f with a running maximum of each sum."""

    def __init__(
        self,
        x: Tensor,
        mask: Tensor | None,
        ids: Tensor | None,
        kernel_fn: KernelFunction,
        parameters: tuple[Tensor, ...],
        log_space: bool,
    ) -> None:
        super().__init__(x.detach().transpose(0, 1).contiguous(), mask, ids)
        self.kernel_fn = kernel_fn
        self.parameters = parameters
        self.log_space = log_space
        self.fill = -torch.inf if log_space else 0.0
        self.running_max = x.new_full((x.shape[1], x.shape[0], x.shape[1]), -torch.inf)

    def similarities(self, tile: Tile) -> Tensor:
        return (self.row_block(tile) @ self.col_block(tile).T).view(tile.shape)

    def add(self, total: Tensor, tile: Tile) -> None:
        values = self.kernel_fn(self.similarities(tile), *self.parameters)
        values = self.mask_excluded_(values, tile, self.fill)
        sides = zip((2, 0), _get_row_col_slices(tile, total), _get_row_col_slices(tile, self.running_max), strict=True)
        for dim, sums, maximum in list(sides)[: 1 if tile.symmetric else 2]:
            if self.log_space:
                new = torch.maximum(maximum, values.amax(dim))
                sums.mul_(_exp_sub_max(maximum, new))
                sums.add_(_exp_sub_max(values, new.unsqueeze(dim)).sum(dim))
                maximum.copy_(new)
            else:
                sums.add_(values.sum(dim))

    def finish(self, total: Tensor, distributed: bool) -> Tensor:
        if distributed:
            if self.log_space:
                local, self.running_max = self.running_max, self.running_max.clone()
                dist.all_reduce(self.running_max, dist.ReduceOp.MAX)
                total *= _exp_sub_max(local, self.running_max)
            dist.all_reduce(total)
        if self.log_space:
            total.log_().add_(self.running_max)
        return total

    def start_backward(self, weight: Tensor, energies: Tensor) -> None:
        self.weight = weight
        self.energies = energies.masked_fill(energies == -torch.inf, torch.inf)
        self.gradients = [torch.zeros_like(p) for p in self.parameters]

    def similarity_grad(self, tile: Tile) -> Tensor:
        values, differentiate = _start_vjp(self.kernel_fn, self.similarities(tile), *self.parameters)
        row_weight, col_weight = _get_row_col_slices(tile, self.weight)
        if self.log_space:
            logs = self.mask_excluded_(values.clone(), tile, self.fill)
            row_energies, col_energies = _get_row_col_slices(tile, self.energies)
            grad_out = row_weight[:, :, None] * torch.exp(logs - row_energies[:, :, None])
            grad_out += col_weight * torch.exp(logs - col_energies)
        else:
            grad_out = self.mask_excluded_(row_weight[:, :, None] + col_weight, tile, 0.0)
        similarity_grad, *gradients = differentiate(grad_out)
        for total, gradient in zip(self.gradients, gradients, strict=True):
            # A tile that is its own transpose contains each pair twice.
            total.add_(gradient, alpha=0.5 if tile.symmetric else 1.0)
        return similarity_grad

    def finish_backward(self, gradient: Tensor) -> tuple[Tensor, ...]:
        return (gradient, *self.gradients)


def _start_vjp(function: KernelFunction, *inputs: Tensor) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, ...]]]:
    """Return the values of a function, and the function from their gradient to those of the inputs."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    for recording in (nullcontext, _enable_recording):  # the second is for operators
        with torch.enable_grad(), recording():
            values = function(*leaves)
        if values.requires_grad:
            break

    def differentiate(grad: Tensor) -> tuple[Tensor, ...]:
        if not values.requires_grad:  # a constant function
            return tuple(torch.zeros_like(leaf) for leaf in leaves)
        with recording():
            return autograd.grad(values, leaves, grad)

    return values.detach(), differentiate


def _enable_recording() -> AbstractContextManager[None]:
    """Let autograd record in the code of an operator, where torch excludes autograd from the dispatch."""
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in ("AutogradFunctionality", "AutogradOther", "ADInplaceOrView"):
        excluded = excluded - torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    guard: AbstractContextManager[None] = torch._C._ForceDispatchKeyGuard(
        torch._C._dispatch_tls_local_include_set(), excluded
    )
    return guard


def count_cached_values(tiles: list[Tile], max_values: int) -> int:
    """Return the number of values of the first tiles that fit in a cache of `max_values`."""
    count = 0
    for tile in tiles:
        size = math.prod(tile.shape)
        if count + size > max_values:
            break
        count += size
    return count


def _get_row_col_slices(tile: Tile, tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Return the parts of an (N, M, N) tensor for the tile's rows (i, m) and columns (m, j)."""
    return tensor[tile.row_view, tile.rows, tile.col_views], tensor[tile.col_views, tile.cols, tile.row_view]


def _take_tail_view(buffer: Tensor, tile: Tile) -> Tensor:
    """Return the end of a buffer as a tensor of the tile's shape."""
    return buffer[len(buffer) - math.prod(tile.shape) :].view(tile.shape)


def _exp_sub_max(values: Tensor, maximum: Tensor) -> Tensor:
    """Return exp(values - maximum), zero where both are -inf."""
    return torch.exp(values - maximum.clamp_min(torch.finfo(values.dtype).min))
