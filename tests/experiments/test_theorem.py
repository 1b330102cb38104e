"""The theorem's limits against integrals and slow sums."""

import math

import numpy as np
import pytest
import torch
from scipy.special import ive

from manyviews.experiments import theorem
from manyviews.experiments.principles import principles
from manyviews.experiments.theorem import CASES, TEMPERATURE, VIEWS, constant, convergence, free_points, log_mean_kernel


@pytest.fixture(autouse=True)
def _fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(theorem, "MANY", 2**19)


@pytest.mark.parametrize("dim", [3, 4, 16, 128])
@pytest.mark.parametrize("temperature", [0.1, 0.5, 1.0])
def test_the_mean_kernel_is_the_bessel_function(dim: int, temperature: float) -> None:
    """E exp(u.v / tau) on the sphere is Gamma(d/2) (2 tau)^(d/2 - 1) I_{d/2 - 1}(1 / tau)."""
    order, k = dim / 2 - 1, 1 / temperature
    expected = math.lgamma(dim / 2) + order * math.log(2 / k) + math.log(ive(order, k)) + k
    assert log_mean_kernel(dim, temperature) == pytest.approx(expected, abs=1e-4)


def test_constants_are_those_of_points_without_any_pull() -> None:
    """At an infinite temperature every kernel is 1: what is left of the loss is its constant."""
    z = torch.nn.functional.normalize(torch.randn(50, VIEWS, 8, dtype=torch.float64), dim=2)
    for name in theorem.OBJECTIVES:
        loss = theorem.get_objective(name, temperature=1e5)(z).item()
        assert loss == pytest.approx(constant(name, 50), abs=1e-4)


def test_points_lie_as_they_are_said_to() -> None:
    generator = torch.Generator().manual_seed(0)
    for points in CASES:
        z = points.drawn(4000, generator)
        assert z.shape == (4000, VIEWS, theorem.DIM)
        torch.testing.assert_close(z.norm(dim=2), torch.ones(4000, VIEWS, dtype=torch.float64))
        first = torch.eye(theorem.DIM, dtype=torch.float64)[0]
        fallen = (z[:, 0] - first).norm(dim=1) < 1e-9
        assert fallen.double().mean().item() == pytest.approx(points.collapsed, abs=0.03)
        rest = z[~fallen, 0]
        second = (rest.T @ rest / len(rest)).diagonal()
        assert second[: points.spread].sub(1 / points.spread).abs().max() < 0.02
        apart = (z[:, 0] - z[:, 1]).norm(dim=1).max()
        assert (apart < 1e-12) == (points.noise == 0)


def test_the_limit_of_points_apart_is_that_of_a_slow_sum() -> None:
    points = CASES[-1]
    z = points.drawn(2000, torch.Generator().manual_seed(3)).numpy()
    terms = []
    for views in z:
        kernels = [np.exp(views[l] @ views[m] / TEMPERATURE) for l in range(VIEWS) for m in range(VIEWS) if l != m]
        terms.append(-np.log(np.mean(kernels)))
    assert theorem._alignment(points, seed=1) == pytest.approx(np.mean(terms), abs=4 * np.std(terms) / np.sqrt(2000))


def test_luck_is_most_of_what_differs_between_draws_and_nothing_on_average() -> None:
    generator = torch.Generator().manual_seed(0)
    for points in CASES[:2]:
        for name in theorem.OBJECTIVES:
            draws = [points.drawn(256, generator) for _ in range(60)]
            losses = torch.tensor([theorem.get_objective(name, temperature=TEMPERATURE)(z).item() for z in draws])
            lucks = torch.tensor([theorem.luck(points, name, z) for z in draws])
            assert (losses - lucks).std() < 0.75 * losses.std()
            assert lucks.mean().abs() < 4 * lucks.std() / 60**0.5


def test_a_wrong_limit_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    right = theorem._alignment
    with monkeypatch.context() as patch:
        patch.setattr(theorem, "_alignment", lambda points, seed: right(points, seed=seed) + 0.2 * (seed == 1))
        _, claims, _ = convergence(256, 2**11)
        assert not any(claim.held for claim in claims)
    monkeypatch.setattr(theorem, "log_mean_kernel", lambda dim, tau: log_mean_kernel(dim, tau) + 0.2)
    _, claims, _ = convergence(256, 2**11)
    assert not any(claim.held for claim in claims)


def test_the_energy_of_a_collapsed_share_is_that_of_a_slow_sum() -> None:
    points = CASES[2]
    z = points.drawn(3000, torch.Generator().manual_seed(5))[:, 0]
    found = ((z @ z.T / TEMPERATURE).logsumexp(1) - math.log(3000)).mean().item()
    assert theorem._energy(points) == pytest.approx(found, abs=0.05)


def test_gaps_fall_as_one_over_the_instances() -> None:
    table, claims, curves = convergence(1024, 2**12)
    assert len(table.rows) == len(claims) == len(curves) == 8
    assert all(claim.held for claim in claims), [claim.numbers for claim in claims if not claim.held]
    for (name, objective), points in curves.items():
        assert [count for count, _ in points] == [16, 64, 256, 1024]
        if objective == "mv-infonce" and "one point" not in name:
            assert theorem.rate(*zip(*points, strict=True)) == pytest.approx(-1, abs=0.15)


def test_the_minimiser_aligns_and_spreads() -> None:
    table, claims = free_points(400, ("mv-infonce", "mv-dhel"))
    assert [claim.verdict for claim in claims] == ["held", "held"]
    start, *others = ([float(cell) for cell in row[1:]] for row in table.rows)
    assert start[2] > 0.3
    assert all(row[0] < 0.05 and row[2] < 0.05 for row in others)


def test_the_principles_are_those_of_the_papers_table() -> None:
    table, claims = principles()
    assert [claim.verdict for claim in claims] == ["held"] * 4
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["mv-dhel"] == ("yes", "yes", "1 (3), 1 (4), 1 (5)", "none")
    assert rows["pwe-infonce"][2] == "3 (3), 6 (4), 10 (5)"
