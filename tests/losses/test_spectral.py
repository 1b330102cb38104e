"""Losses of a whole batch: values and gradients of the released code, loops from the equations, degenerate input."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from manyviews.losses import EMPSSLLoss, LeJEPALoss, MMCRLoss, get_loss
from manyviews.losses import spectral as functions
from manyviews.losses._linalg import compute_logdet, compute_nuclear_norm
from manyviews.losses._sigreg import _characteristic_function, compute_sigreg, draw_slices
from tests.losses import joint_reference as reference
from tests.losses.test_joint import aligned, assert_same, collapsed, make_embeddings, make_mask, opposite, with_gradient

GOLDEN = Path(__file__).with_name("other_losses.npz")
NAMES = ("mmcr", "emp-ssl", "lejepa")

RELEASED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mmcr-0.0": lambda z, _: MMCRLoss()(z),
    "mmcr-0.1": lambda z, _: MMCRLoss(local_weight=0.1)(z),
    "emp-ssl": lambda z, _: EMPSSLLoss()(z),
    "lejepa-0.02": lambda z, slices: functions.compute_lejepa(z, None, slices),
}


@pytest.mark.parametrize("batch", range(4))
@pytest.mark.parametrize("name", RELEASED)
def test_equals_the_released_code(name: str, batch: int) -> None:
    with np.load(GOLDEN) as golden:
        z = torch.tensor(golden[f"{batch}/embeddings"], requires_grad=True)
        slices = torch.tensor(golden[f"{batch}/slices"])
        expected = tuple(torch.tensor(golden[f"{batch}/{name}/{value}"]) for value in ("loss", "grad"))
    assert_same(with_gradient(RELEASED[name](z, slices), z), expected)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(7, 3, 5), (4, 3, 9)], ids=["more instances", "more dimensions"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_equals_the_loop_of_the_equation(name: str, masked: bool, shape: tuple[int, int, int]) -> None:
    z, mask = make_embeddings(*shape), make_mask(*shape[:2]) if masked else None
    u = normalize(z, dim=2)
    slices = draw_slices(torch.tensor(1), 0, shape[2], 256, z)
    loss_fn, expected = {
        "mmcr": (MMCRLoss(local_weight=0.3), reference.mmcr(u, mask, 0.3)),
        "emp-ssl": (EMPSSLLoss(invariance_weight=3.0, eps=0.4), reference.emp_ssl(u, mask, 3.0, 0.4)),
        "lejepa": (LeJEPALoss(weight=0.1), reference.lejepa(z, slices, mask, 0.1)),
    }[name]
    assert_same(with_gradient(loss_fn(z, mask), z), with_gradient(expected, z))


def test_a_view_that_no_instance_has_is_ignored() -> None:
    z, mask = make_embeddings(), make_mask()
    mask[:, 2] = False
    for name in NAMES:
        torch.testing.assert_close(get_loss(name)(z, mask), get_loss(name)(z[:, :2], mask[:, :2]))


def test_lejepa_does_not_normalize() -> None:
    z = make_embeddings().detach()
    assert float(LeJEPALoss()(z)) != float(LeJEPALoss()(2 * z))
    torch.testing.assert_close(MMCRLoss()(z), MMCRLoss()(2 * z))


def test_the_distance_from_the_normal_distribution_is_small_for_normal_embeddings() -> None:
    z = torch.randn(2000, 1, 16, generator=torch.Generator().manual_seed(0))
    slices = draw_slices(torch.tensor(0), 0, 16, 64, z)
    torch.testing.assert_close(slices.norm(dim=0), torch.ones(64))
    distances = {scale: float(compute_sigreg(scale * z, None, slices)) for scale in (0.5, 1.0, 2.0)}
    assert 20 * distances[1.0] < min(distances[0.5], distances[2.0])


def test_slices_are_keyed_by_the_number_of_calls() -> None:
    z, loss = make_embeddings().detach(), LeJEPALoss(slices=4)
    values = [float(loss(z)) for _ in range(3)]
    assert len(set(values)) == 3
    resumed = LeJEPALoss(slices=4)
    resumed.load_state_dict(loss.state_dict())
    assert float(resumed(z)) == float(loss(z))
    loss.eval()
    assert float(loss(z)) == float(loss(z))
    assert int(loss.step) == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("make", [aligned, collapsed, opposite])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_degenerate_embeddings_are_bounded(
    name: str, make: Callable[..., Tensor], dtype: torch.dtype
) -> None:
    for shape in ((6, 3, 8), (12, 3, 4), (6, 2, 8)):
        options = {"local_weight": 0.1} if name == "mmcr" else {}
        z = make(*shape).to(dtype).clone().requires_grad_()
        loss, gradient = with_gradient(get_loss(name, **options)(z), z)
        assert loss.isfinite()
        assert gradient.abs().max() < 100


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (2, 4, 4)])
def test_gradient_of_the_nuclear_norm_is_the_numerical_one(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    torch.testing.assert_close(compute_nuclear_norm(x), torch.linalg.matrix_norm(x, "nuc"))
    assert torch.autograd.gradcheck(compute_nuclear_norm, x)


def test_nuclear_norm_of_equal_and_of_zero_singular_values_has_the_polar_factor_as_gradient() -> None:
    x = torch.eye(4, 6, dtype=torch.float64)
    x[3] = 0
    x.requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(compute_nuclear_norm(x), x)[0], x.detach())


def test_nuclear_norm_in_float32_is_precise_for_small_singular_values() -> None:
    generator = torch.Generator().manual_seed(0)
    U, V = (torch.linalg.qr(torch.randn(n, 8, dtype=torch.float64, generator=generator))[0] for n in (100, 20))
    x = U @ torch.diag(10.0 ** -torch.arange(8, dtype=torch.float64)) @ V.T
    torch.testing.assert_close(compute_nuclear_norm(x.float()).double(), compute_nuclear_norm(x), rtol=1e-6, atol=0)


@pytest.mark.parametrize("shape", [(3, 5, 2), (3, 2, 5)])
def test_gradient_of_the_coding_rate_is_the_numerical_one(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    scale = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    expected = torch.logdet(torch.eye(shape[2], dtype=torch.float64) + scale[:, None, None] * x.mT @ x)
    torch.testing.assert_close(compute_logdet(x, scale), expected)
    assert torch.autograd.gradcheck(compute_logdet, (x, scale))


@pytest.mark.slow
def test_the_operator_of_characteristic_functions_is_registered_correctly() -> None:
    x = torch.randn(5, 2, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(5, 2, 1, dtype=torch.float64)
    torch.library.opcheck(_characteristic_function, (x, weight, 0.2, 4))
    assert torch.autograd.gradcheck(lambda x: _characteristic_function(x, weight, 0.2, 4), x)


def test_second_derivatives_are_refused() -> None:
    z = torch.randn(6, 3, 4, dtype=torch.float64, requires_grad=True)
    for name in ("pmrl", "mmcr", "emp-ssl", "lejepa"):
        with pytest.raises(RuntimeError, match=r"only once|autograd formula"):
            torch.autograd.grad(get_loss(name)(z), z, create_graph=True)[0].square().sum().backward()


@pytest.mark.parametrize("name", NAMES)
def test_instances_do_not_have_a_loss_of_their_own(name: str) -> None:
    with pytest.raises(ValueError, match=r'is a loss of the whole batch: reduction must be "mean"'):
        get_loss(name, reduction="none")


@pytest.mark.parametrize("options", [{"temperature": 0.5}, {"learn_temperature": True}])
@pytest.mark.parametrize("name", NAMES)
def test_there_is_no_temperature(name: str, options: dict) -> None:
    with pytest.raises(ValueError, match="Loss does not have a temperature"):
        get_loss(name, **options)
    get_loss(name, learn_temperature=False)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MMCRLoss(local_weight=-1.0), "local_weight must be a finite number >= 0, got -1.0"),
        (lambda: EMPSSLLoss(eps=0.0), "eps must be a finite number > 0, got 0.0"),
        (lambda: EMPSSLLoss(invariance_weight=float("nan")), "invariance_weight must be"),
        (lambda: LeJEPALoss(weight=1.5), "weight must be between 0 and 1, got 1.5"),
        (lambda: LeJEPALoss(slices=0), "slices must be an integer >= 1, got 0"),
    ],
)
def test_errors_name_the_value(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("name", NAMES)
def test_without_validation_bad_embeddings_give_nan(name: str) -> None:
    z = torch.randn(6, 3, 5)
    z[2, 1, 0] = torch.nan
    assert get_loss(name, validate=False)(z).isnan()
