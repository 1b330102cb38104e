"""Crops and color jitter of images on CPUs, and their random numbers: compiled from `_image_ops.c` at installation.

Views equal those of `crop.py` and `color.py` up to rounding, several times faster. Without the compiled library (there
was no C compiler, or the system is Windows) those two make the views on every device.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

LIBRARY = Path(__file__).with_name("_image_ops.so")
VERSION = 1
"""IMAGE_OPS_VERSION of `_image_ops.c`, which changes with the arguments of its functions."""
SKIP = -1
"""An operation that changes nothing."""


@lru_cache(maxsize=1)
def load_library() -> ctypes.CDLL | None:
    """Load the compiled operations; None if they are missing, or built for another machine or version."""
    try:
        library = ctypes.CDLL(str(LIBRARY))
        pointer, count = ctypes.c_void_p, ctypes.c_int64
        library.augment_color.argtypes = [pointer, count, count, pointer, pointer, count]
        library.crop_resize.argtypes = [pointer, *[count] * 5, pointer, pointer, count, pointer, count]
        library.draw_uniform.argtypes = [count, pointer, *[count] * 5, pointer]
        library.sample_crop_boxes.argtypes = [pointer, pointer, *[count] * 3, pointer, pointer]
        library.draw_uniform.restype = library.sample_crop_boxes.restype = None
        return library if library.image_ops_version() == VERSION else None
    except (OSError, AttributeError):
        return None


def can_run(images: Tensor) -> bool:
    """Return whether the compiled operations can be used for these images."""
    if torch.compiler.is_compiling() or type(images) is not Tensor or images.requires_grad:
        return False  # a tracer's tensors, whose memory is not there, and those that need gradients
    return images.device.type == "cpu" and load_library() is not None


def draw_uniform(state: int, index: Tensor, first_view: int, num_views: int, draws: range) -> Tensor:
    """Return the uniform numbers (B, N, len(draws)) of `utils.draw_uniform`, the same bits.

    `state` is the hash of the first parts of the key; index (B,), view and draw are the others.
    """
    index, numbers = index.long().contiguous(), _make_floats(len(index), num_views, len(draws))
    library = load_library()
    assert library is not None
    library.draw_uniform(
        state, index.data_ptr(), len(index), first_view, num_views, draws.start, len(draws), numbers.data_ptr()
    )
    return numbers


def sample_crop_boxes(
    uniforms: Tensor, sizes: Tensor, scale: tuple[float, float], ratio: tuple[float, float]
) -> Tensor:
    """Map uniform numbers (B, N, 2 A + 2) of A attempts and image sizes (B, 2) to boxes (B, N, 4); see `crop.py`."""
    B, N, length = uniforms.shape
    if sizes.shape != (B, 2) or length % 2:
        raise ValueError(f"expected sizes ({B}, 2) and an even number of draws, got {tuple(sizes.shape)} and {length}")
    uniforms, sizes = uniforms.float().contiguous(), sizes.long().contiguous()
    boxes = torch.empty(B, N, 4, dtype=torch.int64, device="cpu")
    library = load_library()
    assert library is not None
    limits = (ctypes.c_double * 4)(*scale, *ratio)
    library.sample_crop_boxes(
        uniforms.data_ptr(), sizes.data_ptr(), B, N, length // 2 - 1, ctypes.addressof(limits), boxes.data_ptr()
    )
    return boxes


def crop_resize(images: Tensor, box: Tensor, size: int, hflip: Tensor) -> Tensor:
    """Resize boxes (B, N, 4) of uint8 images (B, C, H, W) to float32 views (B, N, C, size, size) in [0, 1].

    `hflip` (B, N) flips views.
    """
    (B, C, H, W), N = images.shape, box.shape[1]
    if box.shape != (B, N, 4) or hflip.shape != (B, N) or images.dtype != torch.uint8:
        got = f"{images.dtype} {tuple(images.shape)}, {tuple(box.shape)} and {tuple(hflip.shape)}"
        raise ValueError(f"images, boxes and flips must be uint8 (B, C, H, W), (B, N, 4) and (B, N), got {got}")
    top, left, height, width = box.unbind(-1)
    inside = (torch.minimum(top, left) >= 0) & (height <= H - top) & (width <= W - left)
    if not (inside & (torch.minimum(height, width) > 0)).all():
        raise ValueError(f"boxes must be inside of their images of {H} x {W} pixels")
    views = _make_floats(B, N, C, size, size)
    images, box, hflip = images.contiguous(), box.long().contiguous(), hflip.to(torch.uint8).contiguous()
    library = load_library()
    assert library is not None
    failed = library.crop_resize(
        images.data_ptr(), B, N, C, H, W, box.data_ptr(), hflip.data_ptr(), size, views.data_ptr(),
        torch.get_num_threads(),
    )  # fmt: skip
    if failed:
        raise MemoryError(f"not enough memory to resize images of {H} x {W} pixels")
    return views


def augment_color_(views: Tensor, factors: Tensor, operations: Tensor) -> Tensor:
    """Apply operations (V, 5), in their order, to views (V, 3, H, W) in [0, 1], in place.

    An operation is brightness, contrast, saturation or hue (0 to 3), grayscale (4) or `SKIP`. `factors` (V, 4) has
    the parameters of the first four.
    """
    V, C, H, W = views.shape
    if views.dtype != torch.float32 or not views.is_contiguous() or C != 3:
        raise ValueError(f"views must be contiguous float32 (V, 3, H, W), got {views.dtype} {tuple(views.shape)}")
    if factors.shape != (V, 4) or operations.shape != (V, 5):
        got = f"{tuple(factors.shape)} and {tuple(operations.shape)}"
        raise ValueError(f"factors and operations must be ({V}, 4) and ({V}, 5), got {got}")
    library = load_library()
    assert library is not None
    factors, operations = factors.float().contiguous(), operations.long().contiguous()
    library.augment_color(
        views.data_ptr(), V, H * W, factors.data_ptr(), operations.data_ptr(), torch.get_num_threads()
    )
    return views


def _make_floats(*shape: int) -> Tensor:
    """Make what the compiled code writes, whatever torch's default dtype and device are."""
    return torch.empty(shape, dtype=torch.float32, device="cpu")
