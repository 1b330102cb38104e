"""Geometry where its value is known, and against loops."""

import math

import pytest
import torch

from manyviews.evaluation import alignment, numerical_rank, rankme, uniformity


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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: alignment(torch.randn(4, 1, 3)), "at least two views"),
        (lambda: uniformity(torch.randn(1, 2, 3)), "at least two instances"),
        (lambda: rankme(torch.randn(4, 3)), r"\(instances, views, dim\)"),
        (lambda: numerical_rank(torch.ones(4, 2, 3, dtype=torch.int64)), "must be floats"),
    ],
)
def test_a_mistake_is_named(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_half_precision_is_measured_in_float32() -> None:
    z = unit(50, 2, 8)
    for measure in (alignment, uniformity, rankme):
        assert math.isclose(measure(z.bfloat16()).item(), measure(z).item(), rel_tol=0.02)
