"""Each operation matches PIL's for the same parameters, up to PIL's rounding to integers."""

import colorsys

import pytest
import torch
from PIL import ImageFilter, ImageOps

from manyviews.data import load_dataset
from manyviews.transforms import SimCLRTransform, color, crop
from tests.transforms import pil

PHOTOS = load_dataset("photos")["train"].images[::50]
FLOAT = PHOTOS.float() / 255


def mean_difference(ours: torch.Tensor, expected: list) -> float:
    """Mean absolute difference, in 255ths."""
    return float((ours - torch.stack([pil.tensor(picture) for picture in expected])).abs().mean()) * 255


@pytest.mark.parametrize("size", [8, 20, 32, 50])
def test_crops_of_images_of_one_size_match_pil(size: int) -> None:
    boxes = crop.sample_crop_boxes(torch.rand(50, 3, 22), torch.tensor([[32, 32]] * 50), (0.08, 1.0), (3 / 4, 4 / 3))
    mirrored = torch.rand(50, 3) < 0.5
    ours = torch.empty(50, 3, 3, size, size)
    crop.crop_resize_batch(PHOTOS, boxes, size, mirrored, ours)
    expected = [
        ImageOps.mirror(view) if mirrored[i, n] else view
        for i in range(50)
        for n in range(3)
        for view in [pil.resized(pil.image(PHOTOS[i]), boxes[i, n].tolist(), size)]
    ]
    assert mean_difference(ours.flatten(0, 1), expected) < 0.5


def test_crops_of_larger_images_without_a_table_match_pil() -> None:
    images = torch.nn.functional.interpolate(FLOAT[:6], (90, 120), mode="bilinear").mul(255).to(torch.uint8)
    boxes = crop.sample_crop_boxes(torch.rand(6, 2, 22), torch.tensor([[90, 120]] * 6), (0.08, 1.0), (3 / 4, 4 / 3))
    mirrored = torch.tensor([[False, True]] * 6)
    for size in (24, 100):
        ours = torch.empty(6, 2, 3, size, size)
        crop.crop_resize_batch(images, boxes, size, mirrored, ours)
        each = torch.stack([crop.crop_resize(*args, size, m) for *args, m in zip(images, boxes, mirrored, strict=True)])
        expected = []
        for i in range(6):
            expected.append(pil.resized(pil.image(images[i]), boxes[i, 0].tolist(), size))
            expected.append(ImageOps.mirror(pil.resized(pil.image(images[i]), boxes[i, 1].tolist(), size)))
        assert mean_difference(ours.flatten(0, 1), expected) < 0.5
        assert mean_difference(each.flatten(0, 1).float() / 255, expected) < 0.5


@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation"])
@pytest.mark.parametrize("factor", [0.2, 0.7, 1.0, 1.25, 1.8])
def test_color_operations_match_pil(name: str, factor: float) -> None:
    ours = getattr(color, f"adjust_{name}_")(FLOAT.clone(), torch.full((50,), factor))
    assert mean_difference(ours, [getattr(pil, name)(pil.image(image), factor) for image in PHOTOS]) <= 0.5


@pytest.mark.parametrize("steps", [-51, -10, 0, 1, 30])
def test_hue_matches_pil(steps: int) -> None:
    """PIL rounds hues to 256ths of the circle."""
    ours = color.adjust_hue_(FLOAT.clone(), torch.full((50,), steps / 256))
    assert mean_difference(ours, [pil.hue(pil.image(image), steps / 256) for image in PHOTOS]) <= 1.5


@pytest.mark.parametrize("shift", [-0.5, -0.3, 0.0, 0.1, 0.5])
def test_hue_equals_colorsys(shift: float) -> None:
    pixels = torch.rand(200, 3, generator=torch.Generator().manual_seed(0))
    pixels[:50] = (pixels[:50] * 3).round() / 3  # gray, black, white and fully saturated ones
    shifted = []
    for pixel in pixels.tolist():
        hue, saturation, value = colorsys.rgb_to_hsv(*pixel)
        shifted.append(colorsys.hsv_to_rgb((hue + shift) % 1, saturation, value))
    ours = color.adjust_hue_(pixels[:, :, None, None].clone(), torch.full((200,), shift))
    torch.testing.assert_close(ours[:, :, 0, 0], torch.tensor(shifted), rtol=0, atol=1e-5)


def test_grayscale_matches_pil() -> None:
    ours = color.grayscale_(FLOAT.clone(), torch.ones(50, dtype=torch.bool))
    assert mean_difference(ours, [pil.grayscale(pil.image(image)) for image in PHOTOS]) < 0.5
    mask = torch.arange(50) % 2 == 0
    some = color.grayscale_(FLOAT.clone(), mask)
    assert torch.equal(some[~mask], FLOAT[~mask])


def test_blur_is_gaussian_and_close_to_pil() -> None:
    images = torch.nn.functional.interpolate(FLOAT[:4], (64, 64), mode="bilinear").clamp(0, 1)
    for sigma in (0.3, 1.0, 2.0):
        ours = color.gaussian_blur(images, torch.full((4,), sigma), 23)
        expected = [
            pil.image((image * 255).to(torch.uint8)).filter(ImageFilter.GaussianBlur(sigma)) for image in images
        ]
        assert mean_difference(ours[:, :, 8:-8, 8:-8], [p.crop((8, 8, 56, 56)) for p in expected]) < 2.0
    point = torch.zeros(1, 3, 41, 41)
    point[:, :, 20, 20] = 1
    blurred = color.gaussian_blur(point, torch.tensor([2.0]), 23)[0, 0]
    x = torch.arange(41.0) - 20
    torch.testing.assert_close((blurred * x**2).sum(), torch.tensor(4.0), rtol=0.01, atol=0)
    torch.testing.assert_close(blurred.sum(), torch.tensor(1.0))


def test_jitter_applies_the_order_of_each_view() -> None:
    factors = torch.tensor([[0.5, 1.6, 0.3, 0.15]]).repeat(25, 1)
    ours = color.color_jitter_(FLOAT[:25].clone(), factors, torch.arange(25))
    for view, order in enumerate(color.ORDERS):
        one = FLOAT[view : view + 1].clone()
        for operation in order:
            function = (color.adjust_brightness_, color.adjust_contrast_, color.adjust_saturation_, color.adjust_hue_)[
                operation
            ]
            function(one, factors[:1, operation])
        torch.testing.assert_close(ours[view], one[0])
    assert torch.equal(ours[24], FLOAT[24])


def test_boxes_follow_scale_and_ratio() -> None:
    sizes = torch.tensor([[300, 200]]).repeat(4000, 1)
    draws = torch.rand(4000, 1, 22, generator=torch.Generator().manual_seed(0))
    top, left, h, w = crop.sample_crop_boxes(draws, sizes, (0.08, 1.0), (3 / 4, 4 / 3)).squeeze(1).unbind(1)
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + h <= 300).all()
    assert (left + w <= 200).all()
    share = h * w / 60000
    assert 0.075 < share.min() < 0.1
    ratio = w / h
    assert ratio.min() > 0.7
    assert ratio.max() < 1.4
    assert abs(float(ratio.log().mean())) < 0.05
    assert top.float().mean() > 20


def test_boxes_that_cannot_fit_are_central() -> None:
    top, left, h, w = crop.sample_crop_boxes(
        torch.rand(1, 1, 22), torch.tensor([[10, 1000]]), (0.9, 1.0), (3 / 4, 4 / 3)
    )[0, 0].tolist()
    assert (top, left, h, w) == (0, 493, 10, 13)


def test_transform_follows_its_probabilities() -> None:
    gray = torch.full((1000, 3, 8, 8), 100, dtype=torch.uint8)
    colored = gray.clone()
    colored[:, 0] = 200
    transform = SimCLRTransform(8, jitter_prob=0.0)
    views = transform(colored, views=2, seed=0, epoch=0, index=torch.arange(1000))
    share = (views[:, :, 0, 0, 0] == views[:, :, 1, 0, 0]).float().mean()
    assert 0.17 < share < 0.23
    ramp = torch.arange(8, dtype=torch.uint8).mul(30).expand(1000, 3, 8, 8)
    views = SimCLRTransform(8, jitter_prob=0, grayscale_prob=0)(
        ramp, views=2, seed=0, epoch=0, index=torch.arange(1000)
    )
    mirrored = (views[:, :, 0, 0, 0] > views[:, :, 0, 0, -1]).float().mean()
    assert 0.46 < mirrored < 0.54


def test_views_stay_in_range_and_gray_images_keep_one_channel() -> None:
    transform = SimCLRTransform(24, jitter_strength=1.0, blur_prob=0.5)
    views = transform(PHOTOS, views=4, seed=0, epoch=0, index=torch.arange(50))
    assert views.dtype == torch.float32
    assert views.min() >= 0
    assert views.max() <= 1
    assert transform(PHOTOS[:, :1], views=2, seed=0, epoch=0, index=torch.arange(50)).shape == (50, 2, 1, 24, 24)
