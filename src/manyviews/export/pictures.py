"""Images to encode as they come: a folder of any size, one file, or a data set."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import torch
from torch import Tensor

from manyviews.data import Dataset, DatasetError, Split, load_dataset, path_of, read_image
from manyviews.data.dataset import split_of
from manyviews.data.files import ENDINGS, LeftOut, walk_images
from manyviews.data.load import is_plain_folder
from manyviews.evaluation.knn import check_finite
from manyviews.evaluation.progress import tracked
from manyviews.export.instances import get_label_type, read_labels
from manyviews.export.vectors import Label
from manyviews.models import ImageEncoder
from manyviews.utils.text import decode_file_name, encode_file_name
from manyviews.views.plain import batch_size, plain_files


def warn(line: str) -> None:
    warnings.warn(f"left out: {line}", stacklevel=2)


@dataclass(frozen=True)
class Pictures:
    r"""Images by their ids: the path below a folder, or SPLIT/ID in a data set (SPLIT/ROW where it has no ids).

    In the id of a file a byte that is not UTF-8 is `\xff`, and a backslash is two: no two files have the same id.

    Examples:
        >>> pictures = Pictures.of("photos")
        >>> pictures["test/17"].shape
        torch.Size([3, 32, 32])
    """

    source: str
    path: Path | None
    """Of a folder, or of one image."""
    data: Dataset | None = None
    follow_links: bool = False

    @classmethod
    def of(cls, source: str | Path, follow_links: bool = False) -> Pictures:
        """A folder of images, labelled or not; an image; or what `load_dataset` takes."""
        path = path_of(source)
        if path and (is_plain_folder(path) or (path.is_file() and path.suffix.lower() in ENDINGS)):
            return cls(str(source), path, follow_links=follow_links)
        data = load_dataset(source)
        for part in data.splits.values():
            _ = part.images  # raises where there are none
        return cls(str(source), None, data)

    @property
    def folder(self) -> Path | None:
        return self.path if self.path is None or self.path.is_dir() else self.path.parent

    def __getitem__(self, name: str) -> Tensor:
        """The image (C, H, W) of an id.

        Raises:
            KeyError: there is none.
        """
        if self.folder is not None:
            path = self.folder / decode_file_name(name)
            if not path.is_file():
                raise KeyError(name)
            return read_image(path)
        assert self.data is not None
        split, _, own = name.partition("/")
        ids = _list_ids(self.data.splits[split]) if split in self.data.splits else ()
        if own not in ids:
            raise KeyError(name)
        return self.data[split].images[ids.index(own)]

    def encoded(
        self, encoder: ImageEncoder, workers: int = 0, left_out: LeftOut = warn
    ) -> Iterator[tuple[list[str], Tensor]]:
        """Ids and representations (B, dim), batch by batch, in the order of names: no more is held than a batch.

        Raises:
            DatasetError: there is not one image that can be read.
        """
        found, why = False, ""

        def leave_out(line: str) -> None:
            nonlocal why
            why = why or f", first: {line}"
            left_out(line)

        batches = self._files(encoder.size, leave_out, workers) if self.path else self._arrays(batch_size(encoder.size))
        for names, images in tracked(batches, "images", None, lambda batch: len(batch[0])):
            found = True
            h = encoder(images).float().cpu()
            check_finite(f"representations of {names[0]} and others", h)
            yield names, h
        if not found:
            raise DatasetError(f"{self.source} holds no image that can be read ({', '.join(sorted(ENDINGS))}){why}")

    @property
    def label_type(self) -> type[str] | type[float]:
        """Of the labels that `attach_labels` gives.

        Raises:
            DatasetError: there are none.
        """
        if self.data is not None:
            return get_label_type(self.data)
        assert self.path is not None
        if not self.path.is_dir() or not any(child.is_dir() for child in self.path.iterdir()):
            raise DatasetError(f"{self.source} has no folders of classes, and so no labels: leave --labels out")
        return str

    def attach_labels(
        self, batches: Iterable[tuple[list[str], Tensor]]
    ) -> Iterator[tuple[list[str], Tensor, list[Label]]]:
        """The batches of `encoded`, with the label of each image.

        Of files it is the name of the folder directly below the folder, or below that of a split; "" beside these.
        """
        if self.data is not None:
            splits = self.data.splits.items()
            every = chain.from_iterable(
                read_labels(self.data, split, torch.arange(len(part))) for split, part in splits
            )
            for ids, vectors in batches:
                yield ids, vectors, list(islice(every, len(ids)))
            return
        assert self.folder is not None
        in_splits = any(split_of(child.name) == "train" for child in self.folder.iterdir() if child.is_dir())
        for ids, vectors in batches:
            yield ids, vectors, [next(iter(one.split("/")[in_splits:-1]), "") for one in ids]

    def _arrays(self, count: int) -> Iterator[tuple[list[str], Tensor]]:
        assert self.data is not None
        for split, part in self.data.splits.items():
            images, ids = part.images, _list_ids(part)
            assert isinstance(images, Tensor)
            for first in range(0, len(images), count):
                yield [f"{split}/{one}" for one in ids[first : first + count]], images[first : first + count]

    def _files(self, size: int, left_out: LeftOut, workers: int) -> Iterator[tuple[list[str], Tensor]]:
        assert self.path is not None
        assert self.folder is not None
        paths = walk_images(self.path, left_out, self.follow_links) if self.path.is_dir() else iter([str(self.path)])
        for batch in plain_files(paths, size, workers):
            names, views = [], []
            for path, view in batch:
                if isinstance(view, DatasetError):
                    left_out(str(view))
                else:
                    names.append(encode_file_name(Path(os.path.relpath(path, self.folder)).as_posix()))
                    views.append(view)
            if names:
                yield names, torch.stack(views)


def _list_ids(split: Split) -> Sequence[str]:
    return split.ids or [str(number) for number in range(len(split))]
