"""Geometry where its value is known, and against loops."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from manyviews.evaluation import alignment, numerical_rank, rankme, spectrum, uniformity, wasserstein_uniformity
from manyviews.evaluation.geometry import even_law


def unit(*shape: int, seed: int = 0) -> torch.Tensor:
    z = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return z / z.norm(dim=-1, keepdim=True)


def test_alignment_is_the_mean_squared_distance_of_pairs_of_views() -> None:
    z = unit(7, 4, 5)
    pairs = [(z[i, a] - z[i, b]).square().sum() for i in range(7) for a in range(4) for b in range(4) if a != b]
    torch.testing.assert_close(alignment(z), torch.stack(pairs).mean())
    torch.testing.assert_close(alignment(3 * z), alignment(z))


def test_uniformity_is_the_log_mean_potential_of_pairs_of_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyviews.evaluation.geometry.BLOCK", 3)
    z = unit(8, 3, 5)
    pairs = [
        torch.exp(-2 * (z[i, v] - z[j, v]).square().sum())
        for v in range(3)
        for i in range(8)
        for j in range(8)
        if i != j
    ]
    torch.testing.assert_close(uniformity(z), torch.stack(pairs).mean().log())


def test_values_on_one_point_on_a_simplex_and_on_the_whole_sphere() -> None:
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


def test_rank_counts_the_dimensions_that_are_filled() -> None:
    low = unit(200, 2, 5).float() @ torch.randn(5, 32, generator=torch.Generator().manual_seed(1))
    assert numerical_rank(low) == 5
    assert rankme(low) <= 5 + 1e-3


def test_vectors_of_length_zero_are_one_point() -> None:
    """What a collapse by dead units looks like: not spread evenly."""
    for dead in (torch.zeros(6, 2, 8), torch.zeros(6, 2, 8, dtype=torch.float16)):
        assert uniformity(dead).item() == 0
        assert wasserstein_uniformity(dead).item() == pytest.approx(1, abs=1e-3)
        assert alignment(dead).item() == 0
        assert (numerical_rank(dead), rankme(dead).item()) == (0, 1)


def test_what_is_not_finite_is_named_if_it_is_there() -> None:
    z = unit(10, 2, 4)
    present = torch.ones(10, 2, dtype=torch.bool)
    z[3, 1, 2], present[3, 1] = torch.nan, False
    for measure in (alignment, uniformity, wasserstein_uniformity, spectrum, numerical_rank, rankme):
        with pytest.raises(ValueError, match="embeddings must be finite"):
            measure(z)
        assert torch.as_tensor(measure(z, present)).isfinite().all()


def test_counts_of_cosines_are_exact_beyond_float32() -> None:
    """More pairs in one step than float32 counts to."""
    z = torch.ones(18_000, 1, 2)
    z[-1, 0, 1] = -1.0
    share = 2 / 18_000  # of the pairs have a cosine of 0 instead of 1
    expected = wasserstein_uniformity(z[:-1]).item() - share
    assert wasserstein_uniformity(z).item() == pytest.approx(expected, abs=3e-6)


def test_rank_is_numpys_of_the_covariance_whatever_the_number_of_instances() -> None:
    z = unit(500, 1, 24).float() * 10 ** -torch.linspace(0, 3, 24)
    covariance = np.cov((z / z.norm(dim=2, keepdim=True))[:, 0].T.numpy()).astype(np.float32)
    assert 5 < numerical_rank(z) == np.linalg.matrix_rank(covariance) < 24
    assert numerical_rank(z.repeat(40, 1, 1)) == numerical_rank(z)


@pytest.mark.parametrize("dim", [2, 3, 4, 64, 512])
def test_the_even_law_is_a_beta_law(dim: int) -> None:
    x = torch.linspace(-1, 1, 101, dtype=torch.float64)
    expected = stats.beta((dim - 1) / 2, (dim - 1) / 2).cdf((1 + x.numpy()) / 2)
    np.testing.assert_allclose(even_law(dim, x).numpy(), expected, atol=1e-7)


def test_wasserstein_uniformity_is_the_distance_of_quantiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyviews.evaluation.geometry.BLOCK", 7)
    z = unit(40, 2, 6)
    z[:, :, 0] += 0.4
    unit_z = z / z.norm(dim=2, keepdim=True)
    cosines = [(unit_z[i, v] @ unit_z[j, v]).item() for v in range(2) for i in range(40) for j in range(i)]
    # The even law as a million points at its own quantiles.
    even = 2 * stats.beta(2.5, 2.5).ppf((np.arange(10**6) + 0.5) / 10**6) - 1
    expected = stats.wasserstein_distance(cosines, even)
    assert wasserstein_uniformity(z).item() == pytest.approx(expected, abs=2e-5)
    assert torch.equal(wasserstein_uniformity(z), wasserstein_uniformity(z))


def test_wasserstein_uniformity_of_one_point_and_of_the_whole_sphere() -> None:
    assert wasserstein_uniformity(torch.ones(9, 1, 32)).item() == pytest.approx(1, abs=2e-4)
    assert wasserstein_uniformity(unit(3000, 1, 32)).item() < 3e-3


def test_spectrum_is_that_of_the_rows() -> None:
    z = unit(30, 3, 7)
    expected = torch.linalg.svdvals(z.flatten(0, 1)) / math.sqrt(90)
    torch.testing.assert_close(spectrum(z), expected)
    share = expected / expected.sum()
    torch.testing.assert_close(rankme(z), torch.exp(-(share * share.log()).sum()))


def test_absent_views_are_as_if_they_were_not_there() -> None:
    z = unit(12, 3, 5)
    everything = torch.ones(12, 3, dtype=torch.bool)
    present = torch.rand(12, 3, generator=torch.Generator().manual_seed(0)) < 0.6
    present[0] = False
    assert present.sum(1).min() == 0
    measures = (alignment, uniformity, wasserstein_uniformity, numerical_rank, rankme, spectrum)
    spoilt = torch.where(present[:, :, None], z, 7.0)
    for measure in measures:
        torch.testing.assert_close(measure(z, everything), measure(z))
        torch.testing.assert_close(measure(spoilt, present), measure(z, present))
    pairs = [
        torch.stack(
            [(z[i, a] - z[i, b]).square().sum() for a in range(3) for b in range(a) if present[i, a] & present[i, b]]
        )
        for i in range(12)
        if present[i].sum() >= 2
    ]
    torch.testing.assert_close(alignment(z, present), torch.stack([p.mean() for p in pairs]).mean())
    potentials = [
        torch.exp(-2 * (z[i, v] - z[j, v]).square().sum())
        for v in range(3)
        for i in range(12)
        for j in range(i)
        if present[i, v] and present[j, v]
    ]
    torch.testing.assert_close(uniformity(z, present), torch.stack(potentials).mean().log())
    torch.testing.assert_close(spectrum(z, present), torch.linalg.svdvals(z[present]) / present.sum().sqrt())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: alignment(torch.randn(4, 1, 3)), "at least two views"),
        (lambda: uniformity(torch.randn(1, 2, 3)), "two instances with the same view"),
        (lambda: rankme(torch.randn(4, 3)), r"\(instances, views, dim\)"),
        (lambda: numerical_rank(torch.ones(4, 2, 3, dtype=torch.int64)), "must be floats"),
        (lambda: rankme(torch.randn(4, 2, 3), torch.ones(4, 2)), "present must be a bool"),
        (lambda: wasserstein_uniformity(torch.randn(4, 2, 1)), "no cosines between"),
    ],
)
def test_a_mistake_is_named(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_half_precision_is_measured_in_float32() -> None:
    z = unit(50, 2, 8)
    for measure in (alignment, uniformity, wasserstein_uniformity, rankme):
        assert math.isclose(measure(z.bfloat16()).item(), measure(z).item(), rel_tol=0.02)
