"""Losses are finite for extreme inputs, and close to float32 in half precision."""

import pytest
import torch

from manyviews.losses import LOSSES
from tests.losses.loss_by_name import ENERGY_LOSSES, MANY_VIEWS, get_loss, limit_views


def collapsed(M: int, N: int, d: int) -> torch.Tensor:
    return torch.ones(M, N, d)


def identical_instances(M: int, N: int, d: int) -> torch.Tensor:
    return torch.randn(1, N, d, generator=torch.Generator().manual_seed(0)).expand(M, N, d)


def opposite(M: int, N: int, d: int) -> torch.Tensor:
    z = torch.ones(M, N, d)
    z[::2] *= -1
    return z


def spread(M: int, N: int, d: int) -> torch.Tensor:
    return torch.randn(M, N, d, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("make", [collapsed, identical_instances, opposite, spread])
@pytest.mark.parametrize("temperature", [0.005, 0.07, 0.5])
@pytest.mark.parametrize("name", MANY_VIEWS)
def test_finite_at_the_extremes(name: str, temperature: float, make: object) -> None:
    z = make(12, limit_views(name, 8), 16).clone().requires_grad_()  # type: ignore[operator]
    loss = get_loss(name, temperature=temperature)(z)
    assert loss.isfinite()
    assert torch.autograd.grad(loss, z)[0].isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("make", [collapsed, identical_instances, spread])
@pytest.mark.parametrize("temperature", [0.005, 0.1])
@pytest.mark.parametrize("name", ["mv-infonce", "mv-dhel", "pvc"])
def test_finite_for_a_large_batch_of_eight_views(name: str, temperature: float, make: object) -> None:
    z = make(1024, 8, 16).clone().requires_grad_()  # type: ignore[operator]
    loss = get_loss(name, temperature=temperature)(z)
    assert loss.isfinite()
    assert torch.autograd.grad(loss, z)[0].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("temperature", [0.005, 0.5])
@pytest.mark.parametrize("name", MANY_VIEWS)
def test_autocast_computes_in_float32(name: str, temperature: float, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    layer = torch.nn.Linear(8, 8)
    x = torch.randn(32, 3, 8, generator=generator)
    loss_fn = get_loss(name, temperature=temperature)
    with torch.autocast("cpu", dtype=dtype):
        z = layer(x)
        assert z.dtype == dtype
        loss = loss_fn(z)
        loss.backward()  # inside the region, as some loops do
    assert loss.dtype == torch.float32
    assert all(p.grad.isfinite().all() for p in layer.parameters())
    with torch.no_grad():
        torch.testing.assert_close(loss, loss_fn(z.float()))


@pytest.mark.parametrize("implementation", ["dense", "tiled", None])
@pytest.mark.parametrize("name", LOSSES)
def test_backward_inside_autocast_gives_the_gradient_of_outside(name: str, implementation: str | None) -> None:
    if (implementation is None) == (name in ENERGY_LOSSES):
        pytest.skip("only functions of P and A have implementations")
    options = {} if implementation is None else {"implementation": implementation}
    loss_fn = get_loss(name, learn_temperature=True, **options)
    z = spread(32, limit_views(name, 3), 16).requires_grad_()
    leaves = [z, *loss_fn.parameters()]
    outside = torch.autograd.grad(loss_fn(z), leaves)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = torch.autograd.grad(loss_fn(z), leaves)
    torch.testing.assert_close(inside, outside, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("make", [collapsed, identical_instances, opposite])
@pytest.mark.parametrize("name", MANY_VIEWS)
def test_autocast_is_finite_at_the_extremes(name: str, make: object, dtype: torch.dtype) -> None:
    z = make(12, limit_views(name, 8), 16).to(dtype).requires_grad_()  # type: ignore[operator]
    with torch.autocast("cpu", dtype=dtype):
        loss = get_loss(name, temperature=0.005)(z)
        loss.backward()
    assert loss.isfinite()
    assert z.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["mv-infonce", "mv-dhel"])
def test_half_precision_loss_is_close_to_float32(name: str, dtype: torch.dtype) -> None:
    z = spread(64, 4, 32)
    exact, rounded = z.clone().requires_grad_(), z.to(dtype).requires_grad_()
    losses = [get_loss(name)(x) for x in (exact, rounded)]
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-2, atol=1e-2)
    gradients = [torch.autograd.grad(loss, x)[0].float() for loss, x in zip(losses, (exact, rounded), strict=True)]
    assert (gradients[1] - gradients[0]).norm() < 0.02 * gradients[0].norm()


@pytest.mark.parametrize("temperature", [0.024, 0.026])
def test_shared_and_stable_exponentials_agree(temperature: float) -> None:
    """Around this temperature the tiled energies switch from a shared exponential to running maxima."""
    z = spread(50, 3, 8)
    for name in ("pvc", "mv-dhel"):
        fast = get_loss(name, temperature=temperature)(z)
        exact = get_loss(name, temperature=temperature, implementation="dense")(z.double())
        torch.testing.assert_close(fast.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("name", MANY_VIEWS)
def test_cuda_equals_cpu(name: str) -> None:
    views = limit_views(name, 4)
    z = spread(64, views, 32).requires_grad_()
    mask = torch.rand(64, views) < 0.8
    results = []
    for device in ("cpu", "cuda"):
        loss = get_loss(name).to(device)(z.to(device), mask.to(device))
        results.append((loss.cpu(), torch.autograd.grad(loss, z)[0]))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
