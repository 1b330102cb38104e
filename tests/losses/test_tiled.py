"""Tiled energies equal dense energies: values and gradients, for every loss."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manyviews.losses import InverseMultiquadric
from manyviews.losses import _tiled as tiled
from manyviews.losses._accumulate import register_kernel
from manyviews.losses._dense import compute_dense_energies
from manyviews.losses._tiled import compute_tiled_energies, plan_tiles
from tests.losses.loss_by_name import ENERGY_LOSSES, get_loss, limit_views


@st.composite
def problems(draw: st.DrawFn) -> tuple[torch.Tensor, set[tuple[int, int]], torch.Tensor | None]:
    M, N, d = draw(st.integers(2, 11)), draw(st.integers(2, 5)), draw(st.integers(1, 6))
    temperature = draw(st.sampled_from([0.005, 0.02, 0.1, 1.0]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    z = torch.nn.functional.normalize(torch.randn(M, N, d, dtype=torch.float64, generator=generator), dim=2)
    drawn = torch.rand(N, N, generator=generator) < 0.6
    drawn[0, -1] = True  # every loss reads at least one energy
    mask = None if draw(st.booleans()) else torch.rand(M, N, generator=generator) < 0.7
    required = make_pairs(drawn | drawn.T if draw(st.booleans()) else drawn)
    return (z * temperature**-0.5).requires_grad_(), required, mask


def make_pairs(table: torch.Tensor) -> set[tuple[int, int]]:
    return {(l, m) for l, m in table.nonzero().tolist()}


def sine(similarity: torch.Tensor, frequency: torch.Tensor) -> torch.Tensor:
    return torch.sin(frequency * similarity) * 3


def assert_same_energies(
    dense: torch.Tensor, fast: torch.Tensor, pairs: set[tuple[int, int]], *leaves: torch.Tensor
) -> None:
    views = dense.shape[1]
    required = torch.tensor([[(l, m) in pairs for m in range(views)] for l in range(views)])
    valid = (dense > -torch.inf) & required
    torch.testing.assert_close(fast.masked_fill(~valid, 0), dense.masked_fill(~valid, 0), rtol=1e-10, atol=1e-10)
    assert torch.equal((fast > -torch.inf) & required, valid)
    cotangent = torch.randn(valid.shape, dtype=dense.dtype, generator=torch.Generator().manual_seed(1)) * valid
    gradients = [
        torch.autograd.grad(torch.where(valid, energies, 0.0), leaves, cotangent, allow_unused=True)
        for energies in (dense, fast)
    ]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(b, torch.zeros_like(b) if a is None else a, rtol=1e-8, atol=1e-8)


@given(problems(), st.integers(1, 12))
@settings(max_examples=150, deadline=None)
def test_tiled_energies_equal_dense(problem: tuple, size: int) -> None:
    x, required, mask = problem
    dense = compute_dense_energies(x, required, mask)
    assert_same_energies(dense, compute_tiled_energies(x, required, mask, tile_rows=size), required, x)


@pytest.mark.slow
@given(problems(), st.integers(1, 12), st.booleans())
@settings(max_examples=100, deadline=None)
def test_tiled_sums_of_any_function_equal_dense(problem: tuple, size: int, log_space: bool) -> None:
    x, required, mask = problem
    frequency = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    options = {
        "kernel": register_kernel(sine),
        "parameters": (frequency,),
        "log_space": log_space,
    }
    dense = compute_dense_energies(x, required, mask, **options)
    fast = compute_tiled_energies(x, required, mask, tile_rows=size, **options)
    assert_same_energies(dense, fast, required, x, frequency)


@pytest.mark.slow
@given(problems(), st.integers(1, 12))
@settings(max_examples=50, deadline=None)
def test_recomputed_tiles_equal_cached_tiles(problem: tuple, size: int) -> None:
    x, required, mask = problem
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiled, "TILE_CACHE_BYTES", 100)
        recomputed = compute_tiled_energies(x, required, mask, tile_rows=size)
        dense = compute_dense_energies(x, required, mask)
        assert_same_energies(dense, recomputed, required, x)


@given(st.integers(1, 6), st.integers(1, 20), st.integers(1, 9), st.integers(0, 10**6))
@settings(deadline=None)
def test_plan_covers_each_required_pair_once(views: int, instances: int, size: int, seed: int) -> None:
    required = torch.rand(views, views, generator=torch.Generator().manual_seed(seed)) < 0.5
    required = required | required.T
    counts = torch.zeros(views, instances, views, instances, dtype=torch.long)
    for tile in plan_tiles(make_pairs(required), views, instances, size):
        counts[tile.row_view, tile.rows, tile.col_views, tile.cols] += 1
        if not tile.symmetric:
            transposed = counts.permute(2, 3, 0, 1)[tile.row_view, tile.rows, tile.col_views, tile.cols]
            transposed += 1
        assert math.prod(tile.shape[1:]) <= max(size, instances if views == 1 else size)
    assert torch.equal(counts, required[:, None, :, None].expand_as(counts).long())


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.5, 0.002])
@pytest.mark.parametrize("masked", [False, True])
def test_gradient_of_tiled_energies_is_the_numerical_one(temperature: float, masked: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    z = torch.nn.functional.normalize(torch.randn(5, 3, 4, dtype=torch.float64, generator=generator), dim=2)
    x = (z * temperature**-0.5).requires_grad_()
    mask = torch.rand(5, 3, generator=generator) < 0.8 if masked else None
    required = {(l, m) for l in range(3) for m in range(3)}

    def energies(x: torch.Tensor) -> torch.Tensor:
        result = compute_tiled_energies(x, required, mask, tile_rows=2)
        return torch.where(result > -torch.inf, result, 0.0)

    assert torch.autograd.gradcheck(energies, x)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("temperature", [0.5, 0.01])
@pytest.mark.parametrize("name", ENERGY_LOSSES)
def test_tiled_loss_equals_dense(name: str, temperature: float, masked: bool) -> None:
    views = limit_views(name, 4)
    generator = torch.Generator().manual_seed(3)
    z = torch.randn(40, views, 8, dtype=torch.float64, generator=generator, requires_grad=True)
    mask = torch.rand(40, views, generator=generator) < 0.7 if masked else None
    results = []
    for implementation in ("dense", "tiled"):
        loss_fn = get_loss(
            name, temperature=temperature, learn_temperature=True, implementation=implementation, reduction="none"
        ).double()
        each = loss_fn(z, mask)
        weights = torch.linspace(-1, 1, 40, dtype=torch.float64)
        gradients = torch.autograd.grad((each * weights).sum(), [z, *loss_fn.parameters()])
        results.append((each, *gradients))
    for dense, fast in zip(*results, strict=True):
        torch.testing.assert_close(fast, dense, rtol=1e-9, atol=1e-9)


def test_tiled_loss_of_another_kernel_equals_dense() -> None:
    z = torch.randn(30, 3, 8, dtype=torch.float64, requires_grad=True)
    losses = [
        get_loss("mv-infonce", kernel=InverseMultiquadric(), implementation=implementation)(z)
        for implementation in ("dense", "tiled")
    ]
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*(torch.autograd.grad(loss, z)[0] for loss in losses))


def test_backward_may_run_twice_and_frees_the_cache() -> None:
    z = torch.randn(20, 3, 8, requires_grad=True)
    loss = get_loss("pvc")(z)
    (first,) = torch.autograd.grad(loss, z, retain_graph=True)
    (second,) = torch.autograd.grad(loss, z)
    assert torch.equal(first, second)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, z)


@pytest.mark.slow
@pytest.mark.parametrize("log_space", [True, False])
def test_gradient_of_tiled_sums_of_any_function_is_the_numerical_one(log_space: bool) -> None:
    x = torch.randn(5, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    frequency = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    required = {(l, m) for l in range(3) for m in range(3)}

    def energies(x: torch.Tensor, frequency: torch.Tensor) -> torch.Tensor:
        options = {"kernel": register_kernel(sine), "parameters": (frequency,), "log_space": log_space}
        return compute_tiled_energies(x, required, tile_rows=2, **options)

    assert torch.autograd.gradcheck(energies, (x, frequency))


@pytest.mark.parametrize("instances", [513, 1025])
def test_batches_just_over_a_tile(instances: int) -> None:
    z = torch.randn(instances, 2, 8, generator=torch.Generator().manual_seed(0), requires_grad=True)
    for name in ("pvc", "mv-dhel"):
        exact = get_loss(name, implementation="dense")(z.double())
        fast = get_loss(name)(z)
        torch.testing.assert_close(fast.double(), exact, rtol=1e-5, atol=1e-5)
        a, b = (torch.autograd.grad(loss, z)[0] for loss in (exact, fast))
        torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-7)
