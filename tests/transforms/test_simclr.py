"""Views are functions of (seed, epoch, instance, view) only."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manyviews.loading import EpochBatches, count_instances_per_batch
from manyviews.transforms import MultiCrop, SimCLRTransform
from manyviews.utils import draw_permutation, draw_uniform, hash_key, permute

TRANSFORM = SimCLRTransform(16, jitter_strength=1.0, blur_prob=0.5)
IMAGES = torch.randint(256, (12, 3, 20, 20), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
KEY = {"seed": 3, "epoch": 5}


def reference() -> torch.Tensor:
    return TRANSFORM(IMAGES, views=4, index=torch.arange(12), **KEY)


@given(st.lists(st.integers(1, 11), max_size=3), st.randoms(use_true_random=False))
@settings(max_examples=20, deadline=None)
def test_any_split_and_order_of_a_batch_gives_the_same_views(cuts: list[int], random: object) -> None:
    order = list(range(12))
    random.shuffle(order)  # type: ignore[attr-defined]
    edges = [0, *sorted(set(cuts)), 12]
    for a, b in itertools.pairwise(edges):
        index = torch.tensor(order[a:b])
        views = TRANSFORM(IMAGES[index], views=4, index=index, **KEY)
        torch.testing.assert_close(views, reference()[index], rtol=0, atol=1e-6)


def test_more_views_do_not_change_the_first_views() -> None:
    few = TRANSFORM(IMAGES, views=2, index=torch.arange(12), **KEY)
    torch.testing.assert_close(few, reference()[:, :2], rtol=0, atol=1e-6)
    rest = TRANSFORM(IMAGES, views=2, first_view=2, index=torch.arange(12), **KEY)
    torch.testing.assert_close(rest, reference()[:, 2:], rtol=0, atol=1e-6)


@pytest.mark.parametrize("other", [{"seed": 4}, {"epoch": 6}, {"index": torch.arange(1, 13)}])
def test_other_keys_give_other_views(other: dict) -> None:
    key = {"index": torch.arange(12), **KEY, **other}
    different = (TRANSFORM(IMAGES, views=4, **key) - reference()).abs().mean((2, 3, 4)) > 0.01
    assert different.float().mean() > 0.95


def test_views_of_an_instance_differ() -> None:
    views = reference()
    assert ((views[:, 0] - views[:, 1]).abs().mean((1, 2, 3)) > 0.01).all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_views_are_the_same_on_cuda() -> None:
    views = TRANSFORM(IMAGES.cuda(), views=4, index=torch.arange(12).cuda(), **KEY)
    torch.testing.assert_close(views.cpu(), reference(), rtol=0, atol=1e-4)


def test_uniform_numbers_are_uniform_and_independent() -> None:
    draws = draw_uniform(0, 0, torch.arange(20000)[:, None], torch.arange(8))
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
        assert int(hash_key(torch.tensor(value))) % 2**64 == published(value % 2**64)


def test_hash_depends_on_every_part_of_the_key_and_their_order() -> None:
    assert len({int(hash_key(*key)) for key in ((1, 2), (2, 1), (1, 2, 0), (0, 1, 2), (1,), (2,))}) == 6


def test_permutations_depend_on_the_key() -> None:
    order = draw_permutation(1000, 0, 0)
    assert torch.equal(order.sort().values, torch.arange(1000))
    assert (order == draw_permutation(1000, 0, 1)).sum() < 10
    assert torch.equal(order, draw_permutation(1000, 0, 0))


@given(st.integers(2, 60), st.integers(1, 10), st.integers(1, 4))
@settings(deadline=None)
def test_batches_of_all_ranks_form_the_batches_of_one_rank(instances: int, each: int, ranks: int) -> None:
    size = each * ranks
    if size > instances:
        with pytest.raises(ValueError, match=f"batch of {size} is larger than the dataset of {instances}"):
            EpochBatches(instances, size, 0, 0)
        return
    full = EpochBatches(instances, size, 0, 0)
    shares = [EpochBatches(instances, size, 0, 0, rank, ranks) for rank in range(ranks)]
    assert len(full) == instances // size
    for batch, parts in zip(full, zip(*shares, strict=True), strict=True):
        assert torch.equal(batch, torch.cat(parts))
    assert len(torch.cat(list(full)).unique()) == len(full) * size


def test_batches_are_parts_of_one_permutation() -> None:
    """Also in a large epoch, whose indices are not computed at once; in any order of access."""
    batches = EpochBatches(50_000, 300, seed=3, epoch=7, rank=1, ranks=2)
    for i in (165, 0, 26, 27, 28):
        positions = torch.arange(300 * i + 150, 300 * i + 300)
        assert torch.equal(batches[i], permute(positions, 50_000, 3, 7))
        batches[i].zero_()  # a batch is the caller's


def test_instances_times_views_is_constant() -> None:
    assert [count_instances_per_batch(256, n) * n for n in (2, 4, 8)] == [256] * 3
    with pytest.raises(ValueError, match="too small"):
        count_instances_per_batch(4, 4)
    with pytest.raises(ValueError, match="not divisible by 3 ranks"):
        EpochBatches(10, 4, 0, 0, ranks=3)


def test_multi_crop_view_indices_continue_between_groups() -> None:
    small = SimCLRTransform(8, crop_scale=(0.05, 0.4))
    large, little = MultiCrop([(TRANSFORM, 2), (small, 3)])(IMAGES, index=torch.arange(12), **KEY)
    torch.testing.assert_close(large, reference()[:, :2], rtol=0, atol=1e-6)
    expected = small(IMAGES, views=3, first_view=2, index=torch.arange(12), **KEY)
    assert torch.equal(little, expected)
    assert MultiCrop([(TRANSFORM, 2), (small, 3)]).views == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, r"size \(height and width of a view\) must be an integer >= 1, got 0"),
        ({"size": 8, "jitter_strength": -1}, r"jitter_strength must be in \[0, 2.5\] .*, got -1"),
        ({"size": 8, "blur_prob": 1.5}, r"blur_prob must be in \[0, 1\], got 1.5"),
        ({"size": 8, "crop_scale": (0.5, 0.1)}, r"crop_scale must be 0 < low <= high <= 1, got \(0.5, 0.1\)"),
        ({"size": 8, "aspect_ratio": (0.0, 1.0)}, r"aspect_ratio must be 0 < low <= high, got \(0.0, 1.0\)"),
        ({"size": 1, "blur_prob": 0.5}, "blur_prob > 0 needs a larger size than 1"),
    ],
)
def test_invalid_transforms_raise(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SimCLRTransform(**options)


def test_invalid_calls_raise() -> None:
    with pytest.raises(ValueError, match="views must be >= 1"):
        TRANSFORM(IMAGES, views=0, index=torch.arange(12), **KEY)
    with pytest.raises(ValueError, match="index must have an integer for each of 12 images"):
        TRANSFORM(IMAGES, views=2, index=torch.arange(3), **KEY)
    with pytest.raises(ValueError, match="each group needs"):
        MultiCrop([])


@pytest.mark.parametrize(
    "images", [IMAGES.float(), IMAGES[0], IMAGES[:, :2], [image.float() for image in IMAGES], list(IMAGES[:, 0])]
)
def test_images_must_be_uint8_of_one_or_three_channels(images: object) -> None:
    with pytest.raises(ValueError, match=r"images must be uint8|index must have"):
        TRANSFORM(images, views=2, index=torch.arange(12), **KEY)


def test_images_are_not_modified() -> None:
    before = IMAGES.clone()
    TRANSFORM(IMAGES, views=2, index=torch.arange(12), **KEY)
    assert torch.equal(IMAGES, before)


def test_color_augmentation_of_noncontiguous_crops() -> None:
    crops = TRANSFORM.crop(IMAGES, views=4, index=torch.arange(12), **KEY)
    some = TRANSFORM.augment_color(crops.clone()[:, :2], index=torch.arange(12), **KEY)
    torch.testing.assert_close(some, reference()[:, :2], rtol=0, atol=1e-6)


def test_autocast_does_not_affect_a_transform() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        views = TRANSFORM(IMAGES, views=4, index=torch.arange(12), **KEY)
    assert torch.equal(views, reference())


def test_gray_images_get_the_views_of_equal_rgb_images() -> None:
    gray = IMAGES[:, :1]
    views = TRANSFORM(gray, views=4, index=torch.arange(12), **KEY)
    colored = TRANSFORM(gray.expand(-1, 3, -1, -1), views=4, index=torch.arange(12), **KEY)
    assert views.shape == (12, 4, 1, 16, 16)
    torch.testing.assert_close(views, colored[:, :, :1], rtol=0, atol=1e-5)
    crops = TRANSFORM.crop(gray, views=4, index=torch.arange(12), **KEY)
    assert ((views - crops).abs().mean((2, 3, 4)) > 1e-3).float().mean() > 0.6


def test_images_in_a_list_give_the_views_of_a_tensor_up_to_rounding() -> None:
    smooth = torch.nn.functional.interpolate(IMAGES[:, :, :4, :4].float(), (20, 20), mode="bicubic")
    images = smooth.clamp(0, 255).to(torch.uint8)
    one, other = (TRANSFORM(batch, views=2, index=torch.arange(12), **KEY) for batch in (images, list(images)))
    assert (one - other).abs().mean() < 1 / 255


@pytest.mark.parametrize("seed", [10**23, -1, -(2**63), 2**64])
def test_any_integer_is_a_valid_seed(seed: int) -> None:
    assert 0 <= float(draw_uniform(seed)) < 1


def test_invalid_batches_raise() -> None:
    for options in ({"size": 0}, {"size": 2, "rank": 2, "ranks": 2}, {"size": 2, "ranks": 0}, {"size": 2, "rank": -1}):
        with pytest.raises(ValueError, match="expected size >= 1"):
            EpochBatches(10, seed=0, epoch=0, **options)
