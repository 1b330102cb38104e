"""Deterministic evaluation transform (center crop)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from manyviews.transforms import crop
from manyviews.transforms.transform import ImageBatch, ImageTransform

CENTER_CROP_RATIO = 7 / 8
"""Side of the central square as a fraction of the shorter side of the image, as 224 of 256."""


@dataclass(frozen=True)
class CenterCrop(ImageTransform):
    """Crops the central square of each image, as in evaluation: every view of an image is the same.

    Examples:
        >>> crop = CenterCrop(32)
        >>> crops = crop.crop(torch.zeros(2, 3, 40, 60, dtype=torch.uint8), views=1, index=torch.arange(2))
        >>> crops.shape, crop.augment_color(crops).dtype
        (torch.Size([2, 1, 3, 32, 32]), torch.float32)
    """

    size: int
    is_random = False

    def crop(self, images: ImageBatch, *, views: int, **_key: Any) -> Tensor:
        if isinstance(images, Tensor) and images.shape[-2:] == (self.size, self.size):
            crops = images
        else:
            crops = torch.cat([center_crop(image, self.size) for image in images])
        return crops[:, None].expand(-1, views, -1, -1, -1)

    def augment_color(self, crops: Tensor, **_key: Any) -> Tensor:
        """Convert to floats in [0, 1]; the colors stay as they are."""
        return crops.float().div_(255)


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
