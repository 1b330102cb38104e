"""How embeddings (M, N, d) lie on the sphere: instances, views, dimension."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

BLOCK = 2048
"""Rows whose distances to all others are held at once."""


def alignment(z: Tensor) -> Tensor:
    """Mean squared distance between two views of an instance: 0 when all views meet.

    Example:
        >>> alignment(torch.ones(8, 3, 16))
        tensor(0.)
    """
    z = _unit(z)
    views = z.shape[1]
    if views < 2:
        raise ValueError(f"alignment needs at least two views of each instance, got {tuple(z.shape)}")
    # The mean over pairs of |a - b|^2 from the views' spread about their mean.
    spread = (z - z.mean(1, keepdim=True)).square().sum(2).mean(1)
    return (2 * views / (views - 1) * spread).mean()


def uniformity(z: Tensor, t: float = 2.0) -> Tensor:
    """Log of the mean of exp(-t |a - b|^2) over different instances, in the same view (Wang and Isola 2020).

    0 when all points are one, about -2t when they are spread evenly in many dimensions.

    Example:
        >>> uniformity(torch.eye(4)[:, None], t=2.0)
        tensor(-4.)
    """
    z = _unit(z)
    instances, views, _ = z.shape
    if instances < 2:
        raise ValueError(f"uniformity needs at least two instances, got {tuple(z.shape)}")
    total = z.new_zeros((), dtype=torch.float64)
    for view in z.unbind(1):
        for rows in view.split(BLOCK):
            total += torch.exp(2 * t * (rows @ view.T - 1)).sum(dtype=torch.float64)
    # Each point is at distance 0 of itself.
    own = torch.exp(2 * t * (z.square().sum(2) - 1)).sum(dtype=torch.float64)
    return ((total - own) / (instances * (instances - 1) * views)).log().to(z.dtype)


def numerical_rank(z: Tensor) -> int:
    """How many dimensions the embeddings fill: the rank of their covariance.

    Example:
        >>> numerical_rank(torch.randn(100, 4, 16))
        16
    """
    z = _unit(z).flatten(0, 1).double()
    z = z - z.mean(0)
    return int(torch.linalg.matrix_rank(z.T @ z / len(z), hermitian=True, rtol=_FLOAT32 * max(z.shape)))


def rankme(z: Tensor) -> Tensor:
    """How many dimensions the embeddings use evenly: exp of the entropy of their singular values (Garrido et al. 2023).

    Example:
        >>> rankme(torch.eye(4)[:, None])
        tensor(4.)
    """
    values = torch.linalg.svdvals(_unit(z).flatten(0, 1).double())
    share = values / values.sum()
    return torch.special.entr(share).sum().exp().to(z.dtype)


_FLOAT32 = torch.finfo(torch.float32).eps
"""Embeddings are float32, whatever the arithmetic here."""


def _unit(z: Tensor) -> Tensor:
    if z.dim() != 3 or not z.is_floating_point() or 0 in z.shape:
        raise ValueError(f"embeddings must be floats (instances, views, dim), got {z.dtype} {tuple(z.shape)}")
    return normalize(z.float() if z.dtype in (torch.float16, torch.bfloat16) else z, dim=2)
