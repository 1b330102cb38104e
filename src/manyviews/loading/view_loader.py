"""Batches of views of images in memory, or on disk through worker processes."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils import data as torch_data

from manyviews.data import LazyImages
from manyviews.loading.workers import make_item_loader
from manyviews.transforms import MultiCrop, SimCLRTransform


@dataclass(frozen=True)
class ViewLoader:
    """Yields the views of each batch of an epoch, with the indices of their instances.

    Images in memory are a uint8 tensor and do not use workers. Images on disk are decoded and cropped in `num_workers`
    processes; colors are augmented in this process, in batches. Views do not depend on the number of workers. A corrupt
    file gives a warning and is replaced by the next readable image (or raises, with `raise_on_corrupt`).

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
        dataset = _CropDataset(self.images, self.multi_crop, self.seed, epoch)
        order = torch.cat(indices).tolist() if indices else []
        instances = iter(make_item_loader(dataset, order, self.num_workers, prefetch_factor=8))
        corrupt: set[str] = set()
        for index in indices:
            batch = [next(instances) for _ in index]
            new = sorted({line for _, _, lines in batch for line in lines} - corrupt)
            corrupt.update(new)
            for line in new:
                warnings.warn(f"{line}; replaced by the next image ({len(corrupt)} so far)", stacklevel=3)
            groups = zip(*(crops for crops, _, _ in batch), strict=True)
            yield [torch.stack(group) for group in groups], torch.tensor([i for _, i, _ in batch])


@dataclass(frozen=True)
class _CropDataset(torch_data.Dataset[tuple[list[Tensor], int, list[str]]]):
    """Returns the crops of an instance, its index, and the errors of corrupt images that it replaces."""

    images: LazyImages
    multi_crop: MultiCrop
    seed: int
    epoch: int

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[list[Tensor], int, list[str]]:
        image, actual, errors = self.images.read_or_next(index)
        groups = self.multi_crop.crop([image], seed=self.seed, epoch=self.epoch, index=torch.tensor([actual]))
        return [group[0] for group in groups], actual, errors
