"""The one view without chance: what is encoded when nothing is trained."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor
from torch.utils import data as torch_data

from manyviews.data import DatasetError, ImageFiles, read_image
from manyviews.views import crop
from manyviews.views.batching import init_worker

MARGIN = 7 / 8
"""Share of the shorter side in the central square, as 224 of 256."""
PIECE = 256
"""Views of a batch, if they are not large."""


def batch_size(size: int) -> int:
    """Views of a batch: fewer of those larger than 224 x 224, so that a batch takes no more memory."""
    return max(1, min(PIECE, PIECE * 224**2 // size**2))


def natural_size(images: Tensor | ImageFiles) -> int:
    """Of views: the shorter side of images like most, at most 224; one that is tiny does not decide for all."""
    if isinstance(images, Tensor):
        return min(224, *images.shape[-2:])
    some = [images.whole(number)[0] for number in range(0, len(images), -(-len(images) // 16))]
    return min(224, statistics.median_low(min(image.shape[-2:]) for image in some))


def plain_views(images: Tensor | Sequence[Tensor], size: int) -> Tensor:
    """Images uint8 (B, C, H, W), or a sequence of (C, H, W), as floats in [0, 1] (B, C, size, size).

    Images of that size stay as they are; of others the central square is resized.

    Examples:
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


def plain_batches(
    images: Tensor | ImageFiles, index: Tensor, size: int, workers: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """Plain views (B, C, size, size) of the instances in `index`, batch by batch, and which instances they are.

    A file that cannot be read is left out, with a warning; of strict images it is an error.
    """
    if isinstance(images, Tensor):
        for part in index.split(batch_size(size)):
            yield plain_views(images[part.to(images.device)], size), part
        return
    paths = images.paths
    numbers = iter(index.tolist())
    for batch in plain_files((str(paths[number]) for number in index.tolist()), size, workers):
        views, places = [], []
        for (_, view), number in zip(batch, numbers, strict=False):
            if isinstance(view, DatasetError):
                if images.strict:
                    raise view
                warnings.warn(f"{view}; it is left out", stacklevel=2)
            else:
                views.append(view)
                places.append(number)
        if views:
            yield torch.stack(views).float().div_(255), torch.tensor(places)


def plain_files(paths: Iterable[str], size: int, workers: int = 0) -> Iterator[list[tuple[str, Tensor | DatasetError]]]:
    """Batches of a path and its plain view (3, size, size) uint8, or why there is none; files are read as they come."""
    loader = torch_data.DataLoader(
        _PlainFiles(size),
        sampler=paths,
        batch_size=None,
        num_workers=workers,
        prefetch_factor=min(16, batch_size(size)) if workers else None,
        worker_init_fn=init_worker,
    )
    views = iter(loader)
    while batch := list(islice(views, batch_size(size))):
        yield batch


@dataclass(frozen=True)
class _PlainFiles(torch_data.Dataset[tuple[str, Tensor | DatasetError]]):
    size: int

    def __getitem__(self, path: str) -> tuple[str, Tensor | DatasetError]:
        try:
            return path, _plain(read_image(Path(path)), self.size)[0]
        except DatasetError as error:
            return path, error
