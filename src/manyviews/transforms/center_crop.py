"""Deterministic evaluation transform (center crop)."""

import statistics
from collections.abc import Sequence

import torch
from torch import Tensor

from manyviews.data import LazyImages
from manyviews.transforms import crop

CENTER_CROP_RATIO = 7 / 8
"""Side of the central square as a fraction of the shorter side of the image, as 224 of 256."""


def infer_image_size(images: Tensor | LazyImages) -> int:
    """Return the median shorter side of up to 16 images, capped at 224."""
    if isinstance(images, Tensor):
        return min(224, *images.shape[-2:])
    sample = [images.read_or_next(i)[0] for i in range(0, len(images), -(-len(images) // 16))]
    return min(224, statistics.median_low(min(image.shape[-2:]) for image in sample))


def center_crop_batch(images: Tensor | Sequence[Tensor], size: int) -> Tensor:
    """Convert uint8 images (B, C, H, W), or a sequence of (C, H, W), to floats in [0, 1] (B, C, size, size).

    Images that already have this size are not resampled. For all others the central square is resized.

    Examples:
        >>> center_crop_batch(torch.zeros(2, 3, 300, 400, dtype=torch.uint8), 224).shape
        torch.Size([2, 3, 224, 224])
    """
    if isinstance(images, Tensor) and images.shape[-2:] == (size, size):
        return images.float().div_(255)
    return torch.cat([center_crop(image, size) for image in images]).float().div_(255)


def center_crop(image: Tensor, size: int) -> Tensor:
    """Crop and resize the central square of one image (C, H, W) to uint8 (1, C, size, size)."""
    height, width = image.shape[-2:]
    if (height, width) == (size, size):
        return image[None]
    side = max(1, round(min(height, width) * CENTER_CROP_RATIO))
    box = torch.tensor([[(height - side) // 2, (width - side) // 2, side, side]])
    return crop.crop_resize(image, box, size, torch.tensor([False]))
