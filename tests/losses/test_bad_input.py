"""Every mistake gets an error that names what was given."""

import math

import pytest
import torch

import manyviews as mv
from manyviews.losses import Gaussian, InverseMultiquadric, Logarithmic, Riesz, audit
from tests.losses.by_name import get_loss

GOOD = torch.randn(6, 3, 4, generator=torch.Generator().manual_seed(0))


def broken(instance: int, view: int, value: float) -> torch.Tensor:
    z = GOOD.clone()
    z[instance, view] = value
    return z


@pytest.mark.parametrize(
    ("z", "message"),
    [
        (GOOD[0], r"must be \(instances, views, dim\), got shape \(3, 4\)"),
        (GOOD[:, :1], "views must be >= 2, got 1"),
        (GOOD[:1], "instances must be >= 2, got 1"),
        (GOOD[:0], "instances must be >= 2, got 0"),
        (GOOD[:, :, :0], "must have a dimension"),
        (broken(4, 2, math.nan), "NaN, first at instance 4, view 2"),
        (broken(1, 0, math.inf), "inf, first at instance 1, view 0"),
        (broken(3, 1, 0.0), "zero vector.*instance 3, view 1"),
        (broken(3, 1, 1e30), "too large.*instance 3, view 1"),
        (GOOD * 1e-20, "too small.*instance 0, view 0"),
    ],
)
@pytest.mark.parametrize("name", ["mv-dhel", "pwe-ntxent", "siglip", "kcl", "supcon"])
def test_bad_embeddings(z: torch.Tensor, message: str, name: str) -> None:
    with pytest.raises(ValueError, match=message):
        get_loss(name)(z)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int64, torch.complex64])
def test_embeddings_of_another_dtype(dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=rf"float16, .*float64, got {dtype}: call .float\(\)"):
        mv.MVDHEL()(GOOD.to(dtype))


@pytest.mark.parametrize("z", [GOOD.long(), GOOD.to(torch.complex64), GOOD.numpy(), None])
def test_embeddings_of_another_type(z: object) -> None:
    with pytest.raises(TypeError, match="embeddings must be"):
        mv.MVDHEL()(z)


@pytest.mark.parametrize(
    ("present", "error", "message"),
    [
        (torch.ones(6, 2, dtype=torch.bool), ValueError, r"\(6, 3\).*got \(6, 2\)"),
        (torch.ones(6, 3), TypeError, "bool tensor.*float32"),
        ([[True] * 3] * 6, TypeError, "bool tensor.*list"),
        (torch.zeros(6, 3, dtype=torch.bool), ValueError, "no instance has two present views"),
        (torch.eye(6, 3).bool(), ValueError, "no instance has two present views"),
        (torch.tensor([[True] * 3] + [[False] * 3] * 5), ValueError, "1 of 6 instances has a present view"),
        (
            torch.ones(6, 3, dtype=torch.bool, device="meta"),
            ValueError,
            "meta but the embeddings are on cpu",
        ),
    ],
)
def test_bad_masks(present: torch.Tensor, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        mv.MVInfoNCE()(GOOD, present)


def test_nobody_has_the_anchor() -> None:
    present = torch.ones(6, 3, dtype=torch.bool)
    present[:, 1] = False
    with pytest.raises(ValueError, match="no instance has the views that Anchored aligns"):
        mv.Anchored(anchor=1)(GOOD, present)
    present[:3, 1] = True
    present[:3, (0, 2)] = False
    with pytest.raises(ValueError, match="no instance has the views that Anchored aligns"):
        mv.Anchored(anchor=1)(GOOD, present)


def test_instances_without_a_view_in_common_have_no_negatives() -> None:
    present = torch.tensor([[1, 1, 0, 0], [0, 0, 1, 1]]).bool()
    z = torch.randn(2, 4, 5)
    for name in ("mv-dhel", "mv-cl2", "pwe-infonce", "pwe-ntxent", "pwe-dhel", "avg-infonce", "avg-ntxent", "avg-dhel"):
        with pytest.raises(ValueError, match="no negatives"):
            mv.get_objective(name)(z, present)
    both = torch.cat([present, present[:1]])
    for place in ("inside", "mean", "sum"):
        loss = mv.MultiView("inside", place, "same", reduction="none")(torch.randn(3, 4, 5), both)
        assert loss.isfinite().all()


def test_a_formula_must_give_a_loss_for_each_instance() -> None:
    class Mean(mv.Objective):
        def formula(self, P: torch.Tensor, A: torch.Tensor) -> torch.Tensor:
            return A.mean()

    with pytest.raises(ValueError, match=r"formula of Mean must give a loss for each instance, \(6,\), got \(\)"):
        Mean()(GOOD)


def test_nan_in_a_learned_number_is_not_hidden() -> None:
    objective = mv.SigLIP()
    with torch.no_grad():
        objective.bias.fill_(torch.nan)
    assert objective(GOOD).isnan()


@pytest.mark.parametrize("temperature", ["0.5", None])
def test_a_temperature_that_is_no_number(temperature: object) -> None:
    with pytest.raises(TypeError, match="temperature must be a number"):
        mv.MVDHEL(temperature)


@pytest.mark.parametrize("temperature", [0, -0.1, math.nan, math.inf])
def test_bad_temperature(temperature: float) -> None:
    with pytest.raises(ValueError, match=rf"temperature must be a finite number > 0 .*got {float(temperature):g}"):
        mv.MVDHEL(float(temperature))
    with pytest.raises(ValueError, match="temperature must be"):
        mv.MVDHEL(torch.tensor(float(temperature)))
    later = mv.MVDHEL(torch.nn.Parameter(torch.tensor(0.5)))
    with torch.no_grad():
        later.temperature.fill_(temperature)
    with pytest.raises(ValueError, match="temperature must be"):
        later(GOOD)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mv.get_objective("mv-dhell"), "no objective 'mv-dhell': did you mean mv-dhel"),
        (lambda: mv.get_objective(""), "There are infonce, "),
        (lambda: mv.get_objective("SimCLR"), r"did you mean ntxent\?"),
        (lambda: mv.MVDHEL(torch.ones(2)), "one number"),
        (lambda: mv.MVDHEL(torch.tensor(0.5), learnable=True), "parameter"),
        (lambda: mv.MVDHEL(reduction="sum"), "reduction must be one of mean, none, got 'sum'"),
        (lambda: mv.MVDHEL(implementation="fast"), "implementation must be one of auto, dense, tiled"),
        (lambda: mv.MultiView("within"), "alignment must be one of inside, mean, sum, got 'within'"),
        (lambda: mv.MultiView(negatives="none"), "negatives must be one of"),
        (lambda: mv.Pairs("pvc"), "pair must be one of infonce, ntxent, dhel"),
        (lambda: mv.Anchored(anchor=-1), "anchor must be"),
        (lambda: mv.MVDHEL(kernel=Logarithmic()), "may be negative.*KernelContrastive"),
        (lambda: mv.PVC(kernel=Riesz()), "may be negative.*KernelContrastive"),
        (lambda: mv.Average(kernel=InverseMultiquadric()), "off the sphere"),
        (lambda: mv.SigLIP(kernel=InverseMultiquadric()), "takes no kernel"),
        (lambda: mv.KernelContrastive(0.5, kernel=Riesz()), "takes no temperature"),
        (lambda: mv.KernelContrastive(gamma=0), "gamma must be > 0"),
        (lambda: mv.KernelContrastive(gamma=math.inf), "gamma must be > 0"),
        (lambda: mv.SigLIP(bias=math.nan), "bias must be a finite number"),
        (lambda: mv.Anchored(anchor=0.5), "anchor must be"),
        (lambda: mv.MVDHEL(1e-30), "at least 1e-6"),
        (lambda: audit(mv.InfoNCE(), views=3), "InfoNCE is a loss of 2 views, got 3"),
        (lambda: audit(lambda P, A: (P * 0).flatten(1).sum(1)), "is not finite: mind that P"),
        (lambda: Riesz(1.0), "between -2 and 0"),
        (lambda: Logarithmic(beta=0), "beta must be > 0"),
        (lambda: InverseMultiquadric(0), "c must be > 0"),
        (lambda: audit(mv.MVDHEL(), views=1), "views must be >= 2"),
    ],
)
def test_bad_options(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


def test_unknown_option_is_named() -> None:
    with pytest.raises(TypeError, match="temperatur"):
        mv.get_objective("pvc", temperatur=0.2)


@pytest.mark.parametrize("name", ["infonce", "dhel"])
def test_two_view_losses_say_what_to_use_for_more(name: str) -> None:
    with pytest.raises(ValueError, match=r"a loss of 2 views, got 3.*pwe"):
        mv.get_objective(name)(GOOD)


def test_anchor_that_is_no_view() -> None:
    with pytest.raises(ValueError, match="anchor is view 3, but there are 3 views"):
        mv.Anchored(anchor=3)(GOOD)


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        (torch.arange(5), ValueError, r"\(6,\), got \(5,\)"),
        (torch.rand(6), TypeError, "integer tensor"),
        (list(range(6)), TypeError, "integer tensor.*list"),
    ],
)
def test_bad_labels(labels: torch.Tensor, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        mv.SupCon()(GOOD, labels=labels)


def test_supcon_needs_the_gaussian_kernel() -> None:
    with pytest.raises(ValueError, match="Gaussian"):
        mv.SupCon(kernel=InverseMultiquadric())
    mv.SupCon(kernel=Gaussian())(GOOD, labels=torch.arange(6))


def test_supcon_without_labels_names_ntxent() -> None:
    with pytest.raises(ValueError, match=r"labels=labels.*ntxent"):
        mv.SupCon()(GOOD)


def test_a_subclass_without_formula_says_so() -> None:
    class Empty(mv.Objective):
        pass

    with pytest.raises(TypeError, match="Empty must define formula"):
        Empty()(GOOD)


def test_double_backward_through_tiles_is_refused() -> None:
    z = GOOD.clone().requires_grad_()
    with pytest.raises(RuntimeError, match='implementation="dense"'):
        torch.autograd.grad(mv.MVDHEL()(z), z, create_graph=True)
    (gradient,) = torch.autograd.grad(mv.MVDHEL(implementation="dense")(z), z, create_graph=True)
    gradient.square().sum().backward()
    assert z.grad.abs().sum() > 0


def test_a_kernel_of_ones_own_and_what_is_none() -> None:
    class Laplacian:
        def log(self, cosine: torch.Tensor) -> torch.Tensor:
            return -(2 - 2 * cosine + 1e-6).sqrt()

        def value(self, cosine: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
            return torch.exp(self.log(cosine) / temperature)

    for name in ("mv-dhel", "kcl"):
        losses = [mv.get_objective(name, kernel=Laplacian(), implementation=i)(GOOD) for i in ("dense", "tiled")]
        torch.testing.assert_close(*losses)
        with pytest.raises(TypeError, match="kernel must be a kernel such as Gaussian"):
            mv.get_objective(name, kernel="gaussian")
