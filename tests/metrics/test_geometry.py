"""Geometry metrics against closed forms and loops."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from manyviews.metrics import alignment, numerical_rank, rankme, spectrum, uniformity, wasserstein_uniformity
from manyviews.metrics.geometry import compute_sphere_cosine_cdf


def unit(*shape: int, seed: int = 0) -> torch.Tensor:
    z = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return z / z.norm(dim=-1, keepdim=True)


def test_alignment_is_the_mean_squared_distance_of_pairs_of_views() -> None:
    z = unit(7, 4, 5)
    pairs = [(z[i, a] - z[i, b]).square().sum() for i in range(7) for a in range(4) for b in range(4) if a != b]
    torch.testing.assert_close(alignment(z), torch.stack(pairs).mean())
    torch.testing.assert_close(alignment(3 * z), alignment(z))


def test_uniformity_is_the_log_mean_potential_of_pairs_of_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyviews.metrics.geometry.ROW_BLOCK", 3)
    z = unit(8, 3, 5)
    pairs = [
        torch.exp(-2 * (z[i, v] - z[j, v]).square().sum())
        for v in range(3)
        for i in range(8)
        for j in range(8)
        if i != j
    ]
    torch.testing.assert_close(uniformity(z), torch.stack(pairs).mean().log())


def test_values_for_one_point_a_simplex_and_the_uniform_distribution() -> None:
    one = torch.ones(10, 2, 6)
    assert alignment(one) == 0
    assert uniformity(one).item() == pytest.approx(0, abs=1e-6)
    assert numerical_rank(one) == 0
    assert rankme(one).item() == pytest.approx(1, abs=1e-4)

    simplex = torch.eye(8) - 1 / 8  # squared distances 2 * 8 / 7, in 7 dimensions
    assert uniformity(simplex[:, None]).item() == pytest.approx(-2 * 16 / 7, rel=1e-5)
    assert numerical_rank(simplex[:, None]) == 7
    assert rankme(simplex[:, None]).item() == pytest.approx(7, rel=1e-4)

    z = unit(4000, 1, 64).float()
    assert uniformity(z).item() == pytest.approx(-4 + 8 / 64, abs=0.01)  # E exp(4 cos) = 1 + 8 / d + ...
    assert numerical_rank(z) == 64
    assert rankme(z).item() > 63


def test_rank_is_the_dimension_of_the_subspace() -> None:
    low = unit(200, 2, 5).float() @ torch.randn(5, 32, generator=torch.Generator().manual_seed(1))
    assert numerical_rank(low) == 5
    assert rankme(low) <= 5 + 1e-3


def test_zero_vectors_count_as_one_point() -> None:
    """A collapse by dead units must not look uniform."""
    for dead in (torch.zeros(6, 2, 8), torch.zeros(6, 2, 8, dtype=torch.float16)):
        assert uniformity(dead).item() == 0
        assert wasserstein_uniformity(dead).item() == pytest.approx(1, abs=1e-3)
        assert alignment(dead).item() == 0
        assert (numerical_rank(dead), rankme(dead).item()) == (0, 1)


def test_nonfinite_embeddings_raise_unless_masked() -> None:
    z = unit(10, 2, 4)
    mask = torch.ones(10, 2, dtype=torch.bool)
    z[3, 1, 2], mask[3, 1] = torch.nan, False
    for measure in (alignment, uniformity, wasserstein_uniformity, spectrum, numerical_rank, rankme):
        with pytest.raises(ValueError, match="embeddings must be finite"):
            measure(z)
        assert torch.as_tensor(measure(z, mask)).isfinite().all()


@pytest.mark.slow
def test_counts_of_cosines_are_exact_beyond_float32() -> None:
    """One bin has more pairs than float32 can count."""
    z = torch.ones(18_000, 1, 2)
    z[-1, 0, 1] = -1.0
    fraction = 2 / 18_000  # of the pairs have a cosine of 0 instead of 1
    expected = wasserstein_uniformity(z[:-1]).item() - fraction
    assert wasserstein_uniformity(z).item() == pytest.approx(expected, abs=3e-6)


def test_rank_matches_numpy_for_any_number_of_instances() -> None:
    z = unit(500, 1, 24).float() * 10 ** -torch.linspace(0, 3, 24)
    covariance = np.cov((z / z.norm(dim=2, keepdim=True))[:, 0].T.numpy()).astype(np.float32)
    assert 5 < numerical_rank(z) == np.linalg.matrix_rank(covariance) < 24
    assert numerical_rank(z.repeat(40, 1, 1)) == numerical_rank(z)


@pytest.mark.parametrize("dim", [2, 3, 4, 64, 512])
def test_sphere_cosine_cdf_is_a_beta_distribution(dim: int) -> None:
    x = torch.linspace(-1, 1, 101, dtype=torch.float64)
    expected = stats.beta((dim - 1) / 2, (dim - 1) / 2).cdf((1 + x.numpy()) / 2)
    np.testing.assert_allclose(compute_sphere_cosine_cdf(dim, x).numpy(), expected, atol=1e-7)


@pytest.mark.slow
def test_wasserstein_uniformity_matches_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyviews.metrics.geometry.ROW_BLOCK", 7)
    z = unit(40, 2, 6)
    z[:, :, 0] += 0.4
    unit_z = z / z.norm(dim=2, keepdim=True)
    cosines = [(unit_z[i, v] @ unit_z[j, v]).item() for v in range(2) for i in range(40) for j in range(i)]
    # The uniform distribution as a million quantiles.
    uniform = 2 * stats.beta(2.5, 2.5).ppf((np.arange(10**6) + 0.5) / 10**6) - 1
    expected = stats.wasserstein_distance(cosines, uniform)
    assert wasserstein_uniformity(z).item() == pytest.approx(expected, abs=2e-5)
    assert torch.equal(wasserstein_uniformity(z), wasserstein_uniformity(z))


def test_wasserstein_uniformity_of_one_point_and_of_uniform_points() -> None:
    assert wasserstein_uniformity(torch.ones(9, 1, 32)).item() == pytest.approx(1, abs=2e-4)
    assert wasserstein_uniformity(unit(3000, 1, 32)).item() < 3e-3


def test_spectrum_matches_svd() -> None:
    z = unit(30, 3, 7)
    expected = torch.linalg.svdvals(z.flatten(0, 1)) / math.sqrt(90)
    torch.testing.assert_close(spectrum(z), expected)
    p = expected / expected.sum()
    torch.testing.assert_close(rankme(z), torch.exp(-(p * p.log()).sum()))


def test_masked_views_are_ignored() -> None:
    z = unit(12, 3, 5)
    everything = torch.ones(12, 3, dtype=torch.bool)
    mask = torch.rand(12, 3, generator=torch.Generator().manual_seed(0)) < 0.6
    mask[0] = False
    assert mask.sum(1).min() == 0
    measures = (alignment, uniformity, wasserstein_uniformity, numerical_rank, rankme, spectrum)
    changed = torch.where(mask[:, :, None], z, 7.0)
    for measure in measures:
        torch.testing.assert_close(measure(z, everything), measure(z))
        torch.testing.assert_close(measure(changed, mask), measure(z, mask))
    pairs = [
        torch.stack([(z[i, a] - z[i, b]).square().sum() for a in range(3) for b in range(a) if mask[i, a] & mask[i, b]])
        for i in range(12)
        if mask[i].sum() >= 2
    ]
    torch.testing.assert_close(alignment(z, mask), torch.stack([p.mean() for p in pairs]).mean())
    potentials = [
        torch.exp(-2 * (z[i, v] - z[j, v]).square().sum())
        for v in range(3)
        for i in range(12)
        for j in range(i)
        if mask[i, v] and mask[j, v]
    ]
    torch.testing.assert_close(uniformity(z, mask), torch.stack(potentials).mean().log())
    torch.testing.assert_close(spectrum(z, mask), torch.linalg.svdvals(z[mask]) / mask.sum().sqrt())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: alignment(torch.randn(4, 1, 3)), "at least two views"),
        (lambda: uniformity(torch.randn(1, 2, 3)), "at least two instances with the same view"),
        (lambda: rankme(torch.randn(4, 3)), r"\(instances, views, dim\)"),
        (lambda: numerical_rank(torch.ones(4, 2, 3, dtype=torch.int64)), "must be floats"),
        (lambda: rankme(torch.randn(4, 2, 3), torch.ones(4, 2)), "mask must be bool"),
        (lambda: wasserstein_uniformity(torch.randn(4, 2, 1)), "dim must be >= 2"),
    ],
)
def test_invalid_input_raises(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_half_precision_is_computed_in_float32() -> None:
    z = unit(50, 2, 8)
    for measure in (alignment, uniformity, wasserstein_uniformity, rankme):
        assert math.isclose(measure(z.bfloat16()).item(), measure(z).item(), rel_tol=0.02)
