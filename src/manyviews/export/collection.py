"""`Collection`: instances to encode or to search, addressed by id: a folder of images of any size, or a dataset."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

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
from manyviews.export.vector_model import VectorModel
from manyviews.export.writers import Batch, Label
from manyviews.loading import choose_loader_batch_size, iterate_file_crops, make_eval_loader
from manyviews.models import Encoder, ViewBatch
from manyviews.runs import Run
from manyviews.utils import EVAL_EPOCH, decode_file_name, encode_file_name, track


def warn_skipped(line: str) -> None:
    warnings.warn(f"skipped: {line}", stacklevel=2)


@dataclass(frozen=True)
class Collection:
    r"""Instances addressed by id: the path relative to a folder, or SPLIT/ID in a dataset (SPLIT/INDEX without ids).

    In the id of a file, a byte that is not UTF-8 is written as `\xff` and a backslash is doubled: ids are unique.
    If the library split the data (`DatasetDict.split_rule`), an id is the row in the file.

    Examples:
        >>> photos = Collection.open("photos")
        >>> photos.show("test/17").shape
        torch.Size([3, 32, 32])
    """

    source: str
    path: Path | None
    """Path of the folder or of the image; None for a dataset."""
    data: DatasetDict | None = None
    follow_symlinks: bool = False

    @classmethod
    def open(
        cls,
        source: str | Path,
        follow_symlinks: bool = False,
        table_options: Mapping[str, Any] = MappingProxyType({}),
    ) -> Collection:
        """Open a folder of images (labeled or not), an image file, or anything that `load_dataset` accepts.

        `table_options` are options of `load_dataset` about the columns of a table; those about columns that the data
        does not have are ignored.
        """
        path = as_path(source)
        if path and (is_image_folder(path) or (path.is_file() and path.suffix.lower() in IMAGE_EXTENSIONS)):
            return cls(str(source), path, follow_symlinks=follow_symlinks)
        data = load_dataset(source, follow_symlinks=follow_symlinks, **table_options, strict_columns=False)
        return cls(str(source), None, data)

    @property
    def root(self) -> Path | None:
        return self.path if self.path is None or self.path.is_dir() else self.path.parent

    def find(self, name: str) -> tuple[Dataset, int]:
        """Find the split and the index of an instance of a dataset.

        Raises:
            KeyError: there is no such instance.
        """
        assert self.data is not None
        for split_name, split in self.data.splits.items():
            prefix, ids = "" if self.data.split_rule else f"{split_name}/", _list_ids(split)
            if name.startswith(prefix) and name[len(prefix) :] in ids:
                return split, ids.index(name[len(prefix) :])
        raise KeyError(name)

    def show(self, name: str) -> Tensor | str:
        """Return what stands for the instance with this id: its image (C, H, W) or, without one, a text.

        Raises:
            KeyError: there is no such instance.
        """
        if self.root is not None:
            path = self.root / decode_file_name(name)
            if not path.is_file():
                raise KeyError(name)
            return read_image(path)
        split, i = self.find(name)
        image = split.get_image(i)
        return split.get_text(i) if image is None else image

    def encode(
        self, model: VectorModel, num_workers: int = 0, on_skip: SkipCallback = warn_skipped
    ) -> Iterator[tuple[Batch, Tensor]]:
        """Yield ids, vectors (B, ...) and labels by batch, and the mask (B,) of instances that have a modality.

        Files are in the order of their names, instances of a dataset in their order; one batch is in memory. The label
        of a file is the name of its top-level folder (below the split's folder, if any), or "" without one. For a
        dataset without labels they are empty.

        Raises:
            DatasetError: no image can be read, or the data does not have the modalities of the model.
        """
        is_empty, first_skipped = True, ""

        def skip(line: str) -> None:
            nonlocal first_skipped
            first_skipped = first_skipped or f", first: {line}"
            on_skip(line)

        batches = self._iterate_files(model, num_workers, skip) if self.path else self._iterate_data(model, num_workers)
        encoded = (
            ((ids, *model(batch, f"{ids[0]} and others")), labels)
            for ids, batch, labels in track(batches, "instances", None, lambda batch: len(batch[0]))
        )
        for (ids, vectors, mask), labels in _sort_rows(encoded) if self.data and self.data.split_rule else encoded:
            is_empty = False
            yield (ids, vectors, labels), mask
        if is_empty:
            extensions = ", ".join(sorted(IMAGE_EXTENSIONS))
            raise DatasetError(f"{self.source} contains no readable image ({extensions}){first_skipped}")

    @property
    def label_type(self) -> type[str] | type[float]:
        """Type of the labels that `encode` yields: float for regression targets, else str.

        Raises:
            DatasetError: there are no labels.
        """
        if self.data is None:
            assert self.path is not None
            if not self.path.is_dir() or not any(child.is_dir() for child in self.path.iterdir()):
                raise DatasetError(f"{self.source} has no class folders and so no labels: omit --labels")
            return str
        for name, split in self.data.splits.items():
            if split.labels is None:
                raise DatasetError(f"{self.data.name} has no labels in {name}: omit --labels")
        return str if self.data["train"].class_labels is not None else float

    def _iterate_data(self, model: VectorModel, num_workers: int) -> Iterator[tuple[list[str], ViewBatch, list[Label]]]:
        assert self.data is not None
        encoder = model.encoder.encoder
        reference = next(encoder.parameters(), torch.zeros(()))
        for name, split in self.data.splits.items():
            ids, prefix = _list_ids(split), "" if self.data.split_rule else f"{name}/"
            loader = make_eval_loader(split, encoder, num_workers, reference.device)
            parts = torch.arange(len(split)).split(choose_loader_batch_size(loader))
            for index, batch in zip(parts, loader(EVAL_EPOCH, parts), strict=True):
                labels = _read_labels(self.data, name, index)
                yield [f"{prefix}{ids[i]}" for i in index.tolist()], batch.to(reference), labels

    def _iterate_files(
        self, model: VectorModel, num_workers: int, on_skip: SkipCallback
    ) -> Iterator[tuple[list[str], ViewBatch, list[Label]]]:
        assert self.path is not None
        assert self.root is not None
        encoder = model.encoder
        modality = encoder.get_image_modality()
        in_splits = any(get_canonical_split(child.name) == "train" for child in self.root.iterdir() if child.is_dir())
        paths = walk_images(self.path, on_skip, self.follow_symlinks) if self.path.is_dir() else iter([str(self.path)])
        for batch in iterate_file_crops(paths, encoder.config.get_spec(modality).size, num_workers):
            images = {}
            for path, image in batch:
                if isinstance(image, DatasetError):
                    on_skip(str(image))
                else:
                    images[encode_file_name(Path(os.path.relpath(path, self.root)).as_posix())] = image
            if images:
                labels: list[Label] = [next(iter(name.split("/")[in_splits:-1]), "") for name in images]
                yield list(images), encoder.make_batch({modality: torch.stack(list(images.values()))}), labels


def get_table_options(path: str | Path, encoder: Encoder) -> dict[str, Any]:
    """Return how to read tables: as the run in a directory did, or with the kinds of an encoder file's modalities."""
    if Path(path).expanduser().is_dir():
        return Run.open(path).config.get_table_options()
    return {"kinds": {name: encoder.config.get_spec(name).kind for name in encoder.modalities}}


def _sort_rows(
    batches: Iterable[tuple[tuple[list[str], Tensor, Tensor], list[Label]]],
) -> Iterator[tuple[tuple[list[str], Tensor, Tensor], list[Label]]]:
    """Merge batches into one, in the order of the rows in the file, if they are the ids."""
    parts, label_parts = zip(*batches, strict=True)
    ids, vectors, masks = zip(*parts, strict=True)
    names, labels = [name for part in ids for name in part], [label for part in label_parts for label in part]
    is_row = all(name.isdecimal() for name in names)  # the file may have ids of its own
    order = sorted(range(len(names)), key=lambda i: int(names[i])) if is_row else list(range(len(names)))
    sorted_labels = [labels[i] for i in order] if labels else []
    yield ([names[i] for i in order], torch.cat(vectors)[order], torch.cat(masks)[order]), sorted_labels


def _list_ids(split: Dataset) -> Sequence[str]:
    return split.ids or [str(i) for i in range(len(split))]


def _read_labels(data: DatasetDict, split: str, index: Tensor) -> list[Label]:
    """Return class names or regression targets of instances; empty without labels."""
    labels = data[split].labels
    if labels is None:
        return []
    values = labels[index].tolist()
    return values if labels.is_floating_point() else [data.class_names[label] for label in values]
