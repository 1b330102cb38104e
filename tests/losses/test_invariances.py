"""Invariances of every loss, over shapes, temperatures and masks."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from manyviews.losses import DHELLoss, MultiViewLoss, MVDHELLoss, PVCLoss
from tests.losses import loss_by_name
from tests.losses.loss_by_name import MANY_VIEWS, WITH_TEMPERATURE, limit_views

NEEDS_ALL_VIEWS = ("symile", "triangle")
ANCHORS = {"anchored": "anchor_view", "gram": "anchor", "triangle": "anchor"}


def get_loss(name: str, **options: object) -> MultiViewLoss:
    """A loss without permutations, which depend on the order of instances."""
    return loss_by_name.get_loss(name, **({"negatives": "all"} if name == "symile" else {}), **options)


@st.composite
def batches(draw: st.DrawFn, views: int | None = None) -> tuple[str, torch.Tensor, torch.Tensor, float]:
    """The name of a loss, embeddings, a mask with positives and negatives, a temperature."""
    name = draw(st.sampled_from(MANY_VIEWS))
    M, N, d = draw(st.integers(3, 8)), views or limit_views(name, draw(st.integers(2, 4))), draw(st.integers(2, 6))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    z = torch.randn(M, N, d, dtype=torch.float64, generator=generator)
    mask = torch.rand(M, N, generator=generator) < 0.7
    if draw(st.booleans()) or name in NEEDS_ALL_VIEWS:
        mask[:2] = True
    else:  # the first two instances share only one view
        mask[:2] = torch.arange(N) % 2 == torch.arange(2)[:, None]
        mask[:2, 0] = mask[2, :2] = True
    return name, z, mask, draw(st.sampled_from([0.01, 0.1, 0.5, 2.0]))


def value_and_gradient(
    loss_fn: MultiViewLoss, z: torch.Tensor, mask: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    z = z.clone().requires_grad_()
    loss = loss_fn.double()(z, mask)
    return loss.detach(), torch.autograd.grad(loss, z)[0]


def assert_same(a: tuple[torch.Tensor, ...], b: tuple[torch.Tensor, ...]) -> None:
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-8, atol=1e-8)


@given(batches(), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_permuting_instances_changes_nothing(batch: tuple, random: object) -> None:
    name, z, mask, temperature = batch
    loss_fn = get_loss(name, temperature=temperature)
    order = list(range(len(z)))
    random.shuffle(order)  # type: ignore[attr-defined]
    loss, gradient = value_and_gradient(loss_fn, z, mask)
    assert_same((loss, gradient[order]), value_and_gradient(loss_fn, z[order], mask[order]))


@given(batches(), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_permuting_views_changes_nothing(batch: tuple, random: object) -> None:
    name, z, mask, temperature = batch
    order = list(range(z.shape[1]))
    random.shuffle(order)  # type: ignore[attr-defined]
    moved = {ANCHORS[name]: order.index(0)} if name in ANCHORS else {}
    loss_fn = get_loss(name, temperature=temperature)
    permuted = get_loss(name, temperature=temperature, **moved)
    loss, gradient = value_and_gradient(loss_fn, z, mask)
    assert_same((loss, gradient[:, order]), value_and_gradient(permuted, z[:, order], mask[:, order]))


@given(batches())
@settings(max_examples=60, deadline=None)
def test_an_all_true_mask_changes_nothing(batch: tuple) -> None:
    name, z, mask, temperature = batch
    loss_fn = get_loss(name, temperature=temperature)
    assert_same(value_and_gradient(loss_fn, z), value_and_gradient(loss_fn, z, torch.ones_like(mask)))


@given(batches(), st.integers(0, 100))
@settings(max_examples=60, deadline=None)
def test_an_instance_without_views_is_ignored(batch: tuple, index: int) -> None:
    name, z, mask, temperature = batch
    index %= len(z) + 1
    loss_fn = get_loss(name, temperature=temperature)
    more = torch.cat([z[:index], torch.full_like(z[:1], torch.nan), z[index:]])
    larger_mask = torch.cat([mask[:index], torch.zeros_like(mask[:1]), mask[index:]])
    loss, gradient = value_and_gradient(loss_fn, more, larger_mask)
    assert_same(
        (loss, torch.cat([gradient[:index], gradient[index + 1 :]])),
        value_and_gradient(loss_fn, z, mask),
    )
    assert not gradient[index].any()


@given(batches())
@settings(max_examples=60, deadline=None)
def test_missing_views_have_no_effect_and_no_gradient(batch: tuple) -> None:
    name, z, mask, temperature = batch
    loss_fn = get_loss(name, temperature=temperature)
    garbage = z.masked_fill(~mask[:, :, None], torch.nan)
    loss, gradient = value_and_gradient(loss_fn, garbage, mask)
    assert_same((loss, gradient), value_and_gradient(loss_fn, z, mask))
    assert not gradient[~mask].any()


@given(batches())
@settings(max_examples=40, deadline=None)
def test_norms_of_embeddings_have_no_effect(batch: tuple) -> None:
    name, z, mask, temperature = batch
    assume(name != "lejepa")
    loss_fn = get_loss(name, temperature=temperature)
    norms = torch.linspace(0.1, 30, z[..., 0].numel(), dtype=z.dtype).view(z.shape[:2])[:, :, None]
    loss, gradient = value_and_gradient(loss_fn, z * norms, mask)
    assert_same(value_and_gradient(loss_fn, z, mask), (loss, gradient * norms))


@given(batches(views=2))
@settings(max_examples=30, deadline=None)
def test_multi_view_losses_of_two_views_equal_the_two_view_losses(batch: tuple) -> None:
    _, z, mask, temperature = batch
    dhel = value_and_gradient(DHELLoss(temperature), z, mask)
    mv_dhel, gradient = value_and_gradient(MVDHELLoss(temperature), z, mask)
    assert_same(dhel, (mv_dhel + torch.log(torch.tensor(2.0, dtype=z.dtype)), gradient))
    ntxent = value_and_gradient(get_loss("ntxent", temperature=temperature), z, mask)
    for pvc in (PVCLoss(temperature), PVCLoss(temperature, aggregation="arithmetic")):
        assert_same(ntxent, value_and_gradient(pvc, z, mask))
    assert_same(ntxent, value_and_gradient(get_loss("pwe-ntxent", temperature=temperature), z, mask))
    infonce = value_and_gradient(get_loss("infonce", temperature=temperature), z, mask)
    for name in ("mv-cl1", "pwe-infonce", "anchored"):
        assert_same(infonce, value_and_gradient(get_loss(name, temperature=temperature), z, mask))
    # The mean of the other view is that view; with a mask, a mean exists only together with its own view.
    for pair in ("infonce", "ntxent", "dhel"):
        two_views, averaged = (get_loss(n, temperature=temperature) for n in (pair, f"avg-{pair}"))
        assert_same(value_and_gradient(two_views, z), value_and_gradient(averaged, z))


@pytest.mark.parametrize("name", WITH_TEMPERATURE)
def test_temperature_learns_its_exact_gradient(name: str) -> None:
    views = limit_views(name, 3)
    z = torch.randn(6, views, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    options = {"learn_temperature": False} if name == "siglip" else {}

    def loss(temperature: torch.Tensor) -> torch.Tensor:
        return get_loss(name, temperature=temperature, **options)(z)

    assert torch.autograd.gradcheck(loss, torch.tensor(0.3, dtype=torch.float64, requires_grad=True))
    learned = get_loss(name, temperature=0.3, learn_temperature=True).double()
    learned(z).backward()
    assert float(learned.log_temperature.grad) != 0
