"""The theorem in numbers: what MV-InfoNCE and MV-DHEL become as instances grow, and what minimises them.

With C(u) = E_v exp(u.v / tau) over other instances, and means over views inside the logarithm,

    L_MV-InfoNCE - log M                        ->  -E log mean_{l!=m} exp(P[l,m]) +     E log mean_l C(u_l)
    L_MV-DHEL - N log(M - 1) + log(N(N - 1))    ->  -E log mean_{l!=m} exp(P[l,m]) + N x E log C(u)

The paper has log(M - 1) where MV-DHEL needs N log(M - 1), and one formula for both; MV-DHEL weighs uniformity N times,
which has the same minimisers. It writes -E P for the alignment: by Jensen that is larger, and equal when views meet.
C is known for points spread evenly on a sphere of k dimensions, also where a share of them has collapsed to one point,
so the limit is known where views meet; where they do not, the alignment is estimated from many instances.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from manyviews.evaluation import alignment, uniformity, wasserstein_uniformity
from manyviews.evaluation.progress import tracked
from manyviews.experiments.claims import Claim
from manyviews.experiments.figures import look, quiet_style, save
from manyviews.experiments.tables import Table
from manyviews.losses import get_objective

TEMPERATURE, VIEWS, DIM = 0.5, 3, 16
OBJECTIVES = ("mv-infonce", "mv-dhel")
MANY = 2**22
"""Instances of which an alignment that is not known is the mean."""


@dataclass(frozen=True)
class Points:
    """How instances lie on the sphere: evenly in `spread` of the dimensions, views `noise` apart, some in one point."""

    name: str
    spread: int
    noise: float
    collapsed: float = 0.0
    """Share of the instances that lie in one point."""

    def drawn(self, instances: int, generator: torch.Generator) -> Tensor:
        """Embeddings (M, N, d) in float64."""
        shape = (instances, VIEWS, self.spread)
        middle = normalize(torch.randn(instances, 1, self.spread, generator=generator, dtype=torch.float64), dim=2)
        if self.collapsed:
            # How many have collapsed is no chance, and the others lie opposite each other: no side is fuller.
            fallen = round(self.collapsed * instances)
            half = (instances - fallen) // 2
            middle[:fallen] = torch.eye(1, self.spread, dtype=torch.float64)
            middle[fallen + half :] = -middle[fallen : instances - half]
        noise = torch.randn(shape, generator=generator, dtype=torch.float64)
        z = normalize(middle + self.noise * noise, dim=2)
        return torch.cat([z, z.new_zeros(instances, VIEWS, DIM - self.spread)], 2)


CASES = (
    Points("views meet, spread evenly", DIM, 0.0),
    Points("views meet, in 4 of 16 dimensions", 4, 0.0),
    Points("views meet, a quarter in one point", DIM, 0.0, 0.25),
    Points("views apart, spread evenly", DIM, 0.15),
)
SETTING = f"{VIEWS} views, {DIM} dimensions, temperature {TEMPERATURE}; chance is taken out of the gaps, to first order"


def log_mean_kernel(dim: int, temperature: float) -> float:
    """Log E exp(u.v / tau) for v spread evenly on the sphere in `dim` dimensions, whatever u.

    Examples:
        >>> round(log_mean_kernel(3, 0.5), 6) == round(math.log(math.sinh(2) / 2), 6)
        True
    """
    cosine, log_density = _even(dim)
    return float((log_density + cosine / temperature).logsumexp(0) - log_density.logsumexp(0))


def _even(dim: int) -> tuple[Tensor, Tensor]:
    """Cosines of even points, on a fine grid of angles, and the logarithm of their density there."""
    angle = torch.linspace(0, math.pi, 2**16 + 1, dtype=torch.float64)
    return angle.cos(), (dim - 2) * angle.sin().clamp_min(1e-300).log()


@lru_cache
def slope(dim: int, temperature: float) -> float:
    """How much log E exp(u.v / tau) over some points v grows with the mean of u.v, to first order about even points."""
    cosine, log_density = _even(dim)
    return float(dim * (cosine * (log_density + cosine / temperature).softmax(0)).sum())


def luck(points: Points, objective: str, z: Tensor) -> float:
    """What the loss owes to chance: zero on average, and in a draw of many instances larger than the gap.

    Instances whose views happen to lie nearer to each other than others', and, to first order, instances that happen to
    lie on one side of the sphere. The mean of the former is from other draws than the limit, which it must not decide.
    Where some have collapsed, `drawn` leaves neither to chance.
    """
    if points.collapsed:
        return 0.0
    count, total = len(z), z.sum(0)
    cross = (total @ total.T - torch.einsum("ild,imd->lm", z, z)) / (count * (count - 1))
    same = cross.diagonal()
    pull = same.sum() if objective == "mv-dhel" else (cross.sum() - same.sum()) / (VIEWS * (VIEWS - 1))
    return slope(points.spread, TEMPERATURE) * float(pull) + _aligned(z) - _alignment(points, seed=2)


def limit(points: Points, objective: str) -> float:
    """What the objective tends to, less its constants."""
    return _alignment(points, seed=1) + (VIEWS if objective == "mv-dhel" else 1) * _energy(points)


def _energy(points: Points) -> float:
    """E log C(u): with a share p in one point, C(u) = p exp(x / tau) + (1 - p) C, x the cosine to that point."""
    even, share = log_mean_kernel(points.spread, TEMPERATURE), points.collapsed
    if not share:
        return even
    cosine, log_density = _even(points.spread)
    log_c = torch.logaddexp(cosine / TEMPERATURE + math.log(share), torch.full_like(cosine, even + math.log(1 - share)))
    return float(share * log_c[0] + (1 - share) * (log_density.softmax(0) * log_c).sum())


@lru_cache
def _alignment(points: Points, seed: int) -> float:
    """-E log mean_{l!=m} exp(P[l,m]): known where views meet, else of many instances."""
    if not points.noise:
        return -1 / TEMPERATURE
    generator = torch.Generator().manual_seed(seed)
    pieces = MANY // 2**18
    return sum(_aligned(points.drawn(2**18, generator)) for _ in range(pieces)) / pieces


def _aligned(z: Tensor) -> float:
    l, m = torch.triu_indices(VIEWS, VIEWS, 1)
    positive = (z[:, l] * z[:, m]).sum(2) / TEMPERATURE
    return float(-(positive.logsumexp(1) - math.log(len(l))).mean())


def constant(objective: str, instances: int) -> float:
    """What the loss of so many instances has beyond its limit."""
    if objective == "mv-infonce":
        return math.log(instances)
    return VIEWS * math.log(instances - 1) - math.log(VIEWS * (VIEWS - 1))


def gap(points: Points, objective: str, instances: int, expected: float, rows: int) -> float:
    """The loss less its constant and its limit, on average over as many draws as make `rows` instances."""
    loss = get_objective(objective, temperature=TEMPERATURE)
    draws = max(1, rows // instances)
    generator = torch.Generator().manual_seed(instances)
    total = 0.0
    for _ in range(draws):
        z = points.drawn(instances, generator)
        total += _value(loss, z) - luck(points, objective, z)
    return total / draws - constant(objective, instances) - expected


def _value(loss: Any, z: Tensor) -> float:
    """In float64, but for many instances, whose gap is above float32's rounding and whose time is not."""
    with torch.no_grad():
        return float(loss(z if len(z) <= 2**12 else z.float()))


def rate(counts: Sequence[int], gaps: Sequence[float]) -> float:
    """The power of M by which the gap shrinks, by least squares on logarithms.

    Examples:
        >>> round(rate([10, 100, 1000], [0.1, 0.01, 0.001]), 3)
        -1.0
    """
    x, y = torch.tensor(counts).double().log(), torch.tensor(gaps).double().abs().log()
    x, y = x - x.mean(), y - y.mean()
    return float((x @ y) / (x @ x))


def convergence(most: int, draws: int) -> tuple[Table, list[Claim], dict[tuple[str, str], list[tuple[int, float]]]]:
    """Gaps at M = 16, 64, ... up to `most`, for each case and objective, from `draws` instances at least."""
    counts = [4**power for power in range(2, 9) if 4**power <= most]
    curves: dict[tuple[str, str], list[tuple[int, float]]] = {}
    claims, rows = [], []
    for points, objective in tracked(
        [(points, objective) for points in CASES for objective in OBJECTIVES], "limits", len(CASES) * len(OBJECTIVES)
    ):
        expected = limit(points, objective)
        gaps = [gap(points, objective, count, expected, draws) for count in counts]
        curves[points.name, objective] = list(zip(counts, gaps, strict=True))
        power = rate(counts, gaps)
        tolerance = 2 * abs(gaps[0]) * (counts[0] / counts[-1]) ** 0.6
        rows.append((points.name, objective, f"{expected:.4f}", *(f"{value:+.5f}" for value in gaps), f"{power:.2f}"))
        claims.append(
            Claim(
                f"{objective} tends to its limit ({points.name})",
                abs(gaps[-1]) < tolerance,
                f"gap {gaps[0]:+.4f} at M {counts[0]}, {gaps[-1]:+.5f} at M {counts[-1]}; falls as M^{power:.2f}",
                f"the last gap is below {tolerance:.5f}: twice the first, times (M / first M)^-0.6",
            )
        )
    header = ("points", "objective", "limit", *(f"gap at M {count}" for count in counts), "power of M")
    return Table("Gap: the loss less its constants, its limit and chance", header, tuple(rows)), claims, curves


def free_points(steps: int, names: Sequence[str]) -> tuple[Table, list[Claim]]:
    """Points moved freely by each objective: views meet, instances spread."""
    rows: list[tuple[str, ...]] = []
    claims = []
    for name in tracked(list(names), "free points", len(names)):
        z, start = _descended(name, steps)
        found = [alignment(z).item(), uniformity(z).item(), wasserstein_uniformity(z).item()]
        before = [alignment(start).item(), uniformity(start).item(), wasserstein_uniformity(start).item()]
        if not rows:
            rows.append(("(start)", *(f"{value:.3f}" for value in before)))
        rows.append((name, *(f"{value:.3f}" for value in found)))
        claims.append(
            Claim(
                f"the minimiser of {name} aligns and spreads",
                found[0] < 0.05 and found[2] < 0.05,
                f"alignment {before[0]:.3f} to {found[0]:.3f}, Wasserstein {before[2]:.3f} to {found[2]:.3f}",
                "both are below 0.05",
            )
        )
    title = "Free points on the sphere (96 instances, 3 views, 8 dimensions), after descent under each objective"
    return Table(title, ("objective", "alignment", "uniformity", "Wasserstein"), tuple(rows)), claims


def _descended(name: str, steps: int) -> tuple[Tensor, Tensor]:
    start = torch.randn(96, VIEWS, 8, generator=torch.Generator().manual_seed(0))
    start[..., 0] += 3  # all on one side of the sphere, views apart
    z = start.clone().requires_grad_()
    objective, solver = get_objective(name, temperature=TEMPERATURE), torch.optim.Adam([z], 0.05)
    for step in range(steps):
        solver.param_groups[0]["lr"] = 0.05 * 0.5 * (1 + math.cos(math.pi * step / steps))
        solver.zero_grad()
        objective(z).backward()
        solver.step()
    return z.detach(), start


def theorem_figure(curves: dict[tuple[str, str], list[tuple[int, float]]], path: Path) -> list[Path]:
    """The size of the gap against M, on logarithms, beside 1/M."""
    with quiet_style() as Figure:
        figure = Figure(figsize=(3.2 * len(CASES), 2.8))
        axes = figure.subplots(1, len(CASES), sharey=True)
        for axis, points in zip(axes, CASES, strict=True):
            for number, objective in enumerate(OBJECTIVES):
                counts, gaps = zip(*curves[points.name, objective], strict=True)
                axis.plot(counts, [abs(value) for value in gaps], label=objective, **look(number))
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
        return save(figure, path)


EXTENT = {"smoke": (256, 2**10, 400), "laptop": (65_536, 2**14, 600), "paper": (65_536, 2**16, 2_000)}
"""How far each scale goes: the largest M, instances drawn at each M, and the steps of free points."""
