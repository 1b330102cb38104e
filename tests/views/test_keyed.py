"""Views are functions of (seed, epoch, instance, view): of nothing else."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manyviews.views import MultiCrop, SimCLRPolicy, batches, fixed_batch
from manyviews.views.keyed import hashed, permutation, uniform

POLICY = SimCLRPolicy(16, strength=1.0, blur=0.5)
IMAGES = torch.randint(256, (12, 3, 20, 20), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
KEY = {"seed": 3, "epoch": 5}


def reference() -> torch.Tensor:
    return POLICY(IMAGES, views=4, index=torch.arange(12), **KEY)


@given(st.lists(st.integers(1, 11), max_size=3), st.randoms(use_true_random=False))
@settings(max_examples=20, deadline=None)
def test_any_split_and_order_of_a_batch_gives_the_same_views(cuts: list[int], random: object) -> None:
    order = list(range(12))
    random.shuffle(order)  # type: ignore[attr-defined]
    edges = [0, *sorted(set(cuts)), 12]
    for a, b in itertools.pairwise(edges):
        index = torch.tensor(order[a:b])
        views = POLICY(IMAGES[index], views=4, index=index, **KEY)
        torch.testing.assert_close(views, reference()[index], rtol=0, atol=1e-6)


def test_more_views_leave_the_first_ones_as_they_are() -> None:
    few = POLICY(IMAGES, views=2, index=torch.arange(12), **KEY)
    torch.testing.assert_close(few, reference()[:, :2], rtol=0, atol=1e-6)
    rest = POLICY(IMAGES, views=2, first=2, index=torch.arange(12), **KEY)
    torch.testing.assert_close(rest, reference()[:, 2:], rtol=0, atol=1e-6)


@pytest.mark.parametrize("other", [{"seed": 4}, {"epoch": 6}, {"index": torch.arange(1, 13)}])
def test_another_key_gives_other_views(other: dict) -> None:
    key = {"index": torch.arange(12), **KEY, **other}
    different = (POLICY(IMAGES, views=4, **key) - reference()).abs().mean((2, 3, 4)) > 0.01
    assert different.float().mean() > 0.95


def test_views_of_an_instance_differ() -> None:
    views = reference()
    assert ((views[:, 0] - views[:, 1]).abs().mean((1, 2, 3)) > 0.01).all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_views_are_the_same_on_cuda() -> None:
    views = POLICY(IMAGES.cuda(), views=4, index=torch.arange(12).cuda(), **KEY)
    torch.testing.assert_close(views.cpu(), reference(), rtol=0, atol=1e-4)


def test_uniform_numbers_are_uniform_and_independent() -> None:
    draws = uniform(0, 0, torch.arange(20000)[:, None], torch.arange(8))
    assert draws.min() >= 0
    assert draws.max() < 1
    assert (draws.mean(0) - 0.5).abs().max() < 0.01
    assert (draws.var(0) - 1 / 12).abs().max() < 0.005
    correlation = torch.corrcoef(torch.cat([draws, draws.roll(1, 0)], 1).T) - torch.eye(16)
    assert correlation.abs().max() < 0.03
    counts = torch.histc(draws, 64)
    assert ((counts - 2500) ** 2 / 2500).sum() < 110  # chi-squared of 63 degrees, beyond 1 in 4,000


def test_hash_is_splitmix64() -> None:
    """The first outputs of SplitMix64 from state 0, as published."""

    def published(state: int) -> int:
        mask = 2**64 - 1
        z = (state + 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    assert published(0) == 0xE220A8397B1DCDAF
    for value in (0, 1, -1, 12345678901234):
        assert int(hashed(torch.tensor(value))) % 2**64 == published(value % 2**64)


def test_every_key_part_matters_and_so_does_their_order() -> None:
    assert len({int(hashed(*key)) for key in ((1, 2), (2, 1), (1, 2, 0), (0, 1, 2), (1,), (2,))}) == 6


def test_permutation_is_one_and_depends_on_the_key() -> None:
    order = permutation(1000, 0, 0)
    assert torch.equal(order.sort().values, torch.arange(1000))
    assert (order == permutation(1000, 0, 1)).sum() < 10
    assert torch.equal(order, permutation(1000, 0, 0))


@given(st.integers(2, 60), st.integers(1, 10), st.integers(1, 4))
@settings(deadline=None)
def test_ranks_share_the_batches_of_one(instances: int, each: int, ranks: int) -> None:
    size = each * ranks
    if size > instances:
        with pytest.raises(ValueError, match=f"batch of {size} is larger than the data set of {instances}"):
            batches(instances, size, 0, 0)
        return
    whole = batches(instances, size, 0, 0)
    shares = [batches(instances, size, 0, 0, rank, ranks) for rank in range(ranks)]
    assert len(whole) == instances // size
    for batch, parts in zip(whole, zip(*shares, strict=True), strict=True):
        assert torch.equal(batch, torch.cat(parts))
    assert len(torch.cat(whole).unique()) == len(torch.cat(whole))


def test_fixed_batch_keeps_instances_times_views() -> None:
    assert [fixed_batch(256, n) * n for n in (2, 4, 8)] == [256] * 3
    with pytest.raises(ValueError, match="too small"):
        fixed_batch(4, 4)
    with pytest.raises(ValueError, match="does not divide among 3 ranks"):
        batches(10, 4, 0, 0, ranks=3)


def test_multi_crop_numbers_views_through_its_groups() -> None:
    small = SimCLRPolicy(8, scale=(0.05, 0.4))
    large, little = MultiCrop([(POLICY, 2), (small, 3)])(IMAGES, index=torch.arange(12), **KEY)
    torch.testing.assert_close(large, reference()[:, :2], rtol=0, atol=1e-6)
    expected = small(IMAGES, views=3, first=2, index=torch.arange(12), **KEY)
    assert torch.equal(little, expected)
    assert MultiCrop([(POLICY, 2), (small, 3)]).views == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size must be a whole number >= 1"),
        ({"size": 8, "strength": -1}, "strength"),
        ({"size": 8, "blur": 1.5}, "blur is a probability, got 1.5"),
        ({"size": 8, "scale": (0.5, 0.1)}, "scale must be"),
        ({"size": 8, "ratio": (0.0, 1.0)}, "ratio must be"),
        ({"size": 1, "blur": 0.5}, "blur needs views larger"),
    ],
)
def test_bad_policies(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SimCLRPolicy(**options)


def test_bad_calls() -> None:
    with pytest.raises(ValueError, match="views must be >= 1"):
        POLICY(IMAGES, views=0, index=torch.arange(12), **KEY)
    with pytest.raises(ValueError, match="index must number each of 12 images"):
        POLICY(IMAGES, views=2, index=torch.arange(3), **KEY)
    with pytest.raises(ValueError, match="each group needs"):
        MultiCrop([])


@pytest.mark.parametrize(
    "images", [IMAGES.float(), IMAGES[0], IMAGES[:, :2], [image.float() for image in IMAGES], list(IMAGES[:, 0])]
)
def test_images_must_be_uint8_of_one_or_three_channels(images: object) -> None:
    with pytest.raises(ValueError, match=r"images must be uint8|index must number"):
        POLICY(images, views=2, index=torch.arange(12), **KEY)


def test_images_are_left_as_they_are() -> None:
    before = IMAGES.clone()
    POLICY(IMAGES, views=2, index=torch.arange(12), **KEY)
    assert torch.equal(IMAGES, before)


def test_colours_change_crops_that_are_not_contiguous() -> None:
    crops = POLICY.crops(IMAGES, views=4, index=torch.arange(12), **KEY)
    some = POLICY.coloured(crops.clone()[:, :2], index=torch.arange(12), **KEY)
    torch.testing.assert_close(some, reference()[:, :2], rtol=0, atol=1e-6)


def test_autocast_does_not_reach_into_a_policy() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        views = POLICY(IMAGES, views=4, index=torch.arange(12), **KEY)
    assert torch.equal(views, reference())


def test_grey_images_are_jittered_and_blurred_as_grey() -> None:
    grey = IMAGES[:, :1]
    views = POLICY(grey, views=4, index=torch.arange(12), **KEY)
    coloured = POLICY(grey.expand(-1, 3, -1, -1), views=4, index=torch.arange(12), **KEY)
    assert views.shape == (12, 4, 1, 16, 16)
    torch.testing.assert_close(views, coloured[:, :, :1], rtol=0, atol=1e-5)
    crops = POLICY.crops(grey, views=4, index=torch.arange(12), **KEY)
    assert ((views - crops).abs().mean((2, 3, 4)) > 1e-3).float().mean() > 0.6


def test_images_in_a_list_give_the_views_of_a_tensor_up_to_rounding() -> None:
    smooth = torch.nn.functional.interpolate(IMAGES[:, :, :4, :4].float(), (20, 20), mode="bicubic")
    images = smooth.clamp(0, 255).to(torch.uint8)
    one, other = (POLICY(given, views=2, index=torch.arange(12), **KEY) for given in (images, list(images)))
    assert (one - other).abs().mean() < 1 / 255


@pytest.mark.parametrize("seed", [10**23, -1, -(2**63), 2**64])
def test_any_integer_is_a_seed(seed: int) -> None:
    assert 0 <= float(uniform(seed)) < 1


def test_bad_batches() -> None:
    for options in ({"size": 0}, {"size": 2, "rank": 2, "ranks": 2}, {"size": 2, "ranks": 0}, {"size": 2, "rank": -1}):
        with pytest.raises(ValueError, match="a batch needs an instance"):
            batches(10, seed=0, epoch=0, **options)
