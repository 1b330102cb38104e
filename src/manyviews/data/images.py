"""Images, in memory or on disk."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from manyviews.data.column import Column
from manyviews.data.errors import DatasetError
from manyviews.data.image_files import CorruptImageError, ImageSource, LazyImages

MAX_INFERRED_SIZE = 224
"""Maximum height and width of views if none is set."""


@dataclass(frozen=True, eq=False, repr=False)
class Images(Column):
    """Images: uint8 (n, C, H, W), or an `ImageSource` that reads them when they are needed.

    An instance has one or, with `counts`, any number of them.

    Examples:
        >>> Images(torch.zeros(5, 3, 32, 32, dtype=torch.uint8)).describe()
        'images of 3 x 32 x 32'
        >>> Images(torch.zeros(5, 3, 32, 32, dtype=torch.uint8), counts=torch.tensor([2, 0, 3])).describe()
        'images of 3 x 32 x 32, 2 to 3 per instance'
    """

    kind = "image"
    default_encoder = "resnet-small"
    min_size = 1
    uses_batch_norm = True
    default_optimizer = "sgd"
    default_epochs = 10
    min_steps = 0
    values: Tensor | ImageSource = field(repr=False)
    """All images, those of an instance after one another."""
    counts: Tensor | None = field(default=None, repr=False)
    """Number of images of each instance (n,), 0 if they are missing; None means one each."""

    def __post_init__(self) -> None:
        if isinstance(self.values, Tensor) and (self.values.dim() != 4 or self.values.dtype != torch.uint8):
            got = f"{self.values.dtype} {tuple(self.values.shape)}"
            raise DatasetError(f"images must be uint8 (n, C, H, W), got {got}")
        if isinstance(self.values, Tensor) and self.values.shape[1] not in (1, 3):
            shape = tuple(self.values.shape)
            hint = "images.permute(0, 3, 1, 2)" if shape[3] in (1, 3) else "images[:, :3] for the first three"
            raise DatasetError(f"images must be (n, C, H, W) with 1 or 3 channels C, got {shape}: try {hint}")
        if self.counts is None:
            return
        if self.counts.dim() != 1 or (self.counts < 0).any() or int(self.counts.sum()) != len(self.values):
            raise DatasetError(
                f"counts must be the number of images of each instance, {len(self.values):,} in total, got "
                f"{tuple(self.counts.shape)} with a sum of {int(self.counts.sum()):,}"
            )
        if not self.counts.all():
            object.__setattr__(self, "mask", self.get_mask() & (self.counts > 0))

    def __len__(self) -> int:
        return len(self.values if self.counts is None else self.counts)

    @property
    def reads_files(self) -> bool:
        return not isinstance(self.values, Tensor)

    @property
    def paths(self) -> tuple[Path, ...]:
        """File of each instance; empty if images are not files, or if an instance may have several."""
        return self.values.paths if isinstance(self.values, LazyImages) and self.counts is None else ()

    @property
    def raise_on_corrupt(self) -> bool:
        """Whether a corrupt file is an error, and not only skipped with a warning."""
        return not isinstance(self.values, Tensor) and self.values.raise_on_corrupt

    @cached_property
    def starts(self) -> Tensor:
        """Index (n,) of the first image of each instance in `values`."""
        return torch.arange(len(self)) if self.counts is None else self.counts.cumsum(0) - self.counts

    @cached_property
    def sizes(self) -> list[tuple[int, int] | CorruptImageError]:
        """Height and width of each image, for files from their headers, or why an image cannot be read."""
        if isinstance(self.values, Tensor):
            return [(self.values.shape[2], self.values.shape[3])] * len(self.values)
        sizes: list[tuple[int, int] | CorruptImageError] = []
        for i in range(len(self.values)):
            try:
                sizes.append(self.values.get_size(i))
            except CorruptImageError as error:  # noqa: PERF203 (each file may be corrupt)
                sizes.append(error)
        return sizes

    def select(self, index: Tensor) -> Images:
        values, counts, image_index = self.values, None, index
        if self.counts is not None:
            counts = self.counts[index]
            offsets = self.starts[index] - (counts.cumsum(0) - counts)
            image_index = torch.arange(int(counts.sum())) + offsets.repeat_interleave(counts)
        if isinstance(values, Tensor):
            return Images(values[image_index], counts, mask=self._select_mask(index))
        return Images(values.select(image_index.tolist()), counts, mask=self._select_mask(index))

    def describe(self) -> str:
        if isinstance(self.values, Tensor):
            return "images of " + " x ".join(map(str, self.values.shape[1:])) + self._describe_counts()
        readable = (size for size in self.sizes if isinstance(size, tuple))
        sizes = sorted(readable, key=lambda size: size[0] * size[1])
        if not sizes:
            return "images on disk"
        smallest, largest = (" x ".join(map(str, size)) for size in (sizes[0], sizes[-1]))
        span = f"{smallest} to {largest}" if smallest != largest else smallest
        return f"images on disk of {span}{self._describe_counts()}"

    def _describe_counts(self) -> str:
        if self.counts is None or self.counts.max() <= 1:
            return ""
        low, high = int(self.counts[self.counts > 0].min()), int(self.counts.max())
        return f", {low} to {high} per instance" if low != high else f", {low} per instance"

    def list_content(self) -> list[Tensor | bytes]:
        """List the pixels, or the relative paths and sizes of the files; and the counts."""
        counts = [] if self.counts is None else [self.counts, self.get_mask()]
        if isinstance(self.values, Tensor):
            return [self.values, *([] if self.mask is None else [self.mask]), *counts]
        return [*self.values.list_content(), *counts]

    def show(self, i: int) -> Tensor:
        """Return the first image of an instance (C, H, W)."""
        return self.values[int(self.starts[i])]

    @classmethod
    def make_example(cls, size: int) -> Tensor:
        """Make a black image (1, 3, size, size)."""
        return torch.zeros(1, 3, size, size)

    def choose_size(self, size: int, default: int) -> int:
        return size or default

    def is_augmented(self, augment_features: str, num_views: int) -> bool:  # noqa: ARG002 (for features)
        """Return True: images are always augmented."""
        return True

    def infer_size(self) -> int:
        """Return the median shorter side of up to 16 images, at most MAX_INFERRED_SIZE."""
        if isinstance(self.values, Tensor):
            return min(MAX_INFERRED_SIZE, *self.values.shape[-2:])
        step = -(-len(self.values) // 16)
        sample = [self.values.read_or_next(i)[0] for i in range(0, len(self.values), step)]
        return min(MAX_INFERRED_SIZE, statistics.median_low(min(image.shape[-2:]) for image in sample))
