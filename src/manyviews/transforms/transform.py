"""What a loader expects of a transform: views that are functions of (seed, epoch, index of the instance, view)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, TypeAlias

from torch import Tensor

ImageBatch: TypeAlias = Tensor | Sequence[Tensor]
"""uint8 images (B, C, H, W) of one size, or a sequence of (C, H, W) of any sizes."""


class ImageTransform(ABC):
    """Maps images to views in two steps: crops, which workers make of files, and colors, in batches on the device."""

    size: int
    """Height and width of a view."""
    uses_workers: ClassVar[bool] = False
    """Whether crops are slow enough to be made in worker processes, also of images in memory."""

    @abstractmethod
    def crop(
        self, images: ImageBatch, *, views: int, seed: int, epoch: int, index: Tensor, first_view: int = 0
    ) -> Tensor:
        """Crop, resize and flip: (B, N, C, size, size), float32 in [0, 1] or uint8."""

    @abstractmethod
    def augment_color(self, crops: Tensor, *, seed: int, epoch: int, index: Tensor, first_view: int = 0) -> Tensor:
        """Change the colors of crops: float32 (B, N, C, size, size) in [0, 1]."""


class FeatureTransform(ABC):
    """Maps features, sequences or texts to views."""

    @abstractmethod
    def make_views(
        self,
        values: Tensor,
        lengths: Tensor | None,
        *,
        views: int,
        seed: int,
        epoch: int,
        index: Tensor,
        first_view: int = 0,
    ) -> tuple[Tensor, Tensor | None]:
        """Map values (B, ...) and lengths (B,), None for vectors, to views (B, N, ...) and lengths (B, N)."""


Transform: TypeAlias = ImageTransform | FeatureTransform
