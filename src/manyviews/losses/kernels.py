"""Kernels K(u, v) = kappa(|u - v|^2) on the unit sphere, as functions of the cosine u.v.

A positive kernel has a logarithm and can be used in every loss, raised to the power 1/temperature. The logarithmic and
the Riesz kernel may be negative: the logarithm of their sum is undefined, so only `KernelContrastiveLoss` accepts them.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor


def squared_distance(cosine: Tensor) -> Tensor:
    """Return |u - v|^2 of unit vectors, never negative."""
    return (2 - 2 * cosine).clamp_min(0.0)


@dataclass(frozen=True)
class Gaussian:
    """kappa(x) = exp((2 - x) / 2), so that log K(u, v) = u.v: the kernel of the InfoNCE family.

    Examples:
        >>> from manyviews.losses import MVDHELLoss
        >>> loss = MVDHELLoss(kernel=Gaussian())(torch.randn(8, 4, 16))
    """

    def log(self, cosine: Tensor) -> Tensor:
        return cosine

    def value(self, cosine: Tensor, temperature: Tensor) -> Tensor:
        """Return exp(-x / (2 temperature)): the paper's e^(-t x) with t = 1 / (2 temperature)."""
        return torch.exp((cosine - 1) / temperature)


@dataclass(frozen=True)
class InverseMultiquadric:
    """kappa(x) = c / sqrt(c^2 + x).

    Examples:
        >>> from manyviews.losses import MVDHELLoss
        >>> loss = MVDHELLoss(kernel=InverseMultiquadric(c=0.5))(torch.randn(8, 4, 16))
    """

    c: float = 1.0

    def __post_init__(self) -> None:
        _require(self.c > 0, f"c must be > 0, got {self.c}")

    def log(self, cosine: Tensor) -> Tensor:
        return -0.5 * torch.log1p(squared_distance(cosine) / self.c**2)

    def value(self, cosine: Tensor, temperature: Tensor) -> Tensor:
        return torch.exp(self.log(cosine) / temperature)


@dataclass(frozen=True)
class Logarithmic:
    """kappa(x) = -log(s x + beta) / 2.

    Examples:
        >>> from manyviews.losses import KernelContrastiveLoss
        >>> loss = KernelContrastiveLoss(kernel=Logarithmic())(torch.randn(8, 4, 16))
    """

    s: float = 2.0
    beta: float = 1.0

    def __post_init__(self) -> None:
        _require(self.s > 0 and self.beta > 0, f"s and beta must be > 0, got s={self.s}, beta={self.beta}")

    def value(self, cosine: Tensor) -> Tensor:
        return -0.5 * torch.log(self.s * squared_distance(cosine) + self.beta)


@dataclass(frozen=True)
class Riesz:
    """kappa(x) = -x^(-s/2), -2 < s < 0; for s > 0 it is unbounded at distance 0.

    Examples:
        >>> from manyviews.losses import KernelContrastiveLoss
        >>> loss = KernelContrastiveLoss(kernel=Riesz(s=-1.0))(torch.randn(8, 4, 16))
    """

    s: float = -1.0

    def __post_init__(self) -> None:
        _require(-2 < self.s < 0, f"s must be between -2 and 0, got {self.s}")

    def value(self, cosine: Tensor) -> Tensor:
        # The derivative is infinite at distance 0; the clamp makes it 0 there.
        eps = torch.finfo(cosine.dtype).eps
        return -squared_distance(cosine).clamp_min(eps).pow(-self.s / 2)


@runtime_checkable
class PositiveKernel(Protocol):
    """A kernel with a logarithm: `Gaussian`, `InverseMultiquadric`, or your own."""

    def log(self, cosine: Tensor) -> Tensor: ...

    def value(self, cosine: Tensor, temperature: Tensor) -> Tensor: ...


@runtime_checkable
class SignedKernel(Protocol):
    """A kernel that may be negative: `Logarithmic`, `Riesz`, or your own."""

    def value(self, cosine: Tensor) -> Tensor: ...


Kernel = PositiveKernel | SignedKernel
BUILT_IN_KERNELS = (Gaussian, InverseMultiquadric, Logarithmic, Riesz)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(f"kernel parameter {message}")
