"""Stream images to an encoder: a folder of any size, one file, or a dataset."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
from manyviews.export.writers import Batch, Label
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
    follow_symlinks: bool = False

    @classmethod
    def open(cls, source: str | Path, follow_symlinks: bool = False) -> ImageCollection:
        """Open a folder of images (labeled or not), an image file, or anything that `load_dataset` accepts."""
        path = as_path(source)
        if path and (is_image_folder(path) or (path.is_file() and path.suffix.lower() in IMAGE_EXTENSIONS)):
            return cls(str(source), path, follow_symlinks=follow_symlinks)
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
        self, encoder: ImageEncoder, num_workers: int = 0, on_skip: SkipCallback = warn_skipped
    ) -> Iterator[Batch]:
        """Yield ids, representations (B, dim) and labels by batch, in the order of names; one batch is in memory.

        The label of a file is the name of its top-level folder (below the split's folder, if any), or "" without one.
        For a dataset without labels they are empty.

        Raises:
            DatasetError: no image can be read.
        """
        is_empty, first_skipped = True, ""

        def skip(line: str) -> None:
            nonlocal first_skipped
            first_skipped = first_skipped or f", first: {line}"
            on_skip(line)

        batches = (
            self._iterate_files(encoder.size, num_workers, skip) if self.path else self._iterate_data(encoder.size)
        )
        for ids, images, labels in track(batches, "images", None, lambda batch: len(batch[0])):
            is_empty = False
            h = encoder(images).float().cpu()
            check_finite(f"representations of {ids[0]} and others", h)
            yield ids, h, labels
        if is_empty:
            extensions = ", ".join(sorted(IMAGE_EXTENSIONS))
            raise DatasetError(f"{self.source} contains no readable image ({extensions}){first_skipped}")

    @property
    def label_type(self) -> type[str] | type[float]:
        """Type of the labels that `encode` yields.

        Raises:
            DatasetError: there are no labels.
        """
        if self.data is not None:
            return get_label_type(self.data)
        assert self.path is not None
        if not self.path.is_dir() or not any(child.is_dir() for child in self.path.iterdir()):
            raise DatasetError(f"{self.source} has no class folders and so no labels: omit --labels")
        return str

    def _iterate_data(self, size: int) -> Iterator[Batch]:
        assert self.data is not None
        for name, split in self.data.splits.items():
            images, ids = split.images, _list_ids(split)
            assert isinstance(images, Tensor)
            for index in torch.arange(len(split)).split(choose_eval_batch_size(size)):
                yield [f"{name}/{ids[i]}" for i in index.tolist()], images[index], read_labels(self.data, name, index)

    def _iterate_files(self, size: int, num_workers: int, on_skip: SkipCallback) -> Iterator[Batch]:
        assert self.path is not None
        assert self.root is not None
        in_splits = any(get_canonical_split(child.name) == "train" for child in self.root.iterdir() if child.is_dir())
        paths = walk_images(self.path, on_skip, self.follow_symlinks) if self.path.is_dir() else iter([str(self.path)])
        for batch in iterate_file_crops(paths, size, num_workers):
            images = {}
            for path, image in batch:
                if isinstance(image, DatasetError):
                    on_skip(str(image))
                else:
                    images[encode_file_name(Path(os.path.relpath(path, self.root)).as_posix())] = image
            if images:
                labels: list[Label] = [next(iter(name.split("/")[in_splits:-1]), "") for name in images]
                yield list(images), torch.stack(list(images.values())), labels


def _list_ids(split: Dataset) -> Sequence[str]:
    return split.ids or [str(i) for i in range(len(split))]
