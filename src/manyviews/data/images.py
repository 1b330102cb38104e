"""Images, in memory or on disk."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from manyviews.data.column import Column
from manyviews.data.errors import DatasetError
from manyviews.data.image_files import LazyImages, check_image_header


@dataclass(frozen=True, eq=False)
class Images(Column):
    """Images: uint8 (n, C, H, W), or files that are read when they are needed.

    Examples:
        >>> Images(torch.zeros(5, 3, 32, 32, dtype=torch.uint8)).describe()
        'images of 3 x 32 x 32'
    """

    kind = "image"
    values: Tensor | LazyImages = field(repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.values, Tensor) and (self.values.dim() != 4 or self.values.dtype != torch.uint8):
            got = f"{self.values.dtype} {tuple(self.values.shape)}"
            raise DatasetError(f"images must be uint8 (n, C, H, W), got {got}")

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def sizes(self) -> list[tuple[int, int]]:
        """Height and width of each image; for files, from their headers."""
        if isinstance(self.values, Tensor):
            return [(self.values.shape[2], self.values.shape[3])] * len(self)
        return [check_image_header(path) for path in self.values.paths]

    def select(self, index: Tensor) -> Images:
        values = self.values
        if isinstance(values, Tensor):
            return Images(values[index], mask=self._select_mask(index))
        paths = tuple(values.paths[i] for i in index.tolist())
        return Images(replace(values, paths=paths), mask=self._select_mask(index))

    def describe(self) -> str:
        if isinstance(self.values, Tensor):
            return "images of " + " x ".join(map(str, self.values.shape[1:]))
        sizes = sorted(self.sizes, key=lambda size: size[0] * size[1])
        smallest, largest = (" x ".join(map(str, size)) for size in (sizes[0], sizes[-1]))
        return f"images on disk of {smallest}" + (f" to {largest}" if smallest != largest else "")

    def list_content(self) -> list[Tensor | bytes]:
        """List the pixels, or the relative paths and sizes of the files."""
        if isinstance(self.values, Tensor):
            return [self.values, *([] if self.mask is None else [self.mask])]
        root = os.path.commonpath([path.parent for path in self.values.paths])
        return [os.fsencode(f"{p.relative_to(root).as_posix()} {p.stat().st_size}\n") for p in self.values.paths]

    def load(self, index: Tensor) -> tuple[Tensor, Tensor]:
        return self._get_pixels()[index], torch.ones(len(index), dtype=torch.long)

    def summarize(self, summary: str, steps: int) -> Tensor:  # noqa: ARG002 (for sequences)
        return self._get_pixels().flatten(1) / 255

    def _get_pixels(self) -> Tensor:
        if not isinstance(self.values, Tensor):
            raise DatasetError("images among other modalities must be in memory, these are on disk")
        return self.values
