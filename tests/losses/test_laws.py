"""What must hold for every objective, over shapes, temperatures and masks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manyviews import DHEL, MVDHEL, PVC, Objective
from manyviews.losses import OBJECTIVES
from tests.losses.by_name import get_loss

ANY_VIEWS = [name for name in OBJECTIVES if name not in ("infonce", "dhel")]


@st.composite
def batches(draw: st.DrawFn, views: int | None = None) -> tuple[str, torch.Tensor, torch.Tensor, float]:
    """An objective's name, embeddings, a mask with which it has positives and negatives, a temperature."""
    name = draw(st.sampled_from(ANY_VIEWS))
    M, N, d = draw(st.integers(3, 8)), views or draw(st.integers(2, 4)), draw(st.integers(2, 6))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    z = torch.randn(M, N, d, dtype=torch.float64, generator=generator)
    present = torch.rand(M, N, generator=generator) < 0.7
    if draw(st.booleans()):
        present[:2] = True
    else:  # views that hardly meet: the first two instances share one, the others as it comes
        present[:2] = torch.arange(N) % 2 == torch.arange(2)[:, None]
        present[:2, 0] = present[2, :2] = True
    return name, z, present, draw(st.sampled_from([0.01, 0.1, 0.5, 2.0]))


def value_and_gradient(
    objective: Objective, z: torch.Tensor, present: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    z = z.clone().requires_grad_()
    loss = objective.double()(z, present)
    return loss.detach(), torch.autograd.grad(loss, z)[0]


def assert_same(a: tuple[torch.Tensor, ...], b: tuple[torch.Tensor, ...]) -> None:
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-8, atol=1e-8)


@given(batches(), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_permuting_instances_changes_nothing(batch: tuple, random: object) -> None:
    name, z, present, temperature = batch
    objective = get_loss(name, temperature=temperature)
    order = list(range(len(z)))
    random.shuffle(order)  # type: ignore[attr-defined]
    loss, gradient = value_and_gradient(objective, z, present)
    assert_same((loss, gradient[order]), value_and_gradient(objective, z[order], present[order]))


@given(batches(), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_permuting_views_changes_nothing(batch: tuple, random: object) -> None:
    name, z, present, temperature = batch
    order = list(range(z.shape[1]))
    random.shuffle(order)  # type: ignore[attr-defined]
    moved = {"anchor": order.index(0)} if name == "anchored" else {}
    objective = get_loss(name, temperature=temperature)
    permuted = get_loss(name, temperature=temperature, **moved)
    loss, gradient = value_and_gradient(objective, z, present)
    assert_same((loss, gradient[:, order]), value_and_gradient(permuted, z[:, order], present[:, order]))


@given(batches())
@settings(max_examples=60, deadline=None)
def test_an_all_true_mask_changes_nothing(batch: tuple) -> None:
    name, z, present, temperature = batch
    objective = get_loss(name, temperature=temperature)
    assert_same(value_and_gradient(objective, z), value_and_gradient(objective, z, torch.ones_like(present)))


@given(batches(), st.integers(0, 100))
@settings(max_examples=60, deadline=None)
def test_a_fully_absent_instance_is_as_if_not_there(batch: tuple, place: int) -> None:
    name, z, present, temperature = batch
    place %= len(z) + 1
    objective = get_loss(name, temperature=temperature)
    more = torch.cat([z[:place], torch.full_like(z[:1], torch.nan), z[place:]])
    mask = torch.cat([present[:place], torch.zeros_like(present[:1]), present[place:]])
    loss, gradient = value_and_gradient(objective, more, mask)
    assert_same(
        (loss, torch.cat([gradient[:place], gradient[place + 1 :]])),
        value_and_gradient(objective, z, present),
    )
    assert not gradient[place].any()


@given(batches())
@settings(max_examples=60, deadline=None)
def test_absent_views_neither_matter_nor_get_a_gradient(batch: tuple) -> None:
    name, z, present, temperature = batch
    objective = get_loss(name, temperature=temperature)
    garbage = z.masked_fill(~present[:, :, None], torch.nan)
    loss, gradient = value_and_gradient(objective, garbage, present)
    assert_same((loss, gradient), value_and_gradient(objective, z, present))
    assert not gradient[~present].any()


@given(batches())
@settings(max_examples=40, deadline=None)
def test_lengths_of_embeddings_do_not_matter(batch: tuple) -> None:
    name, z, present, temperature = batch
    objective = get_loss(name, temperature=temperature)
    lengths = torch.linspace(0.1, 30, z[..., 0].numel(), dtype=z.dtype).view(z.shape[:2])[:, :, None]
    loss, gradient = value_and_gradient(objective, z * lengths, present)
    assert_same(value_and_gradient(objective, z, present), (loss, gradient * lengths))


@given(batches(views=2))
@settings(max_examples=30, deadline=None)
def test_multi_view_objectives_of_two_views_are_the_known_ones(batch: tuple) -> None:
    _, z, present, temperature = batch
    dhel = value_and_gradient(DHEL(temperature), z, present)
    mv_dhel, gradient = value_and_gradient(MVDHEL(temperature), z, present)
    assert_same(dhel, (mv_dhel + torch.log(torch.tensor(2.0, dtype=z.dtype)), gradient))
    ntxent = value_and_gradient(get_loss("ntxent", temperature=temperature), z, present)
    for same in (PVC(temperature), PVC(temperature, arithmetic=True)):
        assert_same(ntxent, value_and_gradient(same, z, present))
    assert_same(ntxent, value_and_gradient(get_loss("pwe-ntxent", temperature=temperature), z, present))
    infonce = value_and_gradient(get_loss("infonce", temperature=temperature), z, present)
    for name in ("mv-cl1", "pwe-infonce", "anchored"):
        assert_same(infonce, value_and_gradient(get_loss(name, temperature=temperature), z, present))
    # The mean of the other view is that view; with a mask, a mean is there only beside its own view.
    for pair in ("infonce", "ntxent", "dhel"):
        two_views, averaged = (get_loss(n, temperature=temperature) for n in (pair, f"avg-{pair}"))
        assert_same(value_and_gradient(two_views, z), value_and_gradient(averaged, z))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_temperature_learns_its_exact_gradient(name: str) -> None:
    views = 2 if name in ("infonce", "dhel") else 3
    z = torch.randn(6, views, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    options = {"learnable": False} if name == "siglip" else {}

    def loss(temperature: torch.Tensor) -> torch.Tensor:
        return get_loss(name, temperature=temperature, **options)(z)

    assert torch.autograd.gradcheck(loss, torch.tensor(0.3, dtype=torch.float64, requires_grad=True))
    learned = get_loss(name, temperature=0.3, learnable=True).double()
    learned(z).backward()
    assert float(learned.log_temperature.grad) != 0
