"""Stream images to an encoder: a folder of any size, one file, or a dataset."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import torch
from torch import Tensor

from manyviews.data import (
    IMAGE_EXTENSIONS,
    Dataset,
    DatasetDict,
    DatasetError,
    SkipCallback,
    as_path,
    get_canonical_split,
    is_image_folder,
    load_dataset,
    read_image,
    walk_images,
)
from manyviews.export.multimodal_embeddings import get_label_type, read_labels
from manyviews.export.writers import Label
from manyviews.loading import choose_eval_batch_size, iterate_file_crops
from manyviews.models import ImageEncoder
from manyviews.utils import check_finite, decode_file_name, encode_file_name, track


def warn_skipped(line: str) -> None:
    warnings.warn(f"skipped: {line}", stacklevel=2)


@dataclass(frozen=True)
class ImageCollection:
    r"""Images addressed by id: the path relative to a folder, or SPLIT/ID in a dataset (SPLIT/INDEX without ids).

    In the id of a file, a byte that is not UTF-8 is written as `\xff` and a backslash is doubled: ids are unique.

    Examples:
        >>> images = ImageCollection.open("photos")
        >>> images["test/17"].shape
        torch.Size([3, 32, 32])
    """

    source: str
    path: Path | None
    """Path of the folder or of the image; None for a dataset."""
    data: DatasetDict | None = None
    follow_links: bool = False

    @classmethod
    def open(cls, source: str | Path, follow_links: bool = False) -> ImageCollection:
        """Open a folder of images (labeled or not), an image file, or anything that `load_dataset` accepts."""
        path = as_path(source)
        if path and (is_image_folder(path) or (path.is_file() and path.suffix.lower() in IMAGE_EXTENSIONS)):
            return cls(str(source), path, follow_links=follow_links)
        data = load_dataset(source)
        for split in data.splits.values():
            _ = split.images  # raises if there are none
        return cls(str(source), None, data)

    @property
    def root(self) -> Path | None:
        return self.path if self.path is None or self.path.is_dir() else self.path.parent

    def __getitem__(self, name: str) -> Tensor:
        """Read the image (C, H, W) with this id.

        Raises:
            KeyError: there is no such image.
        """
        if self.root is not None:
            path = self.root / decode_file_name(name)
            if not path.is_file():
                raise KeyError(name)
            return read_image(path)
        assert self.data is not None
        split, _, image_id = name.partition("/")
        ids = _list_ids(self.data.splits[split]) if split in self.data.splits else ()
        if image_id not in ids:
            raise KeyError(name)
        return self.data[split].images[ids.index(image_id)]

    def encode(
        self, encoder: ImageEncoder, workers: int = 0, left_out: SkipCallback = warn_skipped
    ) -> Iterator[tuple[list[str], Tensor]]:
        """Yield ids and representations (B, dim) by batch, in the order of names; only one batch is in memory.

        Raises:
            DatasetError: no image can be read.
        """
        is_empty, first_skipped = True, ""

        def skip(line: str) -> None:
            nonlocal first_skipped
            first_skipped = first_skipped or f", first: {line}"
            left_out(line)

        batches = (
            self._iterate_files(encoder.size, skip, workers)
            if self.path
            else self._iterate_dataset(choose_eval_batch_size(encoder.size))
        )
        for names, images in track(batches, "images", None, lambda batch: len(batch[0])):
            is_empty = False
            h = encoder(images).float().cpu()
            check_finite(f"representations of {names[0]} and others", h)
            yield names, h
        if is_empty:
            raise DatasetError(
                f"{self.source} contains no readable image ({', '.join(sorted(IMAGE_EXTENSIONS))}){first_skipped}"
            )

    @property
    def label_type(self) -> type[str] | type[float]:
        """Type of the labels that `attach_labels` yields.

        Raises:
            DatasetError: there are no labels.
        """
        if self.data is not None:
            return get_label_type(self.data)
        assert self.path is not None
        if not self.path.is_dir() or not any(child.is_dir() for child in self.path.iterdir()):
            raise DatasetError(f"{self.source} has no class folders and so no labels: omit --labels")
        return str

    def attach_labels(
        self, batches: Iterable[tuple[list[str], Tensor]]
    ) -> Iterator[tuple[list[str], Tensor, list[Label]]]:
        """Add the label of each image to the batches of `encode`.

        A file's label is the name of its top-level folder (below the split's folder, if any), or "" without one.
        """
        if self.data is not None:
            splits = self.data.splits.items()
            all_labels = chain.from_iterable(
                read_labels(self.data, name, torch.arange(len(split))) for name, split in splits
            )
            for ids, vectors in batches:
                yield ids, vectors, list(islice(all_labels, len(ids)))
            return
        assert self.root is not None
        in_splits = any(get_canonical_split(child.name) == "train" for child in self.root.iterdir() if child.is_dir())
        for ids, vectors in batches:
            yield ids, vectors, [next(iter(image_id.split("/")[in_splits:-1]), "") for image_id in ids]

    def _iterate_dataset(self, batch_size: int) -> Iterator[tuple[list[str], Tensor]]:
        assert self.data is not None
        for name, split in self.data.splits.items():
            images, ids = split.images, _list_ids(split)
            assert isinstance(images, Tensor)
            for start in range(0, len(images), batch_size):
                batch = slice(start, start + batch_size)
                yield [f"{name}/{image_id}" for image_id in ids[batch]], images[batch]

    def _iterate_files(self, size: int, on_skip: SkipCallback, workers: int) -> Iterator[tuple[list[str], Tensor]]:
        assert self.path is not None
        assert self.root is not None
        paths = walk_images(self.path, on_skip, self.follow_links) if self.path.is_dir() else iter([str(self.path)])
        for batch in iterate_file_crops(paths, size, workers):
            names, views = [], []
            for path, view in batch:
                if isinstance(view, DatasetError):
                    on_skip(str(view))
                else:
                    names.append(encode_file_name(Path(os.path.relpath(path, self.root)).as_posix()))
                    views.append(view)
            if names:
                yield names, torch.stack(views)


def _list_ids(split: Dataset) -> Sequence[str]:
    return split.ids or [str(i) for i in range(len(split))]
