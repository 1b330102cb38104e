"""The one view without chance: what is embedded when nothing is trained."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from manyviews.data import ImageFiles
from manyviews.views import crop

MARGIN = 7 / 8
"""Share of the shorter side in the central square, as 224 of 256."""


def natural_size(images: Tensor | ImageFiles) -> int:
    """Of views: the shortest side of some of the images, at most 224."""
    if isinstance(images, Tensor):
        return min(224, *images.shape[-2:])
    some = [images.whole(number)[0] for number in range(0, len(images), -(-len(images) // 16))]
    return min(224, *(side for image in some for side in image.shape[-2:]))


def plain_views(images: Tensor | Sequence[Tensor], size: int) -> Tensor:
    """Images uint8 (B, C, H, W), or a sequence of (C, H, W), as floats in [0, 1] (B, C, size, size).

    Images of that size stay as they are; of others the central square is resized.

    Example:
        >>> plain_views(torch.zeros(2, 3, 300, 400, dtype=torch.uint8), 224).shape
        torch.Size([2, 3, 224, 224])
    """
    if isinstance(images, Tensor) and images.shape[-2:] == (size, size):
        return images.float().div_(255)
    return torch.cat([_plain(image, size) for image in images]).float().div_(255)


def _plain(image: Tensor, size: int) -> Tensor:
    height, width = image.shape[-2:]
    if (height, width) == (size, size):
        return image[None]
    side = max(1, round(min(height, width) * MARGIN))
    box = torch.tensor([[(height - side) // 2, (width - side) // 2, side, side]])
    return crop.resized_each(image, box, size, torch.tensor([False]))
