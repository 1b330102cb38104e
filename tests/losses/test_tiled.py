"""The tiled energies are the dense ones: values and gradients, for every objective."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manyviews.losses import OBJECTIVES, InverseMultiquadric, tiled
from manyviews.losses.affinity import dense_energies
from manyviews.losses.tiled import plan, tiled_energies
from tests.losses.by_name import get_loss


@st.composite
def problems(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    M, N, d = draw(st.integers(2, 11)), draw(st.integers(2, 5)), draw(st.integers(1, 6))
    temperature = draw(st.sampled_from([0.005, 0.02, 0.1, 1.0]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    z = torch.nn.functional.normalize(torch.randn(M, N, d, dtype=torch.float64, generator=generator), dim=2)
    symmetric = torch.rand(N, N, generator=generator) < 0.6
    symmetric[0, -1] = True  # an objective reads some energy
    present = None if draw(st.booleans()) else torch.rand(M, N, generator=generator) < 0.7
    blocks = symmetric | symmetric.T if draw(st.booleans()) else symmetric
    return (z * temperature**-0.5).requires_grad_(), blocks, present


def assert_same_energies(dense: torch.Tensor, fast: torch.Tensor, blocks: torch.Tensor, *leaves: torch.Tensor) -> None:
    there = (dense > -torch.inf) & blocks
    torch.testing.assert_close(fast.masked_fill(~there, 0), dense.masked_fill(~there, 0), rtol=1e-10, atol=1e-10)
    assert torch.equal((fast > -torch.inf) & blocks, there)
    cotangent = torch.randn(there.shape, dtype=dense.dtype, generator=torch.Generator().manual_seed(1)) * there
    gradients = [
        torch.autograd.grad(torch.where(there, energies, 0.0), leaves, cotangent, allow_unused=True)
        for energies in (dense, fast)
    ]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(b, torch.zeros_like(b) if a is None else a, rtol=1e-8, atol=1e-8)


@given(problems(), st.integers(1, 12))
@settings(max_examples=150, deadline=None)
def test_tiled_energies_equal_dense(problem: tuple, size: int) -> None:
    x, blocks, present = problem
    dense = dense_energies(x, blocks, present)
    assert_same_energies(dense, tiled_energies(x, blocks, present, tile=size), blocks, x)


@given(problems(), st.integers(1, 12), st.booleans())
@settings(max_examples=100, deadline=None)
def test_tiled_sums_of_any_function_equal_dense(problem: tuple, size: int, logarithmic: bool) -> None:
    x, blocks, present = problem
    bend = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    options = {
        "pointwise": lambda s, b: torch.sin(b * s) * 3,
        "parameters": (bend,),
        "logarithmic": logarithmic,
    }
    dense = dense_energies(x, blocks, present, **options)
    fast = tiled_energies(x, blocks, present, tile=size, **options)
    assert_same_energies(dense, fast, blocks, x, bend)


@given(problems(), st.integers(1, 12))
@settings(max_examples=50, deadline=None)
def test_recomputed_tiles_equal_kept_ones(problem: tuple, size: int) -> None:
    x, blocks, present = problem
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiled, "KEEP_BYTES", 100)
        recomputed = tiled_energies(x, blocks, present, tile=size)
        kept = dense_energies(x, blocks, present)
        assert_same_energies(kept, recomputed, blocks, x)


@given(st.integers(1, 6), st.integers(1, 20), st.integers(1, 9), st.integers(0, 10**6))
@settings(deadline=None)
def test_plan_covers_each_wanted_pair_once(views: int, instances: int, size: int, seed: int) -> None:
    wanted = torch.rand(views, views, generator=torch.Generator().manual_seed(seed)) < 0.5
    wanted = wanted | wanted.T
    times = torch.zeros(views, instances, views, instances, dtype=torch.long)
    for tile in plan(wanted, instances, size):
        times[tile.view, tile.rows, tile.views, tile.columns] += 1
        if not tile.symmetric:
            rows = times.permute(2, 3, 0, 1)[tile.view, tile.rows, tile.views, tile.columns]
            rows += 1
        assert math.prod(tile.shape[1:]) <= max(size, instances if views == 1 else size)
    assert torch.equal(times, wanted[:, None, :, None].expand_as(times).long())


@pytest.mark.parametrize("temperature", [0.5, 0.002])
@pytest.mark.parametrize("masked", [False, True])
def test_gradient_of_tiled_energies_is_the_numerical_one(temperature: float, masked: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    z = torch.nn.functional.normalize(torch.randn(5, 3, 4, dtype=torch.float64, generator=generator), dim=2)
    x = (z * temperature**-0.5).requires_grad_()
    present = torch.rand(5, 3, generator=generator) < 0.8 if masked else None
    blocks = torch.ones(3, 3, dtype=torch.bool)

    def energies(x: torch.Tensor) -> torch.Tensor:
        found = tiled_energies(x, blocks, present, tile=2)
        return torch.where(found > -torch.inf, found, 0.0)

    assert torch.autograd.gradcheck(energies, x)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("temperature", [0.5, 0.01])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_tiled_objective_equals_dense(name: str, temperature: float, masked: bool) -> None:
    views = 2 if name in ("infonce", "dhel") else 4
    generator = torch.Generator().manual_seed(3)
    z = torch.randn(40, views, 8, dtype=torch.float64, generator=generator, requires_grad=True)
    present = torch.rand(40, views, generator=generator) < 0.7 if masked else None
    results = []
    for implementation in ("dense", "tiled"):
        objective = get_loss(
            name, temperature=temperature, learnable=True, implementation=implementation, reduction="none"
        ).double()
        each = objective(z, present)
        weights = torch.linspace(-1, 1, 40, dtype=torch.float64)
        gradients = torch.autograd.grad((each * weights).sum(), [z, *objective.parameters()])
        results.append((each, *gradients))
    for dense, fast in zip(*results, strict=True):
        torch.testing.assert_close(fast, dense, rtol=1e-9, atol=1e-9)


def test_other_kernels_are_tiled_too() -> None:
    z = torch.randn(30, 3, 8, dtype=torch.float64, requires_grad=True)
    losses = [
        get_loss("mv-infonce", kernel=InverseMultiquadric(), implementation=implementation)(z)
        for implementation in ("dense", "tiled")
    ]
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*(torch.autograd.grad(loss, z)[0] for loss in losses))


def test_backward_may_run_twice_and_frees_what_it_kept() -> None:
    z = torch.randn(20, 3, 8, requires_grad=True)
    loss = get_loss("pvc")(z)
    (first,) = torch.autograd.grad(loss, z, retain_graph=True)
    (second,) = torch.autograd.grad(loss, z)
    assert torch.equal(first, second)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, z)


@pytest.mark.parametrize("logarithmic", [True, False])
def test_gradient_of_tiled_sums_of_any_function_is_the_numerical_one(logarithmic: bool) -> None:
    x = torch.randn(5, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    bend = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    blocks = torch.ones(3, 3, dtype=torch.bool)

    def energies(x: torch.Tensor, bend: torch.Tensor) -> torch.Tensor:
        options = {"pointwise": lambda s, b: torch.sin(b * s), "parameters": (bend,), "logarithmic": logarithmic}
        return tiled_energies(x, blocks, tile=2, **options)

    assert torch.autograd.gradcheck(energies, (x, bend))


@pytest.mark.parametrize("instances", [513, 1025])
def test_batches_just_over_a_tile(instances: int) -> None:
    z = torch.randn(instances, 2, 8, generator=torch.Generator().manual_seed(0), requires_grad=True)
    for name in ("pvc", "mv-dhel"):
        exact = get_loss(name, implementation="dense")(z.double())
        fast = get_loss(name)(z)
        torch.testing.assert_close(fast.double(), exact, rtol=1e-5, atol=1e-5)
        a, b = (torch.autograd.grad(loss, z)[0] for loss in (exact, fast))
        torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-7)
