"""The compiled operations equal those of torch up to rounding, for any number of threads and any split of a batch."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from manyviews.transforms import SimCLRTransform, color, crop, image_ops
from manyviews.utils import draw_uniform, hash_key

pytestmark = pytest.mark.skipif(
    image_ops.load_library() is None and shutil.which("cc") is None, reason="no C compiler made the library"
)
GENERATOR = torch.Generator().manual_seed(0)
PHOTOS = torch.randint(256, (6, 3, 32, 32), dtype=torch.uint8, generator=GENERATOR)
TRANSFORM = SimCLRTransform(24, jitter_strength=1.0)
KEY = {"seed": 1, "epoch": 2}


@pytest.fixture
def restore_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def make_views(photos: torch.Tensor = PHOTOS, start: int = 0, views: int = 40) -> torch.Tensor:
    return TRANSFORM(photos, views=views, index=torch.arange(start, start + len(photos)), **KEY)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_views_do_not_depend_on_the_default_dtype(dtype: torch.dtype) -> None:
    expected, before = make_views(), torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        views = make_views()
    finally:
        torch.set_default_dtype(before)
    assert torch.equal(views, expected)


def test_results_do_not_depend_on_the_default_device() -> None:
    index, boxes = torch.arange(2), torch.tensor([[[0, 0, 9, 9]], [[3, 4, 20, 11]]])
    flips = torch.zeros(2, 1, dtype=torch.bool)
    with torch.device("meta"):
        numbers = image_ops.draw_uniform(7, index, 0, 3, range(4))
        views = image_ops.crop_resize(PHOTOS[:2], boxes, 8, flips)
    assert torch.equal(numbers, image_ops.draw_uniform(7, index, 0, 3, range(4)))
    assert torch.equal(views, image_ops.crop_resize(PHOTOS[:2], boxes, 8, flips))


def test_tensors_without_memory_or_with_gradients_are_left_to_torch() -> None:
    assert image_ops.can_run(PHOTOS)
    with FakeTensorMode() as mode:
        assert not image_ops.can_run(mode.from_tensor(PHOTOS))
    assert not image_ops.can_run(torch.rand(2, requires_grad=True))
    compiled = torch.compile(lambda x: x if image_ops.can_run(x) else x + 1, backend="eager")
    assert torch.equal(compiled(PHOTOS), PHOTOS + 1)


def test_boxes_and_indices_that_would_overflow_are_refused() -> None:
    box = torch.tensor([[[2**63 - 1, 0, 1, 5]]])
    with pytest.raises(ValueError, match="boxes must be inside"):
        image_ops.crop_resize(PHOTOS[:1], box, 8, torch.zeros(1, 1, dtype=torch.bool))
    with pytest.raises(ValueError, match="index must have a number for each of 6 instances"):
        TRANSFORM.augment_color(torch.rand(6, 2, 3, 8, 8), index=torch.zeros(2, 3, dtype=torch.long), **KEY)


def test_a_library_of_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_ops, "VERSION", -1)
    image_ops.load_library.cache_clear()
    try:
        assert image_ops.load_library() is None
    finally:
        monkeypatch.undo()
        image_ops.load_library.cache_clear()


def test_random_numbers_are_the_same_bits_as_those_of_torch() -> None:
    index, view, draw = torch.randint(2**62, (50,)), torch.arange(3, 8)[:, None], torch.arange(64, 73)
    expected = draw_uniform(7, 2**31 - 1, index[:, None, None], view, draw)
    assert torch.equal(image_ops.draw_uniform(int(hash_key(7, 2**31 - 1)), index, 3, 5, range(64, 73)), expected)


@pytest.mark.parametrize("scale", [(0.08, 1.0), (1.0, 1.0), (0.001, 0.01)])
@pytest.mark.parametrize("ratio", [(3 / 4, 4 / 3), (1.0, 1.0), (2.0, 3.0), (0.2, 0.5)])
def test_boxes_are_those_of_torch(scale: tuple[float, float], ratio: tuple[float, float]) -> None:
    sizes = torch.randint(1, 600, (400, 2), generator=GENERATOR)
    sizes[:100] = sizes[:100] % 5 + 1
    uniforms = torch.rand(400, 9, 2 * crop.MAX_ATTEMPTS + 2, generator=GENERATOR)
    expected = crop.sample_crop_boxes(uniforms, sizes, scale, ratio)
    assert torch.equal(image_ops.sample_crop_boxes(uniforms, sizes, scale, ratio), expected)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 3), st.sampled_from([1, 3]), st.integers(1, 60), st.integers(1, 60), st.integers(1, 50), st.data()
)
def test_crops_equal_those_of_torch(
    num_images: int, channels: int, height: int, width: int, size: int, data: st.DataObject
) -> None:
    images = torch.randint(256, (num_images, channels, height, width), dtype=torch.uint8, generator=GENERATOR)
    boxes = torch.empty(num_images, 2, 4, dtype=torch.int64)
    for box in boxes.flatten(0, 1):
        h, w = data.draw(st.integers(1, height)), data.draw(st.integers(1, width))
        top, left = data.draw(st.integers(0, height - h)), data.draw(st.integers(0, width - w))
        box[:] = torch.tensor([top, left, h, w])
    hflip = torch.randint(2, (num_images, 2), dtype=torch.bool, generator=GENERATOR)
    expected = torch.empty(num_images, 2, channels, size, size)
    crop.crop_resize_batch(images, boxes, size, hflip, expected)
    torch.testing.assert_close(image_ops.crop_resize(images, boxes, size, hflip), expected, rtol=0, atol=2e-5)


def test_colors_equal_those_of_torch_in_every_order() -> None:
    """1,600 pixels are more than a block of 1,024, so that contrast needs a mean of several blocks."""
    orders = torch.arange(25).repeat(4)
    views = torch.rand(100, 3, 40, 40, generator=GENERATOR)
    views[50:] = (views[50:] * 4).floor() / 4  # equal channels, black and white
    factors = torch.rand(100, 4, generator=GENERATOR) * torch.tensor([2.0, 2.0, 2.0, 1.0])
    factors[:, 3] -= 0.5
    grayscale = torch.rand(100, generator=GENERATOR) < 0.3
    expected = color.grayscale_(color.color_jitter_(views.clone(), factors, orders), grayscale)
    actual = color.augment_color_(views.clone(), factors, orders, grayscale)
    torch.testing.assert_close(actual, expected, rtol=0, atol=2e-5)


def test_views_equal_those_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = make_views()
    monkeypatch.setattr(image_ops, "load_library", lambda: None)
    torch.testing.assert_close(compiled, make_views(), rtol=0, atol=1e-4)


def test_views_of_images_in_memory_are_made_by_the_compiled_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    functions = {}
    for name in ("draw_uniform", "sample_crop_boxes", "crop_resize", "augment_color_"):
        functions[name] = Mock(wraps=getattr(image_ops, name))
        monkeypatch.setattr(image_ops, name, functions[name])
    make_views(views=2)
    assert {name: function.call_count for name, function in functions.items()} == {
        "draw_uniform": 2, "sample_crop_boxes": 1, "crop_resize": 1, "augment_color_": 1,
    }  # fmt: skip


@pytest.mark.usefixtures("restore_threads")
def test_number_of_threads_and_split_of_a_batch_do_not_change_a_bit() -> None:
    torch.set_num_threads(1)
    expected = make_views()
    for threads in (2, 3, 100):
        torch.set_num_threads(threads)
        assert torch.equal(make_views(), expected)
    assert torch.equal(make_views(PHOTOS[2:4], 2), expected[2:4])
    assert torch.equal(make_views(PHOTOS[:1], views=1), expected[:1, :1])


@pytest.mark.parametrize("box", [(0, 0, 33, 5), (0, 28, 5, 5), (-1, 0, 5, 5), (3, 3, 0, 5), (3, 3, 5, -2)])
def test_a_box_that_leaves_the_image_is_refused(box: tuple[int, ...]) -> None:
    boxes = torch.tensor(box)[None, None].expand(6, 1, 4)
    with pytest.raises(ValueError, match="inside of their images of 32 x 32 pixels"):
        image_ops.crop_resize(PHOTOS, boxes, 8, torch.zeros(6, 1))


def test_the_library_does_not_change_how_the_process_treats_small_numbers() -> None:
    """Linking with -ffast-math would flush them to zero."""
    assert image_ops.load_library() is not None
    assert torch.tensor(2e-40) * torch.tensor(0.5) > 0


def test_a_damaged_library_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    damaged = tmp_path / "ops.so"
    damaged.write_bytes(b"\x7fELF")
    monkeypatch.setattr(image_ops, "LIBRARY", damaged)
    assert image_ops.load_library.__wrapped__() is None
