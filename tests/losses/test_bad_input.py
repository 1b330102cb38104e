"""Errors of invalid input contain the invalid value."""

import math

import pytest
import torch

import manyviews as mv
from manyviews.losses import Gaussian, InverseMultiquadric, Logarithmic, Riesz, check_principles
from tests.losses.loss_by_name import get_loss

GOOD = torch.randn(6, 3, 4, generator=torch.Generator().manual_seed(0))


def with_vector(instance: int, view: int, value: float) -> torch.Tensor:
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
        (GOOD[:, :, :0], "must have at least one dimension"),
        (with_vector(4, 2, math.nan), "NaN, first at instance 4, view 2"),
        (with_vector(1, 0, math.inf), "inf, first at instance 1, view 0"),
        (with_vector(3, 1, 0.0), "zero vector.*instance 3, view 1"),
        (with_vector(3, 1, 1e30), "too large.*instance 3, view 1"),
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
        mv.MVDHELLoss()(GOOD.to(dtype))


@pytest.mark.parametrize("z", [GOOD.long(), GOOD.to(torch.complex64), GOOD.numpy(), None])
def test_embeddings_of_another_type(z: object) -> None:
    with pytest.raises(TypeError, match="embeddings must be"):
        mv.MVDHELLoss()(z)


@pytest.mark.parametrize(
    ("views", "error", "message"),
    [
        ([], ValueError, "at least two views, got an empty list"),
        ([GOOD[:, 0]], ValueError, "views must be >= 2, got 1"),
        ([GOOD[:, 0], GOOD[:5, 1]], ValueError, r"same shape, got \(6, 4\) for view 0 and \(5, 4\) for view 1"),
        ([GOOD, GOOD], ValueError, r"\(instances, dim\), got shape \(6, 3, 4\) for view 0"),
        ([GOOD[:, 0], None], TypeError, "must be tensors .*got NoneType for view 1"),
        ([[1.0, 2.0], [3.0, 4.0]], TypeError, "must be tensors .*got list for view 0"),
        ([GOOD[:, 0], GOOD[:, 1].long()], TypeError, "got torch.int64"),
        ([GOOD[:, 0], GOOD[:, 1].to("meta")], ValueError, "same device, got cpu for view 0 and meta for view 1"),
    ],
)
def test_bad_lists_of_views(views: list, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        mv.MVDHELLoss()(views)


@pytest.mark.parametrize(
    ("mask", "error", "message"),
    [
        (torch.ones(6, 2, dtype=torch.bool), ValueError, r"\(6, 3\).*got \(6, 2\)"),
        (torch.ones(6, 3), TypeError, "bool tensor.*float32"),
        ([[True] * 3] * 6, TypeError, "bool tensor.*list"),
        (torch.zeros(6, 3, dtype=torch.bool), ValueError, "no instance has two views"),
        (torch.eye(6, 3).bool(), ValueError, "no instance has two views"),
        (torch.tensor([[True] * 3] + [[False] * 3] * 5), ValueError, "only 1 of 6 instances have a view"),
        (
            torch.ones(6, 3, dtype=torch.bool, device="meta"),
            ValueError,
            "meta but the embeddings are on cpu",
        ),
    ],
)
def test_bad_masks(mask: torch.Tensor, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        mv.MVInfoNCELoss()(GOOD, mask)


def test_an_anchor_that_no_instance_has_is_an_error() -> None:
    mask = torch.ones(6, 3, dtype=torch.bool)
    mask[:, 1] = False
    with pytest.raises(ValueError, match="no instance has the views that AnchoredLoss aligns"):
        mv.AnchoredLoss(anchor_view=1)(GOOD, mask)
    mask[:3, 1] = True
    mask[:3, (0, 2)] = False
    with pytest.raises(ValueError, match="no instance has the views that AnchoredLoss aligns"):
        mv.AnchoredLoss(anchor_view=1)(GOOD, mask)


def test_instances_without_a_view_in_common_have_no_negatives() -> None:
    mask = torch.tensor([[1, 1, 0, 0], [0, 0, 1, 1]]).bool()
    z = torch.randn(2, 4, 5)
    for name in ("mv-dhel", "mv-cl2", "pwe-infonce", "pwe-ntxent", "pwe-dhel", "avg-infonce", "avg-ntxent", "avg-dhel"):
        with pytest.raises(ValueError, match="no negatives"):
            mv.get_loss(name)(z, mask)
    both = torch.cat([mask, mask[:1]])
    for uniformity in ("logsumexp", "mean", "sum"):
        loss = mv.MultiViewContrastiveLoss("logsumexp", uniformity, "same_view", reduction="none")(
            torch.randn(3, 4, 5), both
        )
        assert loss.isfinite().all()


def test_a_formula_must_return_a_loss_for_each_instance() -> None:
    class Mean(mv.EnergyLoss):
        def formula(self, P: torch.Tensor, A: torch.Tensor) -> torch.Tensor:
            return A.mean()

    with pytest.raises(ValueError, match=r"formula of Mean must return a loss for each instance, \(6,\), got \(\)"):
        Mean()(GOOD)


def test_nan_in_a_learned_bias_is_not_hidden() -> None:
    siglip = mv.SigLIPLoss()
    with torch.no_grad():
        siglip.bias.fill_(torch.nan)
    assert siglip(GOOD).isnan()


@pytest.mark.parametrize("temperature", ["0.5", None])
def test_temperature_of_another_type(temperature: object) -> None:
    with pytest.raises(TypeError, match="temperature must be a number"):
        mv.MVDHELLoss(temperature)


@pytest.mark.parametrize("temperature", [0, -0.1, math.nan, math.inf])
def test_bad_temperature(temperature: float) -> None:
    with pytest.raises(ValueError, match=rf"temperature must be a finite number > 0 .*got {float(temperature):g}"):
        mv.MVDHELLoss(float(temperature))
    with pytest.raises(ValueError, match="temperature must be"):
        mv.MVDHELLoss(torch.tensor(float(temperature)))
    loss = mv.MVDHELLoss(torch.nn.Parameter(torch.tensor(0.5)))
    with torch.no_grad():
        loss.temperature.fill_(temperature)
    with pytest.raises(ValueError, match="temperature must be"):
        loss(GOOD)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mv.get_loss("mv-dhell"), "unknown loss 'mv-dhell': did you mean mv-dhel"),
        (lambda: mv.get_loss(""), "There are anchored, avg-dhel, "),
        (lambda: mv.get_loss("SimCLR"), r"did you mean ntxent\?"),
        (lambda: mv.MVDHELLoss(torch.ones(2)), "one number"),
        (lambda: mv.MVDHELLoss(torch.tensor(0.5), learn_temperature=True), "pass an nn.Parameter"),
        (lambda: mv.MVDHELLoss(reduction="sum"), "reduction must be one of mean, none, got 'sum'"),
        (lambda: mv.MVDHELLoss(implementation="fast"), "implementation must be one of auto, dense, tiled"),
        (lambda: mv.MultiViewContrastiveLoss("inside"), "alignment must be one of logsumexp, mean, sum, got 'inside'"),
        (lambda: mv.MultiViewContrastiveLoss(negatives="none"), "negatives must be one of cross_view, same_view, all"),
        (lambda: mv.PairwiseLoss("pvc"), "pair_loss must be one of infonce, ntxent, dhel"),
        (lambda: mv.AnchoredLoss(anchor_view=-1), "anchor_view must be"),
        (lambda: mv.MVDHELLoss(kernel=Logarithmic()), "may be negative.*KernelContrastive"),
        (lambda: mv.PVCLoss(kernel=Riesz()), "may be negative.*KernelContrastive"),
        (lambda: mv.LeaveOneOutLoss(kernel=InverseMultiquadric()), "off the sphere"),
        (lambda: mv.SigLIPLoss(kernel=InverseMultiquadric()), "SigLIPLoss requires Gaussian"),
        (lambda: mv.KernelContrastiveLoss(0.5, kernel=Riesz()), "does not take a temperature"),
        (lambda: mv.KernelContrastiveLoss(gamma=0), "gamma must be > 0"),
        (lambda: mv.KernelContrastiveLoss(gamma=math.inf), "gamma must be > 0"),
        (lambda: mv.SigLIPLoss(bias=math.nan), "bias must be a finite number"),
        (lambda: mv.AnchoredLoss(anchor_view=0.5), "anchor_view must be"),
        (lambda: mv.MVDHELLoss(1e-30), "at least 1e-6"),
        (lambda: check_principles(mv.InfoNCELoss(), views=3), "InfoNCELoss is a loss of 2 views, got 3"),
        (
            lambda: check_principles(lambda P, A: (P * 0).flatten(1).sum(1)),
            "is not finite: note that the diagonal of P",
        ),
        (lambda: Riesz(1.0), "between -2 and 0"),
        (lambda: Logarithmic(beta=0), "beta must be > 0"),
        (lambda: InverseMultiquadric(0), "c must be > 0"),
        (lambda: check_principles(mv.MVDHELLoss(), views=1), "views must be >= 2"),
    ],
)
def test_bad_options(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


def test_unknown_option_is_named() -> None:
    with pytest.raises(TypeError, match="temperatur"):
        mv.get_loss("pvc", temperatur=0.2)


@pytest.mark.parametrize("name", ["infonce", "dhel"])
def test_error_of_a_two_view_loss_names_the_alternatives(name: str) -> None:
    with pytest.raises(ValueError, match=r"a loss of 2 views, got 3.*pwe"):
        mv.get_loss(name)(GOOD)


def test_anchor_beyond_the_views() -> None:
    with pytest.raises(ValueError, match="anchor_view must be < 3, the number of views, got 3"):
        mv.AnchoredLoss(anchor_view=3)(GOOD)


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
        mv.SupConLoss()(GOOD, labels=labels)


def test_supcon_needs_the_gaussian_kernel() -> None:
    with pytest.raises(ValueError, match="Gaussian"):
        mv.SupConLoss(kernel=InverseMultiquadric())
    mv.SupConLoss(kernel=Gaussian())(GOOD, labels=torch.arange(6))


def test_supcon_without_labels_names_ntxent() -> None:
    with pytest.raises(ValueError, match=r"labels=labels.*ntxent"):
        mv.SupConLoss()(GOOD)


def test_a_subclass_without_formula_is_an_error() -> None:
    class Empty(mv.EnergyLoss):
        pass

    with pytest.raises(TypeError, match="Empty must define formula"):
        Empty()(GOOD)


def test_double_backward_through_tiles_is_an_error() -> None:
    z = GOOD.clone().requires_grad_()
    with pytest.raises(RuntimeError, match='implementation="dense"'):
        torch.autograd.grad(mv.MVDHELLoss()(z), z, create_graph=True)
    (gradient,) = torch.autograd.grad(mv.MVDHELLoss(implementation="dense")(z), z, create_graph=True)
    gradient.square().sum().backward()
    assert z.grad.abs().sum() > 0


def test_custom_kernels_are_accepted_and_other_values_are_errors() -> None:
    class Laplacian:
        def log(self, cosine: torch.Tensor) -> torch.Tensor:
            return -(2 - 2 * cosine + 1e-6).sqrt()

        def value(self, cosine: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
            return torch.exp(self.log(cosine) / temperature)

    for name in ("mv-dhel", "kcl"):
        losses = [mv.get_loss(name, kernel=Laplacian(), implementation=i)(GOOD) for i in ("dense", "tiled")]
        torch.testing.assert_close(*losses)
        with pytest.raises(TypeError, match="kernel must be a kernel such as Gaussian"):
            mv.get_loss(name, kernel="gaussian")
