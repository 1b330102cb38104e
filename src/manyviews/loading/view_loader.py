"""Batches of views of images in memory, or on disk through worker processes."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.utils import data as torch_data

from manyviews.data import LazyImages
from manyviews.loading.workers import make_item_loader
from manyviews.transforms import MultiCrop, SimCLRTransform

PREFETCH_BATCHES = 2
"""Batches that each worker reads ahead."""


@dataclass(frozen=True)
class ViewLoader:
    """Yields the views of each batch of an epoch, with the indices of their instances.

    Images in memory are a uint8 tensor and do not use workers. Images on disk are decoded and cropped in `num_workers`
    processes, which live as long as the loader; colors are augmented in this process, in batches. Views do not depend
    on the number of workers. A corrupt file gives a warning and is replaced by the next readable image (or raises, with
    `raise_on_corrupt`).

    Examples:
        >>> from manyviews.loading import list_epoch_batches
        >>> images = torch.randint(256, (8, 3, 32, 32), dtype=torch.uint8)
        >>> batches = list_epoch_batches(8, 4, seed=0, epoch=0)
        >>> for views, index in ViewLoader(images, SimCLRTransform(32), views=3)(0, batches):
        ...     print(tuple(views.shape), len(index))
        (4, 3, 3, 32, 32) 4
        (4, 3, 3, 32, 32) 4
    """

    images: Tensor | LazyImages
    transform: SimCLRTransform | MultiCrop
    views: int | None = None
    """Views per instance; None for a `MultiCrop`, which defines it."""
    seed: int = 0
    num_workers: int = 0
    device: torch.device | None = None
    """Device of the views; default: the device of the images."""

    def __post_init__(self) -> None:
        if isinstance(self.transform, MultiCrop) != (self.views is None):
            raise ValueError("views is required with a SimCLRTransform, and not allowed with a MultiCrop")

    @property
    def multi_crop(self) -> MultiCrop:
        transform = self.transform
        return transform if isinstance(transform, MultiCrop) else MultiCrop([(transform, self.views or 0)])

    def __call__(self, epoch: int, indices: list[Tensor]) -> Iterator[tuple[Tensor | list[Tensor], Tensor]]:
        """Yield (views, index) for each batch."""
        for crops, index in self._iterate_crops(epoch, indices):
            groups = [group.to(self.device or group.device, non_blocking=True) for group in crops]
            views = self.multi_crop.augment_color(groups, seed=self.seed, epoch=epoch, index=index.to(groups[0].device))
            yield views if isinstance(self.transform, MultiCrop) else views[0], index

    def _iterate_crops(self, epoch: int, indices: list[Tensor]) -> Iterator[tuple[list[Tensor], Tensor]]:
        if isinstance(self.images, Tensor):
            for index in indices:
                local = index.to(self.images.device)
                yield self.multi_crop.crop(self.images[local], seed=self.seed, epoch=epoch, index=local), index
            return
        self._sampler.batches = [(epoch, index) for index in indices]
        corrupt: set[str] = set()
        for groups, actual, errors in self._loader:
            new = sorted(set(errors) - corrupt)
            corrupt.update(new)
            for line in new:
                warnings.warn(f"{line}; replaced by the next image ({len(corrupt)} so far)", stacklevel=3)
            yield groups, actual

    @cached_property
    def _sampler(self) -> _BatchSampler:
        return _BatchSampler()

    @cached_property
    def _loader(self) -> torch_data.DataLoader[_Crops]:
        """The workers that read files; they live as long as this loader."""
        assert isinstance(self.images, LazyImages)
        dataset, device = _CropDataset(self.images, self.multi_crop, self.seed), self.device
        pin_memory = device is not None and device.type == "cuda"
        return make_item_loader(dataset, self._sampler, self.num_workers, PREFETCH_BATCHES, pin_memory, persistent=True)


_Crops = tuple[list[Tensor], Tensor, list[str]]
"""Crops (B, V, C, S, S) of each size, indices (B,), and the errors of corrupt images that were replaced."""


class _BatchSampler(Iterable[tuple[int, Tensor]]):
    """Yields the epoch and the indices of each batch; the list is replaced for each epoch."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, Tensor]] = []

    def __iter__(self) -> Iterator[tuple[int, Tensor]]:
        return iter(self.batches)


@dataclass(frozen=True)
class _CropDataset(torch_data.Dataset[_Crops]):
    """Reads and crops the images of a batch: one message to the main process."""

    images: LazyImages
    multi_crop: MultiCrop
    seed: int

    def __getitem__(self, batch: tuple[int, Tensor]) -> _Crops:
        epoch, index = batch
        crops, indices, errors = [], [], []
        for i in index.tolist():
            image, actual, messages = self.images.read_or_next(i)
            crops.append(self.multi_crop.crop([image], seed=self.seed, epoch=epoch, index=torch.tensor([actual])))
            indices.append(actual)
            errors += messages
        return [torch.cat(group) for group in zip(*crops, strict=True)], torch.tensor(indices), errors
