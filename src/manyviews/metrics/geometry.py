"""Geometry of embeddings (M, N, d) = (instances, views, dimension) on the unit sphere.

`mask` (M, N) is true where a view exists; default: everywhere. Pass `z[:, [view]]` for a single view. Zero vectors have
no direction and count as one and the same point.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from manyviews.metrics.retrieval import compute_retrieval
from manyviews.utils import check_finite, track

GEOMETRY_HELP = {
    "alignment": "squared distance of views, 0 is best",
    "uniformity": "0 for a single point, -4 if uniform",
    "wasserstein": "1 for a single point, 0 if uniform",
    "recall_at_1": "nearest neighbor is another view",
    "rank": "rank of the covariance",
    "rankme": "effective rank",
}
"""Short explanation of each metric."""


ROW_BLOCK, COLUMN_BLOCK = 1024, 8192
"""Rows and columns of a block of cosines; fewer than 2^24 elements, up to which float32 counts exactly."""
NUM_BINS = 2**14
"""Histogram bins of cosines from -1 to 1."""
NUM_ANGLES = 2**16
"""Intervals of the grid of angles from 0 to pi."""


def alignment(z: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the mean squared distance between two views of an instance, averaged over pairs, then over instances.

    Examples:
        >>> alignment(torch.ones(8, 3, 16))
        tensor(0.)
    """
    z, mask = _normalize(z, mask)
    count = mask.sum(1)
    multi_view = count >= 2
    if not multi_view.any():
        raise ValueError(f"alignment needs an instance with at least two views, got {tuple(z.shape)}")
    z, mask, count = z[multi_view], mask[multi_view, :, None], count[multi_view]
    # The mean of |a - b|^2 over pairs follows from the variance of the views.
    mean = (z * mask).sum(1, keepdim=True) / count[:, None, None]
    spread = ((z - mean).square() * mask).sum((1, 2))
    return (2 * spread / (count - 1)).mean()


def uniformity(z: Tensor, mask: Tensor | None = None, t: float = 2.0) -> Tensor:
    """Return log of the mean of exp(-t |a - b|^2) over pairs of instances in the same view (Wang and Isola 2020).

    It is 0 if all points coincide, and about -2t for a uniform distribution in many dimensions.

    Examples:
        >>> uniformity(torch.eye(4)[:, None], t=2.0)
        tensor(-4.)
    """
    z, mask = _normalize(z, mask)
    total = pairs = 0.0
    for cosine, weight in _iterate_cosine_blocks(z, mask):
        total += weight * _to_float64(cosine.sub_(1).mul_(2 * t).exp_().sum(1)).sum().item()
        pairs += weight * cosine.numel()
    return z.new_tensor(math.log(total / pairs))


def wasserstein_uniformity(z: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the Wasserstein-1 distance of the cosines of pairs of instances (same view) from those of uniform points.

    The cosine of two uniform points on the sphere in d dimensions has a density proportional to
    (1 - x^2)^((d - 3) / 2), so nothing is sampled. The distance is 0 for uniform points and about 1 if all points
    coincide. Cosines are binned in steps of 2 / NUM_BINS.

    Examples:
        >>> round(wasserstein_uniformity(torch.ones(5, 2, 64)).item(), 3)
        1.0
    """
    z, mask = _normalize(z, mask)
    counts = torch.zeros(NUM_BINS, dtype=torch.float64)
    for cosine, weight in _iterate_cosine_blocks(z, mask):
        counts += weight * _to_float64(torch.histc(cosine.clamp_(-1, 1), NUM_BINS, -1, 1)).cpu()
    cdf = torch.cat([counts.new_zeros(1), counts.cumsum(0) / counts.sum()])
    gap = cdf - compute_sphere_cosine_cdf(z.shape[2], torch.linspace(-1, 1, NUM_BINS + 1, dtype=torch.float64))
    return _integrate_trapezoid(gap[:-1], gap[1:]).sum().mul(2 / NUM_BINS).to(z)


def compute_sphere_cosine_cdf(dim: int, x: Tensor) -> Tensor:
    """Return the probability that two uniform points on the sphere in `dim` dimensions have a cosine <= x (float64)."""
    if dim < 2:
        raise ValueError(f"dim must be >= 2 for cosines between -1 and 1, got {dim}")
    # The density of the angle has no singularity, unlike that of the cosine, so the trapezoidal rule is accurate.
    angle, log_density = make_sphere_angle_grid(dim, x.device)
    mass = torch.cumulative_trapezoid(log_density.exp(), angle)
    mass = torch.cat([mass.new_zeros(1), mass]) / mass[-1]
    position = x.clamp(-1, 1).acos() / torch.pi * NUM_ANGLES
    low = position.floor().long().clamp(max=NUM_ANGLES - 1)
    return 1 - torch.lerp(mass[low], mass[low + 1], position - low)


def make_sphere_angle_grid(dim: int, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """Return angles from 0 to pi, and the log of their density sin^(dim - 2) for two uniform points (float64)."""
    angle = torch.linspace(0, torch.pi, NUM_ANGLES + 1, dtype=torch.float64, device=device)
    return angle, (dim - 2) * angle.sin().clamp_min(1e-300).log()


def spectrum(z: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the singular values (d,) of all embeddings, in descending order, divided by sqrt(number of embeddings).

    Examples:
        >>> spectrum(torch.eye(4)[:, None])
        tensor([0.5000, 0.5000, 0.5000, 0.5000])
    """
    # From the d x d matrix; float64 keeps float32 precision after the square root.
    return _compute_second_moments(_select_valid(z, mask)).sqrt().to(z)


def numerical_rank(z: Tensor, mask: Tensor | None = None) -> int:
    """Return the numerical rank of the covariance of the embeddings.

    Examples:
        >>> numerical_rank(torch.randn(100, 4, 16))
        16
    """
    embeddings = _select_valid(z, mask)
    values = _compute_second_moments(embeddings - embeddings.mean(0))
    # Embeddings have unit length: a covariance of rounding errors alone has rank 0.
    tolerance = torch.finfo(torch.float32).eps * z.shape[2] * values[0].clamp_min(1e-6)
    return int((values > tolerance).sum())


def rankme(z: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the effective rank: exp of the entropy of the normalized singular values (Garrido et al. 2023).

    Examples:
        >>> rankme(torch.eye(4)[:, None])
        tensor(4.)
    """
    values = _to_float64(spectrum(z, mask))
    return torch.special.entr(values / values.sum()).sum().exp().to(z)


def _compute_recall(z: Tensor, mask: Tensor | None) -> float:
    return compute_retrieval(z[:, 0], z[:, 1], [1], None if mask is None else mask[:, :2].all(1))["recall@1"]


GEOMETRY_METRICS: dict[str, Callable[[Tensor, Tensor | None], Tensor | float]] = {
    "alignment": alignment,
    "uniformity": uniformity,
    "wasserstein": wasserstein_uniformity,
    "rank": numerical_rank,
    "rankme": rankme,
    "dimensions": lambda z, _: z.shape[2],
    "recall_at_1": _compute_recall,
    "spectrum": spectrum,
}


def compute_geometry(
    z: Tensor, mask: Tensor | None = None, metrics: Iterable[str] = tuple(GEOMETRY_METRICS)
) -> dict[str, Any]:
    """Compute metrics of embeddings (M, N, d) as JSON values; `mask` (M, N) is true where a view exists.

    `alignment` is None if no instance has two views. `recall_at_1` is the fraction of instances whose second view is
    the nearest second view to their first view.

    Examples:
        >>> compute_geometry(torch.eye(4)[:, None].expand(4, 2, 4), metrics=["alignment", "rank"])
        {'alignment': 0.0, 'rank': 3}
    """
    has_pairs = mask is None or bool((mask.sum(1) >= 2).any())
    values = {n: GEOMETRY_METRICS[n](z, mask) if has_pairs or n != "alignment" else None for n in metrics}
    plain = {n: value.tolist() if isinstance(value, Tensor) else value for n, value in values.items()}
    return {n: tuple(value) if isinstance(value, list) else value for n, value in plain.items()}


def _iterate_cosine_blocks(z: Tensor, mask: Tensor) -> Iterator[tuple[Tensor, float]]:
    """Iterate over blocks of cosines (a, b) of different instances in the same view, and their weights.

    A pair occurs once with weight 1, or twice with weight 1/2 in diagonal blocks. The caller may modify the blocks.
    """
    views = [z[mask[:, i], i] for i in range(z.shape[1])]
    if not any(len(view) > 1 for view in views):
        raise ValueError(f"at least two instances with the same view are required, got {tuple(z.shape)}")
    blocks = [(view, first) for view in views for first in range(0, len(view), ROW_BLOCK)]
    for view, first in track(blocks, "blocks of pairwise cosines", len(blocks)):
        block = view[first : first + ROW_BLOCK]
        size = len(block)
        if size > 1:
            # Remove the diagonal: skip the first element, then drop the last of every size + 1.
            yield (block @ block.T).flatten()[1:].view(size - 1, size + 1)[:, :-1].contiguous(), 0.5
        for start in range(first + ROW_BLOCK, len(view), COLUMN_BLOCK):
            yield block @ view[start : start + COLUMN_BLOCK].T, 1.0


def _integrate_trapezoid(a: Tensor, b: Tensor) -> Tensor:
    """Integrate |linear function from a to b| over an interval of length 1."""
    crossing = (a.square() + b.square()) / (2 * (a - b).abs().clamp_min(1e-300))
    return torch.where(a * b < 0, crossing, (a + b).abs() / 2)


def _compute_second_moments(x: Tensor) -> Tensor:
    """Return the second moments (d,) of vectors (n, d) along their principal axes, in descending order."""
    return torch.linalg.eigvalsh(x.T @ x / len(x)).flip(0).clamp_min(0)


def _select_valid(z: Tensor, mask: Tensor | None) -> Tensor:
    z, mask = _normalize(z, mask)
    return _to_float64(z[mask])


def _to_float64(values: Tensor) -> Tensor:
    """Convert to float64, on the CPU for devices without float64."""
    return (values.cpu() if values.device.type == "mps" else values).double()


def _normalize(z: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return unit vectors and the mask (M, N)."""
    if z.dim() != 3 or not z.is_floating_point() or 0 in z.shape:
        raise ValueError(f"embeddings must be floats (instances, views, dim), got {z.dtype} {tuple(z.shape)}")
    if mask is None:
        mask = torch.ones(z.shape[:2], dtype=torch.bool, device=z.device)
    elif mask.dtype != torch.bool or mask.shape != z.shape[:2] or not mask.any():
        raise ValueError(f"mask must be bool {tuple(z.shape[:2])}, not all False, got {mask.dtype} {tuple(mask.shape)}")
    check_finite("embeddings", z[mask])
    z = torch.where(mask[..., None], z.float() if z.dtype in (torch.float16, torch.bfloat16) else z, 0)
    z = normalize(z, dim=2)
    is_zero = ~z.any(2, keepdim=True)
    return torch.where(is_zero, torch.eye(1, z.shape[2], dtype=z.dtype, device=z.device), z), mask
