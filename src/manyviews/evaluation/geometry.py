"""How embeddings (M, N, d) lie on the sphere: instances, views, dimension.

`present` (M, N) says which views are there; without it, all. For one view alone pass `z[:, [view]]`. A vector of length
zero has no direction: all of them count as one point.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import normalize

from manyviews.evaluation.knn import check_finite
from manyviews.evaluation.progress import tracked

BLOCK = 1024
COLUMNS = 8192
"""Rows whose products with columns are held at once; of a block less than 2^24, up to which float32 counts."""
BINS = 2**14
"""Steps from -1 to 1 in which cosines are counted."""


def alignment(z: Tensor, present: Tensor | None = None) -> Tensor:
    """Mean squared distance between two views of an instance, over pairs, then instances: 0 when all views meet.

    Examples:
        >>> alignment(torch.ones(8, 3, 16))
        tensor(0.)
    """
    z, there = _unit(z, present)
    count = there.sum(1)
    several = count >= 2
    if not several.any():
        raise ValueError(f"alignment needs an instance with at least two views, got {tuple(z.shape)}")
    z, there, count = z[several], there[several, :, None], count[several]
    # The mean over pairs of |a - b|^2 from the views' spread about their mean.
    mean = (z * there).sum(1, keepdim=True) / count[:, None, None]
    spread = ((z - mean).square() * there).sum((1, 2))
    return (2 * spread / (count - 1)).mean()


def uniformity(z: Tensor, present: Tensor | None = None, t: float = 2.0) -> Tensor:
    """Log of the mean of exp(-t |a - b|^2) over different instances, in the same view (Wang and Isola 2020).

    0 when all points are one, about -2t when they are spread evenly in many dimensions.

    Examples:
        >>> uniformity(torch.eye(4)[:, None], t=2.0)
        tensor(-4.)
    """
    z, there = _unit(z, present)
    total = pairs = 0.0
    for cosine, weight in _cosines(z, there):
        total += weight * _wide(cosine.sub_(1).mul_(2 * t).exp_().sum(1)).sum().item()
        pairs += weight * cosine.numel()
    return z.new_tensor(math.log(total / pairs))


def wasserstein_uniformity(z: Tensor, present: Tensor | None = None) -> Tensor:
    """Wasserstein-1 distance between the cosines of different instances, in the same view, and those of even points.

    The law of the cosine of two points drawn evenly on the sphere in d dimensions is known (density proportional to
    (1 - x^2)^((d - 3) / 2)), so nothing is drawn. 0 when the points are spread evenly, about 1 when all are one.
    Cosines are counted in steps of 2 / BINS.

    Examples:
        >>> round(wasserstein_uniformity(torch.ones(5, 2, 64)).item(), 3)
        1.0
    """
    z, there = _unit(z, present)
    counts = torch.zeros(BINS, dtype=torch.float64)
    for cosine, weight in _cosines(z, there):
        counts += weight * _wide(torch.histc(cosine.clamp_(-1, 1), BINS, -1, 1)).cpu()
    found = torch.cat([counts.new_zeros(1), counts.cumsum(0) / counts.sum()])
    gap = found - even_law(z.shape[2], torch.linspace(-1, 1, BINS + 1, dtype=torch.float64))
    return _area(gap[:-1], gap[1:]).sum().mul(2 / BINS).to(z)


def even_law(dim: int, x: Tensor) -> Tensor:
    """The probability that two points drawn evenly on the sphere in `dim` dimensions have a cosine <= x (float64).

    Examples:
        >>> even_law(3, torch.tensor([-1.0, 0.5, 1.0], dtype=torch.float64))
        tensor([0.0000, 0.7500, 1.0000], dtype=torch.float64)
    """
    if dim < 2:
        raise ValueError(f"on a sphere in {dim} dimensions there are no cosines between -1 and 1")
    # In the angle the density is sin^(d-2), without a singularity: trapezoids are exact enough.
    angle = torch.linspace(0, torch.pi, 2**16 + 1, dtype=torch.float64, device=x.device)
    density = angle.sin().clamp_min(0).pow(dim - 2)
    mass = torch.cumulative_trapezoid(density, angle)
    mass = torch.cat([mass.new_zeros(1), mass]) / mass[-1]
    place = x.clamp(-1, 1).acos() / torch.pi * 2**16
    low = place.floor().long().clamp(max=2**16 - 1)
    return 1 - torch.lerp(mass[low], mass[low + 1], place - low)


def spectrum(z: Tensor, present: Tensor | None = None) -> Tensor:
    """Singular values (d,) of all embeddings, the largest first, divided by the root of their number.

    Examples:
        >>> spectrum(torch.eye(4)[:, None])
        tensor([0.5000, 0.5000, 0.5000, 0.5000])
    """
    rows = _rows(z, present)
    # Through the small d x d matrix; in float64 its roots keep float32's digits.
    return _eigenvalues(rows.T @ rows / len(rows)).sqrt().to(z)


def numerical_rank(z: Tensor, present: Tensor | None = None) -> int:
    """How many dimensions the embeddings fill: the rank of their covariance.

    Examples:
        >>> numerical_rank(torch.randn(100, 4, 16))
        16
    """
    rows = _rows(z, present)
    rows = rows - rows.mean(0)
    values = _eigenvalues(rows.T @ rows / len(rows))
    # A covariance of nothing but rounding has no rank: the rows are of length 1.
    least = torch.finfo(torch.float32).eps * rows.shape[1] * values[0].clamp_min(1e-6)
    return int((values > least).sum())


def rankme(z: Tensor, present: Tensor | None = None) -> Tensor:
    """How many dimensions the embeddings use evenly: exp of the entropy of their singular values (Garrido et al. 2023).

    Examples:
        >>> rankme(torch.eye(4)[:, None])
        tensor(4.)
    """
    values = _wide(spectrum(z, present))
    return torch.special.entr(values / values.sum()).sum().exp().to(z)


def _cosines(z: Tensor, there: Tensor) -> Iterator[tuple[Tensor, float]]:
    """Cosines (a, b) of different instances in the same view, in blocks, each with its weight; yours to change.

    A pair is in a block once with weight 1 or, where the block lies on the diagonal, twice with weight 1/2.
    """
    found = False
    views = [z[there[:, number], number] for number in range(z.shape[1])]
    blocks = [(view, first) for view in views for first in range(0, len(view), BLOCK)]
    for view, first in tracked(blocks, "pairs of instances, in blocks", len(blocks)):
        rows = view[first : first + BLOCK]
        square = rows @ rows.T
        size = len(rows)
        if size > 1:
            found = True
            # Without the diagonal: as size - 1 rows of size, from the second number on.
            yield square.flatten()[1:].view(size - 1, size + 1)[:, :-1].contiguous(), 0.5
        for start in range(first + BLOCK, len(view), COLUMNS):
            found = True
            yield rows @ view[start : start + COLUMNS].T, 1.0
    if not found:
        raise ValueError(f"two instances with the same view are needed, got {tuple(z.shape)}")


def _area(a: Tensor, b: Tensor) -> Tensor:
    """Of |line from a to b| over a step of 1."""
    crossing = (a.square() + b.square()) / (2 * (a - b).abs().clamp_min(1e-300))
    return torch.where(a * b < 0, crossing, (a + b).abs() / 2)


def _eigenvalues(matrix: Tensor) -> Tensor:
    return torch.linalg.eigvalsh(matrix).flip(0).clamp_min(0)


def _rows(z: Tensor, present: Tensor | None) -> Tensor:
    z, there = _unit(z, present)
    return _wide(z[there])


def _wide(values: Tensor) -> Tensor:
    """In float64, which some devices do not have."""
    return (values.cpu() if values.device.type == "mps" else values).double()


def _unit(z: Tensor, present: Tensor | None) -> tuple[Tensor, Tensor]:
    """Unit vectors, and which of them there are (M, N)."""
    if z.dim() != 3 or not z.is_floating_point() or 0 in z.shape:
        raise ValueError(f"embeddings must be floats (instances, views, dim), got {z.dtype} {tuple(z.shape)}")
    if present is None:
        present = torch.ones(z.shape[:2], dtype=torch.bool, device=z.device)
    elif present.dtype != torch.bool or present.shape != z.shape[:2] or not present.any():
        raise ValueError(
            f"present must be a bool {tuple(z.shape[:2])}, not all False, got {present.dtype} {tuple(present.shape)}"
        )
    check_finite("embeddings", z[present])
    z = torch.where(present[..., None], z.float() if z.dtype in (torch.float16, torch.bfloat16) else z, 0)
    z = normalize(z, dim=2)
    nowhere = ~z.any(2, keepdim=True)
    return torch.where(nowhere, torch.eye(1, z.shape[2], dtype=z.dtype, device=z.device), z), present
