"""Each objective against slow loops written from its equation: values, and gradients of everything."""

import pytest
import torch

from manyviews.losses import (
    MVDHEL,
    Average,
    Gaussian,
    InverseMultiquadric,
    KernelContrastive,
    Logarithmic,
    MVInfoNCE,
    Riesz,
    SupCon,
    get_objective,
)
from tests.losses import loops
from tests.losses.loops import Loops

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


# An absent view, an absent instance, an instance with one view, a view that one instance alone has.
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


def same(ours: torch.Tensor, slow: torch.Tensor, *leaves: torch.Tensor) -> None:
    torch.testing.assert_close(ours, slow, rtol=1e-10, atol=1e-12)
    for a, b in zip(
        torch.autograd.grad(ours, leaves, retain_graph=True), torch.autograd.grad(slow, leaves), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)
        assert a.abs().sum() > 0


@pytest.mark.parametrize("implementation", ["dense", "tiled"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", BY_INSTANCE)
def test_objective_is_its_equation(name: str, masked: bool, implementation: str) -> None:
    z = embeddings(7, 4) if masked else embeddings()
    present = MASK if masked else None
    temperature = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    objective = get_objective(name, temperature=temperature, implementation=implementation)
    slow = Loops(loops.unit(z), temperature, present).loss(name)
    same(objective(z, present), slow, z, temperature)


@pytest.mark.parametrize("name", ["infonce", "dhel"])
def test_two_view_loss_is_its_equation(name: str) -> None:
    z = embeddings(6, 2)
    same(get_objective(name, temperature=0.2)(z), Loops(loops.unit(z), 0.2).loss(name), z)


@pytest.mark.parametrize("masked", [False, True])
def test_released_variant_of_mv_infonce_has_same_view_negatives(masked: bool) -> None:
    z = embeddings(7, 4)
    present = MASK if masked else None
    slow = Loops(loops.unit(z), 0.5, present).loss("mv-infonce", same_view=True)
    same(MVInfoNCE(0.5, same_view=True)(z, present), slow, z)


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("pair", ["infonce", "ntxent", "dhel"])
def test_avg_is_a_two_view_problem_for_each_view(pair: str, masked: bool, normalise: bool) -> None:
    z = embeddings(7, 4)
    present = MASK if masked else None
    slow = Loops(loops.unit(z), 0.4, present).avg(pair, normalise)
    same(Average(pair, 0.4, normalise=normalise)(z, present), slow, z)


@pytest.mark.parametrize("anchor", [0, 2])
@pytest.mark.parametrize("masked", [False, True])
def test_anchored_contrasts_one_view_with_each_other(masked: bool, anchor: int) -> None:
    z = embeddings(7, 4)
    present = MASK if masked else None
    slow = Loops(loops.unit(z), 0.4, present).anchored(anchor)
    same(get_objective("anchored", anchor=anchor, temperature=0.4)(z, present), slow, z)


@pytest.mark.parametrize("masked", [False, True])
def test_supcon_takes_all_views_of_a_label_as_positives(masked: bool) -> None:
    z = embeddings(7, 4)
    present = MASK if masked else None
    labels = torch.tensor([3, 1, 3, 1, 9, 1, 9])
    slow = Loops(loops.unit(z), 0.4, present).supcon(labels)
    same(SupCon(0.4)(z, present, labels), slow, z)


def test_supcon_needs_one_view_of_instances_that_share_a_label() -> None:
    z = embeddings(6, 3)
    present = torch.eye(3, dtype=torch.bool).repeat(2, 1)
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    same(SupCon(0.4)(z, present, labels), Loops(loops.unit(z), 0.4, present).supcon(labels), z)


def test_supcon_of_instances_each_their_own_class_is_ntxent() -> None:
    z = embeddings()
    expected = get_objective("ntxent")(z)
    torch.testing.assert_close(SupCon()(z, labels=torch.arange(len(z))), expected)


@pytest.mark.parametrize("implementation", ["dense", "tiled"])
@pytest.mark.parametrize("masked", [False, True])
def test_siglip_decides_each_pair(masked: bool, implementation: str) -> None:
    z = embeddings(7, 4)
    present = MASK if masked else None
    objective = get_objective("siglip", temperature=0.2, bias=-1.5, implementation=implementation).double()
    slow = Loops(loops.unit(z), objective.temperature, present).loss("siglip", bias=objective.bias)
    same(objective(z, present), slow, z, objective.bias, objective.log_temperature)


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
    present = MASK if masked else None
    objective = KernelContrastive(temperature, kernel=kernel, gamma=3.0, implementation=implementation)
    slow = Loops(loops.unit(z), 1.0, present).loss("kcl", kernel=slow_kernel, gamma=3.0)
    same(objective(z, present), slow, z)


@pytest.mark.parametrize("implementation", ["dense", "tiled"])
@pytest.mark.parametrize("masked", [False, True])
def test_multi_view_objectives_take_the_inverse_multiquadric_kernel(masked: bool, implementation: str) -> None:
    class WithKernel(Loops):
        def K(self, i: int, l: int, j: int, m: int) -> torch.Tensor:
            kernel = loops.imq(self.temperature, 1.5)
            return kernel((self.z[i, l] - self.z[j, m]).square().sum())

    z = embeddings(7, 4)
    present = MASK if masked else None
    temperature = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    kernel = InverseMultiquadric(1.5)
    objective = MVDHEL(temperature, kernel=kernel, implementation=implementation)
    slow = WithKernel(loops.unit(z), temperature, present).loss("mv-dhel")
    same(objective(z, present), slow, z, temperature)


def test_reduction_none_gives_the_loss_of_each_instance() -> None:
    z = embeddings(7, 4)
    slow = Loops(loops.unit(z), 0.5, MASK)
    each = get_objective("pvc", reduction="none")(z, MASK)
    for i in range(7):
        expected = slow.pvc(i) if i in slow.counted() else torch.zeros_like(each[i])
        torch.testing.assert_close(each[i], expected)
    torch.testing.assert_close(each.sum() / len(slow.counted()), get_objective("pvc")(z, MASK))


def test_siglip_shows_its_bias() -> None:
    assert repr(get_objective("siglip", bias=-3.5)) == "SigLIP(temperature=0.1, kernel=Gaussian(), bias=-3.5)"
