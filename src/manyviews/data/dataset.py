"""Dataset: instances with named modalities and optional labels. DatasetDict: named splits of a dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from manyviews.data.audio import Audio
from manyviews.data.column import Column
from manyviews.data.errors import DatasetError
from manyviews.data.image_files import ImageSource
from manyviews.data.images import Images
from manyviews.data.media import Media
from manyviews.data.sequences import Sequences
from manyviews.data.texts import Texts
from manyviews.data.vectors import Vectors
from manyviews.data.video import Video
from manyviews.utils import describe_type, escape_surrogates

IMAGE_MODALITY = "image"
"""Name of the image modality."""
KINDS: dict[str, type[Column]] = {kind.kind: kind for kind in (Images, Texts, Sequences, Vectors, Audio, Video)}
"""Classes of columns by the name of their kind."""
SPLIT_ALIASES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "valid"),
    **dict.fromkeys(("test", "testing"), "test"),
}
"""Canonical name of each split name that files and folders may use."""


def get_canonical_split(name: str) -> str | None:
    """Get the canonical name of a split, or None if the name is not a split.

    Examples:
        >>> get_canonical_split("Train"), get_canonical_split("dev"), get_canonical_split("extra")
        ('train', 'valid', None)
    """
    return SPLIT_ALIASES.get(name.lower())


@dataclass(frozen=True, repr=False, init=False)
class Dataset:
    """n instances: a `Column` of values for each modality, and optional labels (n,).

    A tensor becomes a column by its shape: uint8 (n, C, H, W) `Images`, floats (n, T, d) `Sequences`, floats (n, d)
    `Vectors`. A list of str becomes `Texts`. Labels are classes from 0, or floats (regression targets).

    Examples:
        >>> split = Dataset({"text": torch.randn(5, 7, 20), "audio": torch.randn(5, 40)}, labels=torch.arange(5))
        >>> split["text"].describe(), len(split.select(torch.tensor([1, 3])))
        ('sequences of 20', 2)
    """

    modalities: Mapping[str, Column]
    labels: Tensor | None = None
    ids: tuple[str, ...] = ()

    def __init__(
        self,
        modalities: Mapping[str, Column | Tensor | ImageSource | Sequence[str]],
        labels: Tensor | None = None,
        ids: tuple[str, ...] = (),
    ) -> None:
        if not isinstance(modalities, Mapping):
            raise TypeError(f"modalities must be a dict of tensors by name, got {describe_type(modalities)}")
        if labels is not None and not isinstance(labels, Tensor):
            raise _make_type_error("labels", labels)
        columns = {name: _make_column(name, values) for name, values in modalities.items()}
        for field_name, value in (("modalities", columns), ("labels", labels), ("ids", ids)):
            object.__setattr__(self, field_name, value)
        counts = {name: len(column) for name, column in columns.items()}
        counts |= {f"mask of {name}": len(column.mask) for name, column in columns.items() if column.mask is not None}
        counts |= {} if self.labels is None else {"labels": len(self.labels)}
        counts |= {"ids": len(self.ids)} if self.ids else {}
        if not columns or len(set(counts.values())) != 1 or 0 in counts.values():
            raise DatasetError(
                f"modalities and labels must have the same number of instances, at least one, got {counts}"
            )

    def __repr__(self) -> str:
        kinds = ", ".join(f"{name} ({column.kind})" for name, column in self.modalities.items())
        return f"Dataset({len(self):,} instances, {kinds}, {'labels' if self.labels is not None else 'no labels'})"

    def __len__(self) -> int:
        return len(next(iter(self.modalities.values())))

    def __getitem__(self, name: str) -> Column:
        if name not in self.modalities:
            raise DatasetError(f"no modality {name!r}: the split has {', '.join(self.modalities)}")
        return self.modalities[name]

    def select(self, index: Tensor) -> Dataset:
        """Select instances by their indices."""
        if len(index) == len(self) and bool((index == torch.arange(len(self))).all()):
            return self
        return Dataset(
            {name: column.select(index) for name, column in self.modalities.items()},
            None if self.labels is None else self.labels[index],
            tuple(self.ids[i] for i in index.tolist()) if self.ids else (),
        )

    def drop_modalities(self, missing: Mapping[str, Tensor]) -> Dataset:
        """Mark modalities as missing; `missing` has a mask (n,) for each name."""
        dropped = {name: self[name].drop(mask) for name, mask in missing.items()}
        return replace(self, modalities={**self.modalities, **dropped})

    def get_mask(self, names: Sequence[str]) -> Tensor:
        """Return the mask (n, N) of the instances that have these modalities."""
        return torch.stack([self[name].get_mask() for name in names], 1)

    def get_image(self, i: int) -> Tensor | None:
        """Return the first image, or frame of a video, (C, H, W) that an instance has and that can be read, or None."""
        for column in sorted(self.modalities.values(), key=lambda column: isinstance(column, Video)):
            if isinstance(column, Images | Video) and column.get_mask()[i]:
                with suppress(DatasetError):
                    return column.show(i)
        return None

    @property
    def paths(self) -> tuple[Path, ...]:
        """File of each instance of a folder of images; empty for other data."""
        column = self.modalities.get(IMAGE_MODALITY)
        return column.paths if isinstance(column, Images) else ()

    def get_text(self, i: int) -> str:
        """Return the first text that an instance has or, without one, a description of its recording, or ""."""
        texts = (column for column in self.modalities.values() if isinstance(column, Texts))
        text = next((column.values[i] for column in texts if column.get_mask()[i]), "")
        recordings = [column for column in self.modalities.values() if isinstance(column, Media)]
        for column in [] if text else recordings:
            if column.get_mask()[i]:
                with suppress(DatasetError):
                    return column.describe_item(i)
        return text

    @property
    def class_labels(self) -> Tensor | None:
        """The labels if they are classes, None if they are regression targets or absent."""
        return None if self.labels is None or self.labels.is_floating_point() else self.labels

    @property
    def images(self) -> Tensor | ImageSource:
        """The values of the image modality."""
        column = self.modalities.get(IMAGE_MODALITY)
        if not isinstance(column, Images):
            raise DatasetError(f"there are no images, only {', '.join(self.modalities)}")
        return column.values


def _make_column(name: str, values: object) -> Column:
    if isinstance(values, Column):
        return values
    if isinstance(values, ImageSource) or (isinstance(values, Tensor) and values.dim() == 4):
        return Images(values)
    if isinstance(values, (list, tuple)) and values and all(isinstance(value, str) for value in values):
        return Texts(tuple(values))
    if isinstance(values, Tensor):
        return Sequences(values) if values.dim() == 3 else Vectors(values)
    raise _make_type_error(name, values)


def _make_type_error(name: str, values: object) -> TypeError:
    shape = getattr(values, "shape", "")
    kind = f"{values.dtype} {shape}" if hasattr(values, "dtype") else describe_type(values)
    return TypeError(f"{name} must be a tensor (instances, ...), got {kind}: try torch.as_tensor")


def check_split(value: object) -> None:
    """Raise a TypeError unless the value is a `Dataset`."""
    if not isinstance(value, Dataset):
        raise TypeError(
            f"expected a Dataset, such as load_dataset(PATH)['train'], got {describe_type(value)}: "
            "Dataset({NAME: tensor, ...}, labels) makes one from tensors"
        )


@dataclass(frozen=True)
class DatasetDict:
    """Named splits ("train" always, "test" often) and the names of the classes.

    Examples:
        >>> from manyviews.data import load_dataset
        >>> photos = load_dataset("photos")
        >>> photos["train"].images.shape, photos.class_names[:2]
        (torch.Size([2500, 3, 32, 32]), ('airplane', 'automobile'))
    """

    name: str
    splits: Mapping[str, Dataset]
    class_names: tuple[str, ...] = ()
    warnings: tuple[str, ...] = field(default=(), repr=False)
    """One line for each thing that was skipped or changed when the data was loaded, with the reason."""
    default_modalities: tuple[str, ...] = ()
    """Modalities that are views if none are selected; empty means all."""
    split_rule: str = ""
    """How the splits were made if the source has none; ids are then row indices of the source, unless it has ids."""

    def __post_init__(self) -> None:
        # File names may have bytes that are not UTF-8; results and reports are text.
        object.__setattr__(self, "name", escape_surrogates(self.name))
        object.__setattr__(self, "class_names", tuple(map(escape_surrogates, self.class_names)))

    def __getitem__(self, split: str) -> Dataset:
        if split not in self.splits:
            raise DatasetError(f"{self.name} has no split {split!r}, only {', '.join(self.splits)}")
        return self.splits[split]
