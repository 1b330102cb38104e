"""Policies: from instances to N views of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from manyviews.views import colour, crop
from manyviews.views.keyed import uniform

Images = Tensor | Sequence[Tensor]
"""uint8 images (B, C, H, W) of one size, or a sequence of (C, H, W) of any sizes."""

CHUNK = 256
"""Views handled at once on a CPU, so that they stay in its cache."""


@dataclass(frozen=True)
class SimCLRPolicy:
    """Random resized crop, mirroring, colour jitter, grey and blur, as SimCLR draws them.

    Called with images it gives views (B, N, C, size, size), float32 in [0, 1]. Each parameter of each view is a
    function of (seed, epoch, index of the instance, view), so the same views come out for any batch, worker, rank
    or device.

    Args:
        size: height and width of a view.
        strength: of the jitter: brightness, contrast and saturation change by up to 0.8 of it, hue by 0.2.
        blur: probability of a Gaussian blur, with a kernel of a tenth of the size and sigma from 0.2 to 2.
        scale: share of the image's area in a crop.
        ratio: of a crop's width to its height.
        mirror: probability of a mirrored view.
        jitter: probability of a colour jitter.
        grey: probability of a view without colours.

    Examples:
        >>> images = torch.randint(256, (8, 3, 32, 32), dtype=torch.uint8)
        >>> SimCLRPolicy(32)(images, views=4, seed=0, epoch=0, index=torch.arange(8)).shape
        torch.Size([8, 4, 3, 32, 32])
    """

    size: int
    strength: float = 0.5
    blur: float = 0.0
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    mirror: float = 0.5
    jitter: float = 0.8
    grey: float = 0.2

    def __post_init__(self) -> None:
        if not isinstance(self.size, int) or self.size < 1:
            raise ValueError(f"size must be a whole number >= 1, the height and width of a view, got {self.size!r}")
        for name in ("scale", "ratio"):
            value = getattr(self, name)
            if not isinstance(value, tuple | list) or len(value) != 2:
                raise ValueError(f"{name} must be two numbers, the least and the most, got {value!r}")
        if not 0 <= self.strength <= 2.5:
            raise ValueError(f"strength must lie between 0 and 2.5 (half a turn of hue), got {self.strength}")
        for name in ("blur", "mirror", "jitter", "grey"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is a probability, got {getattr(self, name)}")
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ValueError(f"scale must be 0 < low <= high <= 1, got {self.scale}")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise ValueError(f"ratio must be 0 < low <= high, got {self.ratio}")
        if self.blur and self.kernel // 2 >= self.size:
            raise ValueError(f"blur needs views larger than {self.size} pixels")

    @property
    def kernel(self) -> int:
        """Pixels of the blur's kernel: odd, 23 at 224."""
        return max(3, self.size // 10 | 1)

    def __call__(self, images: Images, *, views: int, seed: int, epoch: int, index: Tensor, first: int = 0) -> Tensor:
        """Views (B, N, C, size, size); `first` is the number of the first view."""
        crops = self.crops(images, views=views, seed=seed, epoch=epoch, index=index, first=first)
        return self.coloured(crops, seed=seed, epoch=epoch, index=index, first=first)

    def crops(self, images: Images, *, views: int, seed: int, epoch: int, index: Tensor, first: int = 0) -> Tensor:
        """Cropped, resized and mirrored views (B, N, C, size, size): float32, or uint8 of images of many sizes."""
        if views < 1:
            raise ValueError(f"views must be >= 1, got {views}")
        _check(images, index)
        index = index.to(images[0].device)
        with torch.autocast(index.device.type, enabled=False):
            return self._crops(images, views, seed, epoch, index, first)

    def _crops(self, images: Images, views: int, seed: int, epoch: int, index: Tensor, first: int) -> Tensor:
        draws = self._draws(_CROP, seed, epoch, index, views, first)
        box = crop.boxes(draws[..., :-1], crop.sizes_of(images).to(draws.device), self.scale, self.ratio)
        mirrored = draws[..., -1] < self.mirror
        if not isinstance(images, Tensor):
            return torch.stack(
                [crop.resized_each(image, b, self.size, m) for image, b, m in zip(images, box, mirrored, strict=True)]
            )
        out = images.new_empty(len(images), views, images.shape[1], self.size, self.size, dtype=torch.float32)
        each = max(1, (CHUNK if images.device.type == "cpu" else 16 * CHUNK) // views)
        for a in range(0, len(images), each):
            part = slice(a, a + each)
            crop.resized_batch(images[part], box[part], self.size, mirrored[part], out[part])
        return out

    def coloured(self, crops: Tensor, *, seed: int, epoch: int, index: Tensor, first: int = 0) -> Tensor:
        """Crops (B, N, C, size, size) with jitter, grey and blur; changed in place if they are float32."""
        if crops.dim() != 5 or crops.shape[2] not in (1, 3):
            raise ValueError(f"crops must be (instances, views, 1 or 3, height, width), got {tuple(crops.shape)}")
        scale = 1 / 255 if crops.dtype == torch.uint8 else 1.0
        crops = crops.to(torch.float32).contiguous()
        crops = crops if scale == 1 else crops.mul_(scale)
        draws = self._draws(_COLOUR, seed, epoch, index.to(crops.device), crops.shape[1], first).flatten(0, 1)
        with torch.autocast(crops.device.type, enabled=False):
            if crops.shape[2] == 3:
                self._colour(crops.flatten(0, 1), draws)
                return crops
            # A grey image as a colour one: brightness, contrast and blur change it, the others leave it.
            colour = crops.expand(-1, -1, 3, -1, -1).contiguous()
            self._colour(colour.flatten(0, 1), draws)
            return colour[:, :, :1].contiguous()

    def _colour(self, views: Tensor, draws: Tensor) -> None:
        """Change views (V, 3, H, W) by uniform numbers (V, _COLOUR)."""
        spread = draws.new_tensor([0.8, 0.8, 0.8, 0.2]) * self.strength
        centre = draws.new_tensor([1.0, 1.0, 1.0, 0.0])
        low = (centre - spread).clamp_min(0.0)
        low[3] = -spread[3]
        factors = low + draws[:, :4] * (centre + spread - low)
        order = (draws[:, 4] * len(colour.ORDERS)).long()
        order = order.masked_fill(draws[:, 5] >= self.jitter, len(colour.ORDERS))
        colour.jitter(views, factors, order)
        colour.grey(views, draws[:, 6] < self.grey)
        blurred = (draws[:, 7] < self.blur).nonzero().squeeze(1)
        if len(blurred):
            sigma = 0.2 + 1.8 * draws[blurred, 8]
            views[blurred] = colour.blur(views[blurred], sigma, self.kernel)

    @staticmethod
    def _draws(kind: range, seed: int, epoch: int, index: Tensor, views: int, first: int) -> Tensor:
        """Uniform numbers (B, N, len(kind))."""
        device = index.device
        number = torch.arange(first, first + views, device=device)[:, None]
        return uniform(
            seed,
            epoch,
            index.long()[:, None, None],
            number,
            torch.arange(kind.start, kind.stop, device=device),
        )


def _check(images: Images, index: Tensor) -> None:
    if not isinstance(index, Tensor):
        raise TypeError(f"index must be a tensor that numbers the images, got {type(index).__name__}")
    if len(images) == 0 or len(index) != len(images) or index.dim() != 1 or index.is_floating_point():
        raise ValueError(
            f"index must number each of {len(images)} images, at least one, got {index.dtype} {tuple(index.shape)}"
        )
    for image in [images] if isinstance(images, Tensor) else images:
        dims = 4 if isinstance(images, Tensor) else 3
        if image.dtype != torch.uint8 or image.dim() != dims or image.shape[-3] not in (1, 3):
            expected = "(instances, 1 or 3, height, width)" if dims == 4 else "(1 or 3, height, width) each"
            raise ValueError(f"images must be uint8 {expected}, got {image.dtype} {tuple(image.shape)}")


# Which draws of a view go into what; appended to, never renumbered, so that old seeds keep their views.
_CROP = range(2 * crop.ATTEMPTS + 3)
_COLOUR = range(64, 73)


@dataclass(frozen=True)
class MultiCrop:
    """Groups of views of different sizes, such as 2 at 224 and 6 at 96.

    Called as a policy, it gives one tensor (B, N, C, size, size) a group; views are numbered through all groups.

    Examples:
        >>> small = SimCLRPolicy(16, scale=(0.05, 0.4))
        >>> crops = MultiCrop([(SimCLRPolicy(32), 2), (small, 6)])
        >>> images = torch.randint(256, (8, 3, 32, 32), dtype=torch.uint8)
        >>> [tuple(v.shape) for v in crops(images, seed=0, epoch=0, index=torch.arange(8))]
        [(8, 2, 3, 32, 32), (8, 6, 3, 16, 16)]
    """

    groups: Sequence[tuple[SimCLRPolicy, int]]

    def __post_init__(self) -> None:
        if not self.groups or any(count < 1 for _, count in self.groups):
            raise ValueError(f"each group needs at least one view, got {[count for _, count in self.groups]}")

    @property
    def views(self) -> int:
        return sum(count for _, count in self.groups)

    def __call__(self, images: Images, *, seed: int, epoch: int, index: Tensor) -> list[Tensor]:
        crops = self.crops(images, seed=seed, epoch=epoch, index=index)
        return self.coloured(crops, seed=seed, epoch=epoch, index=index)

    def crops(self, images: Images, *, seed: int, epoch: int, index: Tensor) -> list[Tensor]:
        """The crops of each group, as `SimCLRPolicy.crops`."""
        key: dict[str, Any] = {"seed": seed, "epoch": epoch, "index": index}
        return [policy.crops(images, views=count, first=first, **key) for policy, count, first in self._numbered()]

    def coloured(self, crops: Sequence[Tensor], *, seed: int, epoch: int, index: Tensor) -> list[Tensor]:
        """The crops of each group with their colours changed, as `SimCLRPolicy.coloured`."""
        key: dict[str, Any] = {"seed": seed, "epoch": epoch, "index": index}
        groups = zip(crops, self._numbered(), strict=True)
        return [policy.coloured(group, first=first, **key) for group, (policy, _, first) in groups]

    def _numbered(self) -> list[tuple[SimCLRPolicy, int, int]]:
        """Each group's policy, its number of views and the number of its first one."""
        firsts = [0, *accumulate(count for _, count in self.groups)]
        return [(policy, count, first) for (policy, count), first in zip(self.groups, firsts, strict=False)]
