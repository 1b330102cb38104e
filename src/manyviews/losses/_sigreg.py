"""SIGReg: the distance of embeddings from a standard normal distribution, along random directions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from manyviews.losses._dense import matmul
from manyviews.utils import draw_normal

MAX_FREQUENCY = 3.0
"""Largest frequency at which characteristic functions are compared."""
NUM_FREQUENCIES = 17


def draw_slices(step: Tensor, seed: int, dim: int, count: int, like: Tensor) -> Tensor:
    """Return random unit directions (d, S); a function of seed and step."""
    index = torch.arange(dim * count, device=like.device).view(dim, count)
    directions = draw_normal(seed, step, index).to(like)
    return directions / torch.linalg.vector_norm(directions, dim=0)


def compute_sigreg(z: Tensor, mask: Tensor | None, slices: Tensor) -> Tensor:
    """Compute the distances (N,) of each view's embeddings (M, N, d) from a standard normal distribution.

    For each of the unit directions `slices` (d, S), the empirical characteristic function is compared with that of the
    normal distribution, by the trapezoidal rule over frequencies (the statistic of Epps and Pulley).
    """
    projections = matmul(z.flatten(0, 1), slices).unflatten(0, z.shape[:2])
    if mask is None:
        counts = z.new_full((z.shape[1],), len(z))
        weight = z.new_full((len(z), z.shape[1], 1), 1 / len(z))
    else:
        counts = mask.sum(0).to(z)
        weight = (mask / counts.clamp_min(1)).unsqueeze(2)
    spacing = MAX_FREQUENCY / (NUM_FREQUENCIES - 1)
    cosines, sines = _characteristic_function(projections, weight, spacing, NUM_FREQUENCIES)
    frequencies = torch.arange(NUM_FREQUENCIES, device=z.device, dtype=z.dtype) * spacing
    target = torch.exp(-frequencies.square() / 2)
    ends = (frequencies <= 0) | (frequencies >= MAX_FREQUENCY - spacing / 2)
    quadrature = torch.where(ends, spacing, 2 * spacing) * target
    error = (cosines - target[:, None, None]).square() + sines.square()
    return counts * (error * quadrature[:, None, None]).sum(0).mean(1)


# Operators, because a compiler would unroll the loops over frequencies into large kernels.
@torch.library.custom_op("manyviews::characteristic_function", mutates_args=())
def _characteristic_function(x: Tensor, weight: Tensor, spacing: float, count: int) -> Tensor:
    """Sum weight e^(i t x) over the first dimension at K frequencies t = 0, dt, ...: (2, K, ...), cosines and sines."""
    waves = x.new_empty(2, count, *x.shape[1:])
    for k, (cosine, sine) in enumerate(_iterate_waves(x, spacing, count)):
        torch.sum(cosine * weight, 0, out=waves[0, k])
        torch.sum(sine * weight, 0, out=waves[1, k])
    return waves


@torch.library.custom_op("manyviews::characteristic_function_backward", mutates_args=())
def _characteristic_function_backward(grad: Tensor, x: Tensor, weight: Tensor, spacing: float, count: int) -> Tensor:
    gradient = torch.zeros_like(x)
    for k, (cosine, sine) in enumerate(_iterate_waves(x, spacing, count)):
        gradient.addcmul_(cosine, grad[1, k], value=k * spacing).addcmul_(sine, grad[0, k], value=-k * spacing)
    return gradient.mul_(weight)


@_characteristic_function.register_fake
def _(x: Tensor, _weight: Tensor, _spacing: float, count: int) -> Tensor:
    return x.new_empty(2, count, *x.shape[1:])


@_characteristic_function_backward.register_fake
def _(_grad: Tensor, x: Tensor, _weight: Tensor, _spacing: float, _count: int) -> Tensor:
    return torch.empty_like(x)


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: object) -> None:  # noqa: ARG001
    x, weight, ctx.spacing, ctx.count = inputs
    ctx.save_for_backward(x, weight)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    gradient = _characteristic_function_backward(grad, *ctx.saved_tensors, ctx.spacing, ctx.count)
    return gradient, None, None, None


_characteristic_function.register_autograd(_differentiate, setup_context=_save_inputs)


def _iterate_waves(x: Tensor, spacing: float, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield cos(k dt x) and sin(k dt x) for k = 0, 1, ..., from one cosine and one sine."""
    first_cosine, first_sine = torch.cos(spacing * x), torch.sin(spacing * x)
    cosine, sine = torch.ones_like(x), torch.zeros_like(x)
    for k in range(count):
        yield cosine, sine
        if k + 1 < count:
            cosine, sine = cosine * first_cosine - sine * first_sine, sine * first_cosine + cosine * first_sine
