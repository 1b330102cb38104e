"""Batches of center crops, from memory or from files."""

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor
from torch.utils import data as torch_data

from manyviews.data import DatasetError, LazyImages, read_image
from manyviews.loading.workers import make_item_loader
from manyviews.transforms import center_crop, center_crop_batch

EVAL_BATCH_SIZE = 256
"""Images per batch, up to 224 x 224 pixels."""


def choose_eval_batch_size(size: int) -> int:
    """Return the number of images per batch: fewer above 224 x 224, so that a batch takes no more memory."""
    return max(1, min(EVAL_BATCH_SIZE, EVAL_BATCH_SIZE * 224**2 // size**2))


def iterate_center_crops(
    images: Tensor | LazyImages, index: Tensor, size: int, num_workers: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """Iterate over batches of center crops (B, C, size, size) of the instances in `index`, with their indices (B,).

    A file that cannot be decoded is skipped with a warning, or raises if `images.raise_on_corrupt`.
    """
    if isinstance(images, Tensor):
        for batch_index in index.split(choose_eval_batch_size(size)):
            yield center_crop_batch(images[batch_index.to(images.device)], size), batch_index
        return
    paths = images.paths
    remaining = iter(index.tolist())
    for batch in iterate_file_crops((str(paths[i]) for i in index.tolist()), size, num_workers):
        views, indices = [], []
        for (_, view), i in zip(batch, remaining, strict=False):
            if isinstance(view, DatasetError):
                if images.raise_on_corrupt:
                    raise view
                warnings.warn(f"{view}; skipped", stacklevel=2)
            else:
                views.append(view)
                indices.append(i)
        if views:
            yield torch.stack(views).float().div_(255), torch.tensor(indices)


def iterate_file_crops(
    paths: Iterable[str], size: int, num_workers: int = 0
) -> Iterator[list[tuple[str, Tensor | DatasetError]]]:
    """Iterate over batches of (path, uint8 center crop (3, size, size) or the error); `paths` is consumed lazily."""
    batch_size = choose_eval_batch_size(size)
    crops = iter(make_item_loader(_FileCrops(size), paths, num_workers, min(16, batch_size)))
    while batch := list(islice(crops, batch_size)):
        yield batch


@dataclass(frozen=True)
class _FileCrops(torch_data.Dataset[tuple[str, Tensor | DatasetError]]):
    size: int

    def __getitem__(self, path: str) -> tuple[str, Tensor | DatasetError]:
        try:
            return path, center_crop(read_image(Path(path)), self.size)[0]
        except DatasetError as error:
            return path, error
