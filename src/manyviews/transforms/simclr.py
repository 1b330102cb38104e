"""Transforms from images to N views of each."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from manyviews.data import pil_to_tensor
from manyviews.transforms import color, crop, image_ops
from manyviews.transforms.transform import ImageBatch, ImageTransform
from manyviews.utils import draw_uniform, hash_key

CHUNK = 256
"""Views per chunk on a CPU, so that a chunk fits in the cache."""


@dataclass(frozen=True)
class SimCLRTransform(ImageTransform):
    """SimCLR's random resized crop, horizontal flip, color jitter, grayscale and blur.

    A call maps images to views (B, N, C, size, size), float32 in [0, 1]. Each random parameter is a function of
    (seed, epoch, index of the instance, view), so the views do not depend on the batch, worker, rank or device.

    Args:
        size: height and width of a view.
        jitter_strength: brightness, contrast and saturation change by up to 0.8 of it, hue by up to 0.2 of it.
        blur_prob: probability of a Gaussian blur, with a kernel of a tenth of the size and sigma from 0.2 to 2.
        crop_scale: min and max area of a crop, as fractions of the image area.
        aspect_ratio: min and max of a crop's width / height.
        hflip_prob: probability of a horizontal flip.
        jitter_prob: probability of color jitter.
        grayscale_prob: probability of a grayscale view.

    Examples:
        >>> images = torch.randint(256, (8, 3, 32, 32), dtype=torch.uint8)
        >>> SimCLRTransform(32)(images, views=4, seed=0, epoch=0, index=torch.arange(8)).shape
        torch.Size([8, 4, 3, 32, 32])
        >>> SimCLRTransform(32)(Image.new("RGB", (60, 40))).shape
        torch.Size([3, 32, 32])
    """

    size: int
    jitter_strength: float = 0.5
    blur_prob: float = 0.0
    crop_scale: tuple[float, float] = (0.08, 1.0)
    aspect_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    hflip_prob: float = 0.5
    jitter_prob: float = 0.8
    grayscale_prob: float = 0.2

    def __post_init__(self) -> None:
        if not isinstance(self.size, int) or self.size < 1:
            raise ValueError(f"size (height and width of a view) must be an integer >= 1, got {self.size!r}")
        for name in ("crop_scale", "aspect_ratio"):
            value = getattr(self, name)
            if not isinstance(value, tuple | list) or len(value) != 2:
                raise ValueError(f"{name} must be two numbers (min, max), got {value!r}")
        if not 0 <= self.jitter_strength <= 2.5:
            limits = "in [0, 2.5] (2.5 is half the hue circle)"
            raise ValueError(f"jitter_strength must be {limits}, got {self.jitter_strength}")
        for name in ("blur_prob", "hflip_prob", "jitter_prob", "grayscale_prob"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be in [0, 1], got {getattr(self, name)}")
        if not 0 < self.crop_scale[0] <= self.crop_scale[1] <= 1:
            raise ValueError(f"crop_scale must be 0 < low <= high <= 1, got {self.crop_scale}")
        if not 0 < self.aspect_ratio[0] <= self.aspect_ratio[1]:
            raise ValueError(f"aspect_ratio must be 0 < low <= high, got {self.aspect_ratio}")
        if self.blur_prob and self.blur_kernel_size // 2 >= self.size:
            raise ValueError(f"blur_prob > 0 needs a larger size than {self.size}")

    @property
    def blur_kernel_size(self) -> int:
        """Odd width of the blur kernel in pixels: 23 for a size of 224."""
        return max(3, self.size // 10 | 1)

    def __call__(
        self,
        images: ImageBatch | Image.Image,
        *,
        views: int = 1,
        seed: int = 0,
        epoch: int = 0,
        index: Tensor | None = None,
        first_view: int = 0,
    ) -> Tensor:
        """Return views (B, N, C, size, size); `first_view` is the index of the first view.

        Of one PIL image it returns a view (C, size, size), or (N, C, size, size) if `views` > 1. Without an index,
        instances get random ones from torch's global generator, as in the transforms of torchvision.
        """
        if isinstance(images, Image.Image):
            pixels = pil_to_tensor(images)[None]
            result = self(pixels, views=views, seed=seed, epoch=epoch, index=index, first_view=first_view)[0]
            return result if views > 1 else result[0]
        index = torch.randint(2**62, (len(images),)) if index is None else index
        crops = self.crop(images, views=views, seed=seed, epoch=epoch, index=index, first_view=first_view)
        return self.augment_color(crops, seed=seed, epoch=epoch, index=index, first_view=first_view)

    def crop(
        self, images: ImageBatch, *, views: int, seed: int, epoch: int, index: Tensor, first_view: int = 0
    ) -> Tensor:
        """Crop, resize and flip: views (B, N, C, size, size), float32 for a tensor of images, uint8 for a sequence."""
        if views < 1:
            raise ValueError(f"views must be >= 1, got {views}")
        _check_images(images, index)
        device = images[0].device
        draws = self._draw_random(CROP_STREAM, seed, epoch, index.to(device), views, first_view)
        hflip = draws[..., -1] < self.hflip_prob
        with torch.autocast(device.type, enabled=False):
            sizes = crop.get_image_sizes(images).to(device)
            sample = image_ops.sample_crop_boxes if image_ops.can_run(draws) else crop.sample_crop_boxes
            boxes = sample(draws[..., :-1], sizes, self.crop_scale, self.aspect_ratio)
            if not isinstance(images, Tensor):
                crops = zip(images, boxes, hflip, strict=True)
                return torch.stack([crop.crop_resize(image, box, self.size, flips) for image, box, flips in crops])
            if image_ops.can_run(images):
                return image_ops.crop_resize(images, boxes, self.size, hflip)
            out = images.new_empty(len(images), views, images.shape[1], self.size, self.size, dtype=torch.float32)
            step = max(1, (CHUNK if device.type == "cpu" else 16 * CHUNK) // views)
            for chunk in (slice(start, start + step) for start in range(0, len(images), step)):
                crop.crop_resize_batch(images[chunk], boxes[chunk], self.size, hflip[chunk], out[chunk])
        return out

    def augment_color(self, crops: Tensor, *, seed: int, epoch: int, index: Tensor, first_view: int = 0) -> Tensor:
        """Apply jitter, grayscale and blur to crops (B, N, C, size, size), in place if they are float32."""
        if crops.dim() != 5 or crops.shape[2] not in (1, 3):
            raise ValueError(f"crops must be (instances, views, 1 or 3, height, width), got {tuple(crops.shape)}")
        if index.dim() != 1 or len(index) != len(crops):
            raise ValueError(f"index must have a number for each of {len(crops)} instances, got {tuple(index.shape)}")
        is_uint8, is_gray = crops.dtype == torch.uint8, crops.shape[2] == 1
        crops = crops.to(torch.float32).contiguous()
        crops = crops.mul_(1 / 255) if is_uint8 else crops
        draws = self._draw_random(COLOR_STREAM, seed, epoch, index.to(crops.device), crops.shape[1], first_view)
        # Gray images pass through as RGB: saturation, hue and grayscale do not change them.
        rgb = crops.expand(-1, -1, 3, -1, -1).contiguous()
        with torch.autocast(crops.device.type, enabled=False):
            self._augment_color_(rgb.flatten(0, 1), draws.flatten(0, 1))
        return rgb[:, :, :1].contiguous() if is_gray else rgb

    def _augment_color_(self, views: Tensor, draws: Tensor) -> None:
        """Augment views (V, 3, H, W) in place with uniform numbers (V, len(COLOR_STREAM))."""
        spread = draws.new_tensor([0.8, 0.8, 0.8, 0.2]) * self.jitter_strength
        center = draws.new_tensor([1.0, 1.0, 1.0, 0.0])
        low = (center - spread).clamp_min(0.0)
        low[3] = -spread[3]
        factors = low + draws[:, :4] * (center + spread - low)
        order = (draws[:, 4] * len(color.ORDERS)).long()
        order = order.masked_fill(draws[:, 5] >= self.jitter_prob, len(color.ORDERS))
        color.augment_color_(views, factors, order, draws[:, 6] < self.grayscale_prob)
        blurred = (draws[:, 7] < self.blur_prob).nonzero().squeeze(1)
        if len(blurred):
            sigma = 0.2 + 1.8 * draws[blurred, 8]
            views[blurred] = color.gaussian_blur(views[blurred], sigma, self.blur_kernel_size)

    @staticmethod
    def _draw_random(stream: range, seed: int, epoch: int, index: Tensor, views: int, first_view: int) -> Tensor:
        """Return uniform numbers (B, N, len(stream))."""
        if image_ops.can_run(index):
            return image_ops.draw_uniform(int(hash_key(seed, epoch)), index, first_view, views, stream)
        device = index.device
        view = torch.arange(first_view, first_view + views, device=device)[:, None]
        draw = torch.arange(stream.start, stream.stop, device=device)
        return draw_uniform(seed, epoch, index.long()[:, None, None], view, draw)


def _check_images(images: ImageBatch, index: Tensor) -> None:
    if not isinstance(index, Tensor):
        raise TypeError(f"index must be a tensor of instance indices, got {type(index).__name__}")
    if len(images) == 0 or len(index) != len(images) or index.dim() != 1 or index.is_floating_point():
        got = f"{index.dtype} {tuple(index.shape)}"
        raise ValueError(f"index must have an integer for each of {len(images)} images, got {got}")
    for image in [images] if isinstance(images, Tensor) else images:
        dims = 4 if isinstance(images, Tensor) else 3
        if image.dtype != torch.uint8 or image.dim() != dims or image.shape[-3] not in (1, 3):
            expected = "(instances, 1 or 3, height, width)" if dims == 4 else "(1 or 3, height, width) each"
            raise ValueError(f"images must be uint8 {expected}, got {image.dtype} {tuple(image.shape)}")


# Draw indices of a view. Only append to them: renumbering changes the views of every seed.
CROP_STREAM = range(2 * crop.MAX_ATTEMPTS + 3)
COLOR_STREAM = range(64, 73)


@dataclass(frozen=True)
class MultiCrop:
    """Groups of views of different sizes, such as 2 at 224 and 6 at 96.

    A call returns one tensor (B, N, C, size, size) per group; view indices continue from group to group.

    Examples:
        >>> small = SimCLRTransform(16, crop_scale=(0.05, 0.4))
        >>> crops = MultiCrop([(SimCLRTransform(32), 2), (small, 6)])
        >>> images = torch.randint(256, (8, 3, 32, 32), dtype=torch.uint8)
        >>> [tuple(v.shape) for v in crops(images, seed=0, epoch=0, index=torch.arange(8))]
        [(8, 2, 3, 32, 32), (8, 6, 3, 16, 16)]
    """

    groups: Sequence[tuple[SimCLRTransform, int]]

    def __post_init__(self) -> None:
        if not self.groups or any(count < 1 for _, count in self.groups):
            raise ValueError(f"each group needs at least one view, got {[count for _, count in self.groups]}")

    @property
    def views(self) -> int:
        return sum(count for _, count in self.groups)

    @property
    def first_views(self) -> list[int]:
        """The index of the first view of each group."""
        return list(accumulate((count for _, count in self.groups[:-1]), initial=0))

    def __call__(self, images: ImageBatch, *, seed: int, epoch: int, index: Tensor) -> list[Tensor]:
        crops = self.crop(images, seed=seed, epoch=epoch, index=index)
        return self.augment_color(crops, seed=seed, epoch=epoch, index=index)

    def crop(self, images: ImageBatch, *, seed: int, epoch: int, index: Tensor) -> list[Tensor]:
        """Return the crops of each group, see `SimCLRTransform.crop`."""
        key: dict[str, Any] = {"seed": seed, "epoch": epoch, "index": index}
        groups = zip(self.groups, self.first_views, strict=True)
        return [transform.crop(images, views=count, first_view=first, **key) for (transform, count), first in groups]

    def augment_color(self, crops: Sequence[Tensor], *, seed: int, epoch: int, index: Tensor) -> list[Tensor]:
        """Augment the colors of the crops of each group, see `SimCLRTransform.augment_color`."""
        key: dict[str, Any] = {"seed": seed, "epoch": epoch, "index": index}
        groups = zip(crops, self.groups, self.first_views, strict=True)
        return [transform.augment_color(group, first_view=first, **key) for group, (transform, _), first in groups]
