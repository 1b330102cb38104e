"""The theorem's limits, compared with integrals and direct sums."""

import math

import numpy as np
import pytest
import torch
from scipy.special import ive

from manyviews.reproduce import theorem
from manyviews.reproduce.principles_table import make_principles_table
from manyviews.reproduce.theorem import (
    CASES,
    TEMPERATURE,
    VIEWS,
    compute_constant,
    compute_log_mean_kernel,
    measure_convergence,
    optimize_free_points,
)


@pytest.fixture(autouse=True)
def _use_fewer_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(theorem, "NUM_ALIGNMENT_SAMPLES", 2**19)


@pytest.mark.parametrize("dim", [3, 4, 16, 128])
@pytest.mark.parametrize("temperature", [0.1, 0.5, 1.0])
def test_mean_kernel_equals_the_bessel_function(dim: int, temperature: float) -> None:
    """E exp(u.v / tau) on the sphere is Gamma(d/2) (2 tau)^(d/2 - 1) I_{d/2 - 1}(1 / tau)."""
    order, k = dim / 2 - 1, 1 / temperature
    expected = math.lgamma(dim / 2) + order * math.log(2 / k) + math.log(ive(order, k)) + k
    assert compute_log_mean_kernel(dim, temperature) == pytest.approx(expected, abs=1e-4)


def test_constants_equal_the_loss_at_infinite_temperature() -> None:
    """At infinite temperature every kernel is 1, and the loss equals its constants."""
    z = torch.nn.functional.normalize(torch.randn(50, VIEWS, 8, dtype=torch.float64), dim=2)
    for name in theorem.THEOREM_LOSSES:
        loss = theorem.get_loss(name, temperature=1e5)(z).item()
        assert loss == pytest.approx(compute_constant(name, 50), abs=1e-4)


def test_samples_have_the_stated_distribution() -> None:
    generator = torch.Generator().manual_seed(0)
    for points in CASES:
        z = points.sample(4000, generator)
        assert z.shape == (4000, VIEWS, theorem.DIM)
        torch.testing.assert_close(z.norm(dim=2), torch.ones(4000, VIEWS, dtype=torch.float64))
        first = torch.eye(theorem.DIM, dtype=torch.float64)[0]
        is_collapsed = (z[:, 0] - first).norm(dim=1) < 1e-9
        assert is_collapsed.double().mean().item() == pytest.approx(points.collapsed_fraction, abs=0.03)
        rest = z[~is_collapsed, 0]
        second_moments = (rest.T @ rest / len(rest)).diagonal()
        assert second_moments[: points.dims].sub(1 / points.dims).abs().max() < 0.02
        distance = (z[:, 0] - z[:, 1]).norm(dim=1).max()
        assert (distance < 1e-12) == (points.noise == 0)


@pytest.mark.slow
def test_estimated_alignment_equals_a_direct_sum() -> None:
    points = CASES[-1]
    z = points.sample(2000, torch.Generator().manual_seed(3)).numpy()
    terms = []
    for views in z:
        kernels = [np.exp(views[l] @ views[m] / TEMPERATURE) for l in range(VIEWS) for m in range(VIEWS) if l != m]
        terms.append(-np.log(np.mean(kernels)))
    assert theorem._compute_alignment(points, seed=1) == pytest.approx(
        np.mean(terms), abs=4 * np.std(terms) / np.sqrt(2000)
    )


def test_sampling_error_has_mean_zero_and_reduces_variance() -> None:
    generator = torch.Generator().manual_seed(0)
    for points in CASES[:2]:
        for name in theorem.THEOREM_LOSSES:
            draws = [points.sample(256, generator) for _ in range(60)]
            losses = torch.tensor([theorem.get_loss(name, temperature=TEMPERATURE)(z).item() for z in draws])
            errors = torch.tensor([theorem.compute_sampling_error(points, name, z) for z in draws])
            assert (losses - errors).std() < 0.75 * losses.std()
            assert errors.mean().abs() < 4 * errors.std() / 60**0.5


@pytest.mark.slow
def test_a_wrong_limit_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    compute_alignment = theorem._compute_alignment
    with monkeypatch.context() as patch:
        patch.setattr(
            theorem, "_compute_alignment", lambda points, seed: compute_alignment(points, seed=seed) + 0.2 * (seed == 1)
        )
        _, claims, _ = measure_convergence(256, 2**11)
        assert not any(claim.is_within_tolerance for claim in claims)
    monkeypatch.setattr(theorem, "compute_log_mean_kernel", lambda dim, tau: compute_log_mean_kernel(dim, tau) + 0.2)
    _, claims, _ = measure_convergence(256, 2**11)
    assert not any(claim.is_within_tolerance for claim in claims)


def test_energy_of_collapsed_points_equals_a_direct_sum() -> None:
    points = CASES[2]
    z = points.sample(3000, torch.Generator().manual_seed(5))[:, 0]
    energy = ((z @ z.T / TEMPERATURE).logsumexp(1) - math.log(3000)).mean().item()
    assert theorem._compute_expected_energy(points) == pytest.approx(energy, abs=0.05)


@pytest.mark.slow
def test_gaps_shrink_as_one_over_instances() -> None:
    table, claims, curves = measure_convergence(1024, 2**12)
    assert len(table.rows) == len(claims) == len(curves) == 8
    assert [claim.evidence for claim in claims if not claim.is_within_tolerance] == []
    for (name, loss_name), points in curves.items():
        assert [count for count, _ in points] == [16, 64, 256, 1024]
        if loss_name == "mv-infonce" and "one point" not in name:
            assert theorem.fit_power_law(*zip(*points, strict=True)) == pytest.approx(-1, abs=0.15)


@pytest.mark.slow
def test_minimizers_align_and_spread() -> None:
    table, claims = optimize_free_points(400, ("mv-infonce", "mv-dhel"))
    assert [claim.verdict for claim in claims] == ["held", "held"]
    start, *others = ([float(cell.text) for cell in row.cells] for row in table.rows)
    assert start[2] > 0.3
    assert all(row[0] < 0.05 and row[2] < 0.05 for row in others)


@pytest.mark.slow
def test_principles_agree_with_the_papers_table() -> None:
    table, claims = make_principles_table()
    assert [claim.verdict for claim in claims] == ["held"] * 4
    rows = {name: texts for name, *texts in table.list_texts()[1:]}
    assert rows["mv-dhel"] == ["yes", "yes", "1 (3), 1 (4), 1 (5)", "none"]
    assert rows["pwe-infonce"][2] == "3 (3), 6 (4), 10 (5)"
