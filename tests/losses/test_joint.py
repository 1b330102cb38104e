"""Losses of all views at once: the released code, loops from the equations, permutations, degenerate input."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

import manyviews as mv
from manyviews.losses import GRAMLoss, MultiViewLoss, PMRLLoss, SymileLoss, TRIANGLELoss, get_loss
from manyviews.losses import _contrast as contrast
from manyviews.losses._linalg import decompose_views, orthonormalize
from manyviews.losses._multilinear import draw_permutations
from tests.losses import joint_reference as reference

GOLDEN = Path(__file__).with_name("other_losses.npz")
NAMES = ("symile", "gram", "triangle", "pmrl")


def make_embeddings(M: int = 7, N: int = 3, d: int = 5, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(M, N, d, dtype=torch.float64, generator=generator, requires_grad=True)


def make_mask(M: int = 7, N: int = 3, seed: int = 1) -> Tensor:
    mask = torch.rand(M, N, generator=torch.Generator().manual_seed(seed)) < 0.7
    mask[:3] = True
    mask[3] = False
    return mask


def with_gradient(loss: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    return loss, torch.autograd.grad(loss, z)[0]


def assert_same(actual: tuple[Tensor, ...], expected: tuple[Tensor, ...], tolerance: float = 1e-9) -> None:
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


RELEASED: dict[str, Callable[[float], MultiViewLoss]] = {
    "symile-n": SymileLoss,
    "symile-n-squared": lambda t: SymileLoss(t, negatives="all"),
    "gram": GRAMLoss,
    "gram-no-smoothing": lambda t: GRAMLoss(t, label_smoothing=0.0),
    "triangle": TRIANGLELoss,
    "pmrl-intra": lambda _: PMRLLoss(inter_weight=0.0),
}


@pytest.mark.parametrize("tile_rows", [2, 512])
@pytest.mark.parametrize("batch", range(4))
@pytest.mark.parametrize("name", RELEASED)
def test_equals_the_released_code(name: str, batch: int, tile_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contrast, "MIN_TILE_ROWS", tile_rows)
    monkeypatch.setitem(contrast.TILE_NUMEL, "cpu", 1)
    with np.load(GOLDEN) as golden:
        if f"{batch}/{name}/loss" not in golden:
            pytest.skip("the released code does not support this number of views or instances")
        z = torch.tensor(golden[f"{batch}/embeddings"], requires_grad=True)
        temperature = float(golden[f"{batch}/temperature"])
        expected = tuple(torch.tensor(golden[f"{batch}/{name}/{value}"]) for value in ("loss", "grad"))
        options = {"permutations": torch.tensor(golden[f"{batch}/permutations"])} if name == "symile-n" else {}
    assert_same(with_gradient(RELEASED[name](temperature)(z, **options), z), expected)


def compute_reference(name: str, z: Tensor, mask: Tensor | None, permutations: Tensor | None = None) -> Tensor:
    u = normalize(z, dim=2)
    if name == "symile":
        assert permutations is not None
        return reference.symile(u, 0.3, permutations)
    loop = {"symile-all": reference.symile_all, "gram": reference.gram, "triangle": reference.triangle}
    return loop.get(name, reference.pmrl)(u, 0.3, mask)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", ["symile-all", "gram", "triangle", "pmrl"])
def test_equals_the_loop_of_the_equation(name: str, masked: bool) -> None:
    z, mask = make_embeddings(), make_mask() if masked else None
    options = {"negatives": "all"} if name == "symile-all" else {}
    actual = get_loss(name.removesuffix("-all"), temperature=0.3, **options)(z, mask)
    assert_same(with_gradient(actual, z), with_gradient(compute_reference(name, z, mask), z))


@pytest.mark.parametrize("views", [2, 3, 4])
def test_permuted_symile_equals_the_loop_of_the_equation(views: int) -> None:
    z = make_embeddings(N=views)
    permutations = draw_permutations(torch.tensor(1), 0, views, len(z), None)
    expected = with_gradient(compute_reference("symile", z, None, permutations), z)
    assert_same(with_gradient(SymileLoss(0.3)(z, permutations=permutations), z), expected)
    assert_same(with_gradient(SymileLoss(0.3)(z), z), expected)  # the permutations of the first call


@pytest.mark.parametrize("anchor", [1, 2])
def test_the_anchor_may_be_any_view(anchor: int) -> None:
    z, u = make_embeddings(), normalize(make_embeddings(), dim=2)
    order = [anchor, *(view for view in range(3) if view != anchor)]
    for name, loop in (("gram", reference.gram), ("triangle", reference.triangle)):
        loss = get_loss(name, temperature=0.3, anchor=anchor)(z)
        assert_same((loss, loss), (loop(u, 0.3, anchor=anchor), get_loss(name, temperature=0.3)(z[:, order])))


@pytest.mark.parametrize("views", [2, 4, 6])
def test_gram_of_any_number_of_views_equals_the_loop(views: int) -> None:
    z, mask = make_embeddings(N=views, d=6), make_mask(N=views)
    for m in (None, mask):
        expected = reference.gram(normalize(z, dim=2), 0.3, m, 0.2)
        actual = GRAMLoss(0.3, label_smoothing=0.2)(z, m)
        assert_same(with_gradient(actual, z), with_gradient(expected, z), 1e-8)


def test_triangle_with_the_square_root_of_the_paper_equals_the_loop() -> None:
    z = make_embeddings()
    expected = reference.triangle(normalize(z, dim=2), 0.3, square_root=True)
    assert_same(with_gradient(TRIANGLELoss(0.3, square_root=True)(z), z), with_gradient(expected, z))


def test_symile_of_two_views_is_infonce() -> None:
    z = make_embeddings(N=2)
    for negatives in ("permuted", "all"):
        loss = SymileLoss(0.3, negatives=negatives)
        assert_same(with_gradient(loss(z), z), with_gradient(mv.InfoNCELoss(0.3)(z), z))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_tiles_do_not_change_the_loss(name: str, masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    z, mask = make_embeddings(20), make_mask(20) if masked else None
    weights = torch.linspace(-1, 1, 20, dtype=torch.float64)
    expected = None
    for rows, cached in ((20, 2**20), (7, 2**20), (7, 0), (1, 0)):
        monkeypatch.setattr(contrast, "MIN_TILE_ROWS", rows)
        monkeypatch.setitem(contrast.TILE_NUMEL, "cpu", 1)
        monkeypatch.setattr("manyviews.losses._multilinear.CACHED_NUMEL", cached)
        losses = get_loss(name, temperature=0.3, reduction="none")(z, mask)
        result = losses, torch.autograd.grad((losses * weights).sum(), z)[0]
        expected = result if expected is None else expected
        assert_same(result, expected, 1e-12)


@pytest.mark.parametrize("views", [3, 5])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "triangle"])
def test_losses_of_the_instances_are_averaged(name: str, views: int) -> None:
    z, mask = make_embeddings(N=views), make_mask(N=views)
    each, mean = (get_loss(name, temperature=0.3, reduction=r)(z, mask) for r in ("none", "mean"))
    counted = mask.all(1) if name == "symile" else mask.sum(1) > 1
    if name == "gram":
        counted &= mask[:, 0]
    torch.testing.assert_close(each[counted].mean(), mean)
    assert not each[~counted].any()


# Permutations.


def test_permutations_of_symile_are_keyed_by_the_number_of_calls() -> None:
    z = make_embeddings().detach()
    loss = SymileLoss()
    values = [loss(z) for _ in range(4)]
    assert len({float(value) for value in values}) == 4
    resumed = SymileLoss()
    resumed.load_state_dict(loss.state_dict())
    assert torch.equal(resumed(z), loss(z))
    again = SymileLoss()
    assert [float(again(z)) for _ in range(4)] == [float(value) for value in values]
    assert float(SymileLoss(seed=1)(z)) != float(values[0])


def test_symile_in_evaluation_mode_is_a_function_of_the_embeddings() -> None:
    z, loss = make_embeddings().detach(), SymileLoss().eval()
    assert torch.equal(loss(z), loss(z))
    assert int(loss.step) == 0


def test_negatives_of_symile_never_consist_of_the_views_of_one_instance() -> None:
    permutations = draw_permutations(torch.tensor(3), 0, 4, 50, None)
    assert torch.equal(permutations.sort(2).values, torch.arange(50).expand(4, 4, 50))
    for anchor in range(4):
        first, *others = [m for m in range(4) if m != anchor]
        assert torch.equal(permutations[anchor, first], torch.arange(50))
        assert all((permutations[anchor, m] != torch.arange(50)).float().mean() > 0.8 for m in others)


def test_permuted_instances_are_complete() -> None:
    complete = torch.tensor([True, False, True, True, False, True])
    permutations = draw_permutations(torch.tensor(3), 0, 3, 6, complete)
    index = complete.nonzero().flatten()
    assert torch.equal(permutations[:, :, complete].sort(2).values, index.expand(3, 3, 4))
    only_complete = draw_permutations(torch.tensor(3), 0, 3, 4, None)
    assert torch.equal(permutations[:, :, complete], index[only_complete])


# Degenerate input.


def aligned(M: int, N: int, d: int) -> Tensor:
    return torch.randn(M, 1, d, generator=torch.Generator().manual_seed(0)).expand(M, N, d)


def collapsed(M: int, N: int, d: int) -> Tensor:
    return torch.ones(M, N, d)


def others_equal(M: int, N: int, d: int) -> Tensor:
    z = torch.randn(M, N, d, generator=torch.Generator().manual_seed(0))
    z[:, 2:] = z[:, 1:2]
    return z


def orthogonal(M: int, N: int, d: int) -> Tensor:
    """All singular values are equal, so that there is no principal direction."""
    return torch.eye(d)[:N].expand(M, N, d)


def opposite(M: int, N: int, d: int) -> Tensor:
    z = torch.ones(M, N, d)
    z[:, 1:] *= -1
    return z


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("make", [aligned, collapsed, others_equal, orthogonal, opposite])
@pytest.mark.parametrize("temperature", [0.005, 0.1])
@pytest.mark.parametrize("name", [*NAMES, "triangle with a root"])
def test_gradients_of_degenerate_embeddings_are_bounded(
    name: str, temperature: float, make: Callable[..., Tensor], dtype: torch.dtype
) -> None:
    options = {"square_root": True} if "root" in name else {}
    loss_fn = get_loss(name.split(maxsplit=1)[0], temperature=temperature, **options)
    z = make(6, 3, 8).to(dtype).clone().requires_grad_()
    loss, gradient = with_gradient(loss_fn(z), z)
    assert loss.isfinite()
    assert gradient.abs().max() < 10 / temperature


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_close_to_perfect_alignment_are_bounded(dtype: torch.dtype) -> None:
    for noise in (1e-2, 1e-4, 1e-6, 1e-8):
        z = aligned(6, 4, 8).to(dtype)
        z = (z + noise * torch.randn(z.shape, dtype=dtype, generator=torch.Generator().manual_seed(1))).requires_grad_()
        loss, gradient = with_gradient(GRAMLoss(0.1)(z), z)
        assert loss.isfinite()
        assert gradient.abs().max() < 10


def test_gram_prefers_aligned_views_and_aligns_them() -> None:
    z = make_embeddings(16, 4, 8).detach().float().requires_grad_()
    optimizer, loss_fn = torch.optim.Adam([z], 0.05), GRAMLoss(0.1, label_smoothing=0.0)
    for _ in range(150):
        optimizer.zero_grad()
        loss_fn(z).backward()
        optimizer.step()
    assert loss_fn(z).item() < 0.2 < math.log(16)
    assert orthonormalize(normalize(z, dim=2))[1].mean() < 0.1


def test_a_missing_vector_does_not_change_the_volume() -> None:
    vectors = normalize(make_embeddings(5, 4, 8), dim=2)
    mask = make_mask(5, 4)
    basis, volume = orthonormalize(vectors * mask[:, :, None], mask)
    for i in range(5):
        existing = vectors[i, mask[i]]
        torch.testing.assert_close(volume[i], torch.linalg.det(existing @ existing.T).sqrt())
        assert not basis[i, ~mask[i]].any()


def test_gradients_of_the_decomposition_are_the_numerical_ones() -> None:
    z = normalize(make_embeddings(4, 3, 5), dim=2).detach().requires_grad_()
    assert torch.autograd.gradcheck(decompose_views, z)


def test_principal_directions_point_to_the_mean_of_the_views() -> None:
    z = normalize(make_embeddings(50, 4, 6), dim=2)
    _, directions = decompose_views(z)
    assert ((directions * z.mean(1)).sum(1) > 0).all()
    torch.testing.assert_close(PMRLLoss()(z), PMRLLoss()(z[:, [2, 0, 3, 1]]))


# Errors.


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SymileLoss(negatives="some"), "negatives must be one of permuted, all, got 'some'"),
        (lambda: GRAMLoss(anchor=-1), "anchor must be the index of a view"),
        (lambda: TRIANGLELoss(anchor=3), "anchor must be < 3"),
        (lambda: GRAMLoss(label_smoothing=1.0), "label_smoothing must be >= 0 and < 1, got 1.0"),
        (lambda: PMRLLoss(inter_temperature=0.0), "inter_temperature must be"),
        (lambda: PMRLLoss(inter_weight=-1.0), "inter_weight must be"),
        (lambda: GRAMLoss(anchor=3)(torch.randn(4, 3, 5)), "anchor must be < 3, the number of views, got 3"),
        (lambda: TRIANGLELoss()(torch.randn(4, 2, 5)), "TRIANGLELoss is a loss of 3 views, got 2"),
        (lambda: TRIANGLELoss()(torch.randn(4, 4, 5)), "TRIANGLELoss is a loss of 3 views, got 4"),
        (lambda: SymileLoss(negatives="all")(torch.randn(600, 3, 5)), "at most 406 instances"),
        (
            lambda: SymileLoss()(torch.randn(4, 3, 5), permutations=torch.zeros(3, 4).long()),
            r"\(3, 3, 4\), got \(3, 4\)",
        ),
        (lambda: SymileLoss()(torch.randn(4, 3, 5), permutations=torch.zeros(3, 3, 4).long()), "each of 0..3 once"),
        (
            lambda: SymileLoss()(torch.randn(4, 3, 5), torch.tensor([[True] * 3] + [[True, True, False]] * 3)),
            "fewer than two",
        ),
    ],
)
def test_errors_name_the_value(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_seed_must_be_an_integer() -> None:
    with pytest.raises(TypeError, match=r"seed must be an integer, got 0\.5"):
        SymileLoss(seed=0.5)


@pytest.mark.parametrize("name", NAMES)
def test_without_validation_bad_embeddings_give_nan(name: str) -> None:
    z = torch.randn(6, 3, 5)
    z[2, 1, 0] = torch.nan
    assert get_loss(name, validate=False)(z).isnan()
    z[2, 1] = 0.0
    assert get_loss(name, validate=False)(z).isnan()
