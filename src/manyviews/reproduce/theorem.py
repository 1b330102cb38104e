"""The theorem in numbers: the limits of MV-InfoNCE and MV-DHEL as instances grow, and their minimizers.

With C(u) = E_v exp(u.v / tau) over other instances, and means over views inside the logarithm,

    L_MV-InfoNCE - log M                        ->  -E log mean_{l!=m} exp(P[l,m]) +     E log mean_l C(u_l)
    L_MV-DHEL - N log(M - 1) + log(N(N - 1))    ->  -E log mean_{l!=m} exp(P[l,m]) + N x E log C(u)

The paper has log(M - 1) where MV-DHEL needs N log(M - 1), and one formula for both; MV-DHEL weights uniformity by N,
which has the same minimizers. The paper's alignment is -E P: by Jensen it is larger, with equality if views coincide.
C has a closed form for points uniform on a sphere of k dimensions, also if a fraction of them has collapsed to one
point. So the limit is exact where views coincide; elsewhere the alignment is estimated from many instances.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from manyviews.losses import get_loss
from manyviews.metrics import alignment, make_sphere_angle_grid, uniformity, wasserstein_uniformity
from manyviews.reproduce.claims import Claim
from manyviews.reproduce.figures import get_line_style, save_figure, use_plot_style
from manyviews.utils import Table, track, warmup_cosine_lr

TEMPERATURE, VIEWS, DIM = 0.5, 3, 16
THEOREM_LOSSES = ("mv-infonce", "mv-dhel")
NUM_ALIGNMENT_SAMPLES = 2**22
"""Instances from which an alignment without closed form is estimated."""


@dataclass(frozen=True)
class PointCloud:
    """Points on the sphere: uniform in `dims` dimensions, views `noise` apart, a fraction collapsed to one point."""

    name: str
    dims: int
    noise: float
    collapsed_fraction: float = 0.0

    def sample(self, instances: int, generator: torch.Generator) -> Tensor:
        """Sample embeddings (M, N, d) in float64."""
        shape = (instances, VIEWS, self.dims)
        center = normalize(torch.randn(instances, 1, self.dims, generator=generator, dtype=torch.float64), dim=2)
        if self.collapsed_fraction:
            # To reduce sampling error, the number of collapsed points is fixed and the others come in opposite pairs.
            num_collapsed = round(self.collapsed_fraction * instances)
            half = (instances - num_collapsed) // 2
            center[:num_collapsed] = torch.eye(1, self.dims, dtype=torch.float64)
            center[num_collapsed + half :] = -center[num_collapsed : instances - half]
        noise = torch.randn(shape, generator=generator, dtype=torch.float64)
        z = normalize(center + self.noise * noise, dim=2)
        return torch.cat([z, z.new_zeros(instances, VIEWS, DIM - self.dims)], 2)


CASES = (
    PointCloud("views meet, spread evenly", DIM, 0.0),
    PointCloud("views meet, in 4 of 16 dimensions", 4, 0.0),
    PointCloud("views meet, a quarter in one point", DIM, 0.0, 0.25),
    PointCloud("views apart, spread evenly", DIM, 0.15),
)
SETTING = f"{VIEWS} views, {DIM} dimensions, temperature {TEMPERATURE}; gaps without the first-order sampling error"


def compute_log_mean_kernel(dim: int, temperature: float) -> float:
    """Compute log E exp(u.v / tau) for v uniform on the sphere in `dim` dimensions, for any u.

    Examples:
        >>> round(compute_log_mean_kernel(3, 0.5), 6) == round(math.log(math.sinh(2) / 2), 6)
        True
    """
    cosine, log_density = _sample_uniform_cosines(dim)
    return float((log_density + cosine / temperature).logsumexp(0) - log_density.logsumexp(0))


def _sample_uniform_cosines(dim: int) -> tuple[Tensor, Tensor]:
    """Return cosines on a fine grid of angles, and their log density for uniform points."""
    angle, log_density = make_sphere_angle_grid(dim)
    return angle.cos(), log_density


@lru_cache
def compute_energy_slope(dim: int, temperature: float) -> float:
    """Compute the derivative of log E exp(u.v / tau) with respect to the mean of u.v, at uniform points v."""
    cosine, log_density = _sample_uniform_cosines(dim)
    return float(dim * (cosine * (log_density + cosine / temperature).softmax(0)).sum())


def compute_sampling_error(points: PointCloud, loss_name: str, z: Tensor) -> float:
    """Compute the first-order sampling error of the loss (mean zero), a control variate; it can exceed the gap.

    It has two parts: the deviation of the sampled alignment from its mean, and the pull of instances towards one side
    of the sphere. The mean comes from other samples than the limit, so that it does not influence the limit.
    With collapsed points it is zero: `PointCloud.sample` fixes both.
    """
    if points.collapsed_fraction:
        return 0.0
    count, total = len(z), z.sum(0)
    cross = (total @ total.T - torch.einsum("ild,imd->lm", z, z)) / (count * (count - 1))
    same = cross.diagonal()
    pull = same.sum() if loss_name == "mv-dhel" else (cross.sum() - same.sum()) / (VIEWS * (VIEWS - 1))
    slope = compute_energy_slope(points.dims, TEMPERATURE)
    return slope * float(pull) + _sample_alignment(z) - _compute_alignment(points, seed=2)


def compute_limit(points: PointCloud, loss_name: str) -> float:
    """Compute the limit of the loss, less its constants."""
    weight = VIEWS if loss_name == "mv-dhel" else 1
    return _compute_alignment(points, seed=1) + weight * _compute_expected_energy(points)


def _compute_expected_energy(points: PointCloud) -> float:
    """Compute E log C(u); with a fraction p in one point, C(u) = p exp(x / tau) + (1 - p) C, x the cosine to it."""
    uniform, p = compute_log_mean_kernel(points.dims, TEMPERATURE), points.collapsed_fraction
    if not p:
        return uniform
    cosine, log_density = _sample_uniform_cosines(points.dims)
    log_c = torch.logaddexp(cosine / TEMPERATURE + math.log(p), torch.full_like(cosine, uniform + math.log(1 - p)))
    return float(p * log_c[0] + (1 - p) * (log_density.softmax(0) * log_c).sum())


@lru_cache
def _compute_alignment(points: PointCloud, seed: int) -> float:
    """Compute -E log mean_{l!=m} exp(P[l,m]): exact where views coincide, else estimated from many instances."""
    if not points.noise:
        return -1 / TEMPERATURE
    generator = torch.Generator().manual_seed(seed)
    num_chunks = NUM_ALIGNMENT_SAMPLES // 2**18
    return sum(_sample_alignment(points.sample(2**18, generator)) for _ in range(num_chunks)) / num_chunks


def _sample_alignment(z: Tensor) -> float:
    l, m = torch.triu_indices(VIEWS, VIEWS, 1)
    positive = (z[:, l] * z[:, m]).sum(2) / TEMPERATURE
    return float(-(positive.logsumexp(1) - math.log(len(l))).mean())


def compute_constant(loss_name: str, instances: int) -> float:
    """Compute the constants of the loss of so many instances, which its limit does not include."""
    if loss_name == "mv-infonce":
        return math.log(instances)
    return VIEWS * math.log(instances - 1) - math.log(VIEWS * (VIEWS - 1))


def compute_limit_gap(points: PointCloud, loss_name: str, instances: int, limit: float, num_samples: int) -> float:
    """Compute the loss less its constants and its limit, averaged over draws of `num_samples` instances in total."""
    loss = get_loss(loss_name, temperature=TEMPERATURE)
    draws = max(1, num_samples // instances)
    generator = torch.Generator().manual_seed(instances)
    total = 0.0
    for _ in range(draws):
        z = points.sample(instances, generator)
        total += _compute_loss(loss, z) - compute_sampling_error(points, loss_name, z)
    return total / draws - compute_constant(loss_name, instances) - limit


def _compute_loss(loss: Any, z: Tensor) -> float:
    """Compute the loss in float64; in float32 for many instances, where float64 is slow and rounding below the gap."""
    with torch.no_grad():
        return float(loss(z if len(z) <= 2**12 else z.float()))


def fit_power_law(counts: Sequence[int], gaps: Sequence[float]) -> float:
    """Fit the power of M with which the gap shrinks, by least squares on logarithms.

    Examples:
        >>> round(fit_power_law([10, 100, 1000], [0.1, 0.01, 0.001]), 3)
        -1.0
    """
    x, y = torch.tensor(counts).double().log(), torch.tensor(gaps).double().abs().log()
    x, y = x - x.mean(), y - y.mean()
    return float((x @ y) / (x @ x))


def measure_convergence(
    max_instances: int, num_samples: int
) -> tuple[Table, list[Claim], dict[tuple[str, str], list[tuple[int, float]]]]:
    """Measure gaps at M = 16, 64, ..., `max_instances` for each case and loss, from >= `num_samples` instances each."""
    counts = [4**power for power in range(2, 9) if 4**power <= max_instances]
    curves: dict[tuple[str, str], list[tuple[int, float]]] = {}
    claims, rows = [], []
    cases = list(product(CASES, THEOREM_LOSSES))
    for points, loss_name in track(cases, "limits", len(cases)):
        limit = compute_limit(points, loss_name)
        gaps = [compute_limit_gap(points, loss_name, count, limit, num_samples) for count in counts]
        curves[points.name, loss_name] = list(zip(counts, gaps, strict=True))
        power = fit_power_law(counts, gaps)
        tolerance = 2 * abs(gaps[0]) * (counts[0] / counts[-1]) ** 0.6
        rows.append((points.name, loss_name, f"{limit:.4f}", *(f"{value:+.5f}" for value in gaps), f"{power:.2f}"))
        claims.append(
            Claim(
                f"{loss_name} tends to its limit ({points.name})",
                f"gap {gaps[0]:+.4f} at M {counts[0]}, {gaps[-1]:+.5f} at M {counts[-1]}; falls as M^{power:.2f}",
                tolerance=f"the last gap is below {tolerance:.5f}: twice the first, times (M / first M)^-0.6",
                is_within_tolerance=abs(gaps[-1]) < tolerance,
            )
        )
    header = ("points", "loss", "limit", *(f"gap at M {count}" for count in counts), "power of M")
    title = "Gap: the loss less its constants, its limit and its sampling error"
    return Table.from_texts(title, header, rows), claims, curves


def optimize_free_points(steps: int, names: Sequence[str]) -> tuple[Table, list[Claim]]:
    """Optimize free points under each loss: views coincide and instances spread."""
    rows: list[tuple[str, ...]] = []
    claims = []
    for name in track(list(names), "free points", len(names)):
        z, start = _optimize(name, steps)
        after = [alignment(z).item(), uniformity(z).item(), wasserstein_uniformity(z).item()]
        before = [alignment(start).item(), uniformity(start).item(), wasserstein_uniformity(start).item()]
        if not rows:
            rows.append(("(start)", *(f"{value:.3f}" for value in before)))
        rows.append((name, *(f"{value:.3f}" for value in after)))
        claims.append(
            Claim(
                f"the minimizer of {name} aligns and spreads",
                f"alignment {before[0]:.3f} to {after[0]:.3f}, Wasserstein {before[2]:.3f} to {after[2]:.3f}",
                tolerance="both are below 0.05",
                is_within_tolerance=after[0] < 0.05 and after[2] < 0.05,
            )
        )
    title = "Free points on the sphere (96 instances, 3 views, 8 dimensions), optimized under each loss"
    return Table.from_texts(title, ("loss", "alignment", "uniformity", "Wasserstein"), rows), claims


def _optimize(name: str, steps: int) -> tuple[Tensor, Tensor]:
    start = torch.randn(96, VIEWS, 8, generator=torch.Generator().manual_seed(0))
    start[..., 0] += 3  # all on one side of the sphere, views not aligned
    z = start.clone().requires_grad_()
    loss, optimizer = get_loss(name, temperature=TEMPERATURE), torch.optim.Adam([z], 0.05)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = warmup_cosine_lr(step, steps, 0, 0.05)
        optimizer.zero_grad()
        loss(z).backward()
        optimizer.step()
    return z.detach(), start


def draw_theorem_figure(curves: dict[tuple[str, str], list[tuple[int, float]]], path: Path) -> list[Path]:
    """Plot the absolute gap against M on logarithmic axes, with 1/M as a reference."""
    with use_plot_style() as Figure:
        figure = Figure(figsize=(3.2 * len(CASES), 2.8))
        axes = figure.subplots(1, len(CASES), sharey=True)
        for axis, points in zip(axes, CASES, strict=True):
            for index, loss_name in enumerate(THEOREM_LOSSES):
                counts, gaps = zip(*curves[points.name, loss_name], strict=True)
                axis.plot(counts, [abs(value) for value in gaps], label=loss_name, **get_line_style(index))
            first = abs(curves[points.name, "mv-infonce"][0][1])
            axis.plot(counts, [first * counts[0] / count for count in counts], color="#999999", lw=0.8, label="1/M")
            axis.set_xscale("log")
            axis.set_yscale("log")
            axis.set_xticks(counts, [f"{count:,}" for count in counts], rotation=45, fontsize=7)
            axis.minorticks_off()
            axis.set_title(points.name, fontsize=9)
            axis.set_xlabel("instances M")
        axes[0].set_ylabel("|gap to the limit|")
        axes[0].legend()
        figure.tight_layout()
        return save_figure(figure, path)


SCALE_SETTINGS = {"smoke": (256, 2**10, 400), "laptop": (65_536, 2**14, 600), "paper": (65_536, 2**16, 2_000)}
"""By scale: the largest M, instances sampled at each M, and optimization steps of the free points."""
