"""What a loader expects of a transform: views that are functions of (seed, epoch, index of the instance, view)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

from torch import Tensor

from manyviews.data import Media

MediaT = TypeVar("MediaT", bound=Media)
ImageBatch: TypeAlias = Tensor | Sequence[Tensor]
"""uint8 images (B, C, H, W) of one size, or a sequence of (C, H, W) of any sizes."""


class ImageTransform(ABC):
    """Maps images to views in two steps: crops, which workers make of files, and colors, in batches on the device.

    Examples:
        >>> import torch
        >>> class Whole(ImageTransform):
        ...     size = 32
        ...     def crop(self, images, *, views, **key):
        ...         return images[:, None].expand(-1, views, -1, -1, -1)
        ...     def augment_color(self, crops, **key):
        ...         return crops / 255
        >>> Whole().crop(torch.zeros(8, 3, 32, 32, dtype=torch.uint8), views=2).shape
        torch.Size([8, 2, 3, 32, 32])
    """

    size: int
    """Height and width of a view."""
    uses_workers: ClassVar[bool] = False
    """Whether crops are slow enough to be made in worker processes, also of images in memory."""
    is_random: ClassVar[bool] = True
    """Whether views depend on the epoch or on the position of the view."""

    @abstractmethod
    def crop(
        self, images: ImageBatch, *, views: int, seed: int, epoch: int, index: Tensor, first_view: int = 0
    ) -> Tensor:
        """Crop, resize and flip: (B, N, C, size, size), float32 in [0, 1] or uint8."""

    @abstractmethod
    def augment_color(self, crops: Tensor, *, seed: int, epoch: int, index: Tensor, first_view: int = 0) -> Tensor:
        """Change the colors of crops: float32 (B, N, C, size, size) in [0, 1]."""


class FeatureTransform(ABC):
    """Maps features, sequences or texts to views.

    Examples:
        >>> import torch
        >>> class Mirror(FeatureTransform):
        ...     def make_views(self, values, lengths, *, views, **key):
        ...         return torch.stack([values, -values], 1)[:, :views], lengths
        >>> Mirror().make_views(torch.ones(5, 40), None, views=2)[0].shape
        torch.Size([5, 2, 40])
    """

    is_random: ClassVar[bool] = True
    """Whether views depend on the epoch or on the position of the view."""

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


class ClipTransform(ABC, Generic[MediaT]):
    """Maps recordings to views in two steps: clips, which workers decode, and what is done in batches on the device.

    Examples:
        >>> import torch
        >>> class Seconds(ClipTransform):
        ...     def read_views(self, column, i, *, views, **key):
        ...         return [torch.tensor([column.read_seconds(i)])] * views
        ...     def collate(self, views, column):
        ...         return torch.stack(views), None
        >>> Seconds().collate([torch.tensor([3.2]), torch.tensor([1.5])], None)[0].shape
        torch.Size([2, 1])
    """

    is_random: bool = True
    """Whether views depend on the epoch or on the position of the view."""

    @abstractmethod
    def read_views(
        self, column: MediaT, i: int, *, views: int, seed: int, epoch: int, first_view: int = 0
    ) -> list[Tensor]:
        """Read the views of one recording; those of audio may have different lengths."""

    @abstractmethod
    def collate(self, views: Sequence[Tensor], column: MediaT) -> tuple[Tensor, Tensor | None]:
        """Make a batch (P, ...) of P views, which may be none, and the lengths (P,) of audio."""

    def finish_views(self, values: Tensor, *, seed: int, epoch: int, index: Tensor, first_view: int = 0) -> Tensor:  # noqa: ARG002
        """Change views (B, N, ...) of a batch on the device."""
        return values


Transform: TypeAlias = ImageTransform | FeatureTransform | ClipTransform[Any]
