"""Each loss against slow loops written from its equation: values and all gradients."""

import pytest
import torch

from manyviews.losses import (
    Gaussian,
    InverseMultiquadric,
    KernelContrastiveLoss,
    LeaveOneOutLoss,
    Logarithmic,
    MVDHELLoss,
    MVInfoNCELoss,
    Riesz,
    SupConLoss,
    get_loss,
)
from tests.losses import reference as loops
from tests.losses.reference import Loops

BY_INSTANCE = [
    "ntxent",
    "pwe-infonce",
    "pwe-ntxent",
    "pwe-dhel",
    "pvc",
    "pvc-arithmetic",
    "mv-infonce",
    "mv-dhel",
    "mv-cl1",
    "mv-cl2",
    "dcl",
]


def embeddings(M: int = 5, N: int = 3, d: int = 4, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(M, N, d, dtype=torch.float64, generator=generator).requires_grad_()


# A missing view, a missing instance, an instance with one view, a view that only one instance has.
MASK = torch.tensor(
    [
        [1, 1, 1, 0],
        [1, 1, 0, 0],
        [0, 1, 1, 0],
        [0, 0, 0, 0],
        [1, 0, 1, 1],
        [0, 1, 0, 0],
        [1, 1, 1, 0],
    ],
    dtype=torch.bool,
)


def assert_same(fast: torch.Tensor, slow: torch.Tensor, *leaves: torch.Tensor) -> None:
    torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-12)
    for a, b in zip(
        torch.autograd.grad(fast, leaves, retain_graph=True), torch.autograd.grad(slow, leaves), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)
        assert a.abs().sum() > 0


@pytest.mark.parametrize("implementation", ["dense", "tiled"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", BY_INSTANCE)
def test_loss_is_its_equation(name: str, masked: bool, implementation: str) -> None:
    z = embeddings(7, 4) if masked else embeddings()
    mask = MASK if masked else None
    temperature = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    loss = get_loss(name, temperature=temperature, implementation=implementation)
    slow = Loops(loops.unit(z), temperature, mask).loss(name)
    assert_same(loss(z, mask), slow, z, temperature)


@pytest.mark.parametrize("name", ["infonce", "dhel"])
def test_two_view_loss_is_its_equation(name: str) -> None:
    z = embeddings(6, 2)
    assert_same(get_loss(name, temperature=0.2)(z), Loops(loops.unit(z), 0.2).loss(name), z)


@pytest.mark.parametrize("masked", [False, True])
def test_released_variant_of_mv_infonce_has_same_view_negatives(masked: bool) -> None:
    z = embeddings(7, 4)
    mask = MASK if masked else None
    slow = Loops(loops.unit(z), 0.5, mask).loss("mv-infonce", same_view_negatives=True)
    assert_same(MVInfoNCELoss(0.5, same_view_negatives=True)(z, mask), slow, z)


@pytest.mark.parametrize("normalize_mean", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("pair", ["infonce", "ntxent", "dhel"])
def test_avg_is_a_two_view_problem_for_each_view(pair: str, masked: bool, normalize_mean: bool) -> None:
    z = embeddings(7, 4)
    mask = MASK if masked else None
    slow = Loops(loops.unit(z), 0.4, mask).avg(pair, normalize_mean)
    assert_same(LeaveOneOutLoss(pair, 0.4, normalize_mean=normalize_mean)(z, mask), slow, z)


@pytest.mark.parametrize("anchor", [0, 2])
@pytest.mark.parametrize("masked", [False, True])
def test_anchored_contrasts_one_view_with_each_other(masked: bool, anchor: int) -> None:
    z = embeddings(7, 4)
    mask = MASK if masked else None
    slow = Loops(loops.unit(z), 0.4, mask).anchored(anchor)
    assert_same(get_loss("anchored", anchor_view=anchor, temperature=0.4)(z, mask), slow, z)


@pytest.mark.parametrize("masked", [False, True])
def test_supcon_positives_are_all_views_with_the_same_label(masked: bool) -> None:
    z = embeddings(7, 4)
    mask = MASK if masked else None
    labels = torch.tensor([3, 1, 3, 1, 9, 1, 9])
    slow = Loops(loops.unit(z), 0.4, mask).supcon(labels)
    assert_same(SupConLoss(0.4)(z, mask, labels), slow, z)


def test_supcon_needs_one_view_of_instances_that_share_a_label() -> None:
    z = embeddings(6, 3)
    mask = torch.eye(3, dtype=torch.bool).repeat(2, 1)
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    assert_same(SupConLoss(0.4)(z, mask, labels), Loops(loops.unit(z), 0.4, mask).supcon(labels), z)


def test_supcon_with_distinct_labels_equals_ntxent() -> None:
    z = embeddings()
    expected = get_loss("ntxent")(z)
    torch.testing.assert_close(SupConLoss()(z, labels=torch.arange(len(z))), expected)


@pytest.mark.parametrize("implementation", ["dense", "tiled"])
@pytest.mark.parametrize("masked", [False, True])
def test_siglip_classifies_each_pair(masked: bool, implementation: str) -> None:
    z = embeddings(7, 4)
    mask = MASK if masked else None
    loss = get_loss("siglip", temperature=0.2, bias=-1.5, implementation=implementation).double()
    slow = Loops(loops.unit(z), loss.temperature, mask).loss("siglip", bias=loss.bias)
    assert_same(loss(z, mask), slow, z, loss.bias, loss.log_temperature)


@pytest.mark.parametrize("implementation", ["dense", "tiled"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("kernel", "temperature", "slow_kernel"),
    [
        (Gaussian(), 0.25, loops.gaussian(0.25)),
        (InverseMultiquadric(0.7), 0.5, loops.imq(0.5, 0.7)),
        (Logarithmic(2.0, 0.5), None, loops.logarithmic(2.0, 0.5)),
        (Riesz(-0.8), None, loops.riesz(-0.8)),
    ],
)
def test_kernel_contrastive_is_mean_kernels(
    kernel: object, temperature: float | None, slow_kernel: object, masked: bool, implementation: str
) -> None:
    z = embeddings(7, 4)
    mask = MASK if masked else None
    loss = KernelContrastiveLoss(temperature, kernel=kernel, gamma=3.0, implementation=implementation)
    slow = Loops(loops.unit(z), 1.0, mask).loss("kcl", kernel=slow_kernel, gamma=3.0)
    assert_same(loss(z, mask), slow, z)


@pytest.mark.parametrize("implementation", ["dense", "tiled"])
@pytest.mark.parametrize("masked", [False, True])
def test_multi_view_losses_take_the_inverse_multiquadric_kernel(masked: bool, implementation: str) -> None:
    class WithKernel(Loops):
        def K(self, i: int, l: int, j: int, m: int) -> torch.Tensor:
            kernel = loops.imq(self.temperature, 1.5)
            return kernel((self.z[i, l] - self.z[j, m]).square().sum())

    z = embeddings(7, 4)
    mask = MASK if masked else None
    temperature = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    kernel = InverseMultiquadric(1.5)
    loss = MVDHELLoss(temperature, kernel=kernel, implementation=implementation)
    slow = WithKernel(loops.unit(z), temperature, mask).loss("mv-dhel")
    assert_same(loss(z, mask), slow, z, temperature)


@pytest.mark.parametrize("container", [list, tuple])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", ["mv-dhel", "pvc", "supcon"])
def test_a_list_of_views_equals_the_stacked_tensor(name: str, masked: bool, container: type) -> None:
    views = embeddings(7, 4).detach().unbind(1)
    views = container(view.clone().requires_grad_() for view in views)
    mask = MASK if masked else None
    options = {"labels": torch.arange(7) % 3} if name == "supcon" else {}
    losses = [get_loss(name)(z, mask, **options) for z in (views, torch.stack(list(views), 1))]
    assert torch.equal(*losses)
    for a, b in zip(*(torch.autograd.grad(loss, list(views)) for loss in losses), strict=True):
        assert torch.equal(a, b)
        assert a.abs().sum() > 0 or masked


def test_a_list_of_views_under_autocast_is_computed_in_float32() -> None:
    views = [view.float().bfloat16() for view in embeddings().detach().unbind(1)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = MVDHELLoss()(views)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, MVDHELLoss()(torch.stack(views, 1)))


def test_reduction_none_returns_the_loss_of_each_instance() -> None:
    z = embeddings(7, 4)
    slow = Loops(loops.unit(z), 0.5, MASK)
    each = get_loss("pvc", reduction="none")(z, MASK)
    for i in range(7):
        expected = slow.pvc(i) if i in slow.counted() else torch.zeros_like(each[i])
        torch.testing.assert_close(each[i], expected)
    torch.testing.assert_close(each.sum() / len(slow.counted()), get_loss("pvc")(z, MASK))


def test_repr_of_siglip_contains_the_bias() -> None:
    assert repr(get_loss("siglip", bias=-3.5)) == "SigLIPLoss(temperature=0.1, kernel=Gaussian(), bias=-3.5)"
