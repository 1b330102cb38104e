"""What the other rooms know of data: instances with named modalities, labels if any, named splits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from manyviews.utils.text import describe_type, escape_surrogates

if TYPE_CHECKING:
    from manyviews.data.files import ImageFiles

IMAGE = "image"
"""The name of the modality that images are."""
SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "valid"),
    **dict.fromkeys(("test", "testing"), "test"),
}
"""What a split may be called in files and folders, and what it is called here."""


class DatasetError(ValueError):
    """Data that cannot be what it is said to be; the message names the file and what to do."""


class DatasetWarning(UserWarning):
    """What was left out of data or changed in it, as its `notes` say."""


def split_of(name: str) -> str | None:
    """Which split a name in a file or a folder stands for.

    Examples:
        >>> split_of("Train"), split_of("dev"), split_of("extra")
        ('train', 'valid', None)
    """
    return SPLITS.get(name.lower())


@dataclass(frozen=True, repr=False)
class Split:
    """Instances: for each modality a tensor of n rows, or images on disk; labels (n,) if there are any.

    Images are uint8 (n, C, H, W), features float32 (n, d) or sequences (n, T, d). Labels are classes from 0, or floats.

    Examples:
        >>> split = Split({"text": torch.randn(5, 7, 20), "audio": torch.randn(5, 40)}, labels=torch.arange(5))
        >>> len(split), len(split.taken(torch.tensor([1, 3])))
        (5, 2)
    """

    modalities: Mapping[str, Tensor | ImageFiles]
    labels: Tensor | None = None
    lengths: Mapping[str, Tensor] = field(default_factory=dict)
    """Of sequences: how many steps (n,) there are, from the first; the rest is padding."""
    present: Mapping[str, Tensor] = field(default_factory=dict)
    """Of modalities that some instances lack: bool (n,). The rows of those that lack it are zeros."""
    ids: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        from manyviews.data.files import ImageFiles

        if not isinstance(self.modalities, Mapping):
            raise TypeError(f"modalities must be a dict of tensors by name, got {describe_type(self.modalities)}")
        given = {**self.modalities, **({} if self.labels is None else {"labels": self.labels})}
        for name, rows in given.items():
            if not isinstance(rows, (Tensor, ImageFiles)):
                kind = f"{rows.dtype} {rows.shape}" if hasattr(rows, "dtype") else describe_type(rows)
                raise TypeError(
                    f"{name} must be a tensor with a row for each instance, got {kind}: try torch.as_tensor"
                )
        counts = {name: len(rows) for name, rows in self.modalities.items()}
        counts |= {f"the lengths of {name}": len(rows) for name, rows in self.lengths.items()}
        counts |= {f"the presence of {name}": len(rows) for name, rows in self.present.items()}
        if self.labels is not None:
            counts["labels"] = len(self.labels)
        if self.ids:
            counts["ids"] = len(self.ids)
        if not self.modalities or len(set(counts.values())) != 1 or 0 in counts.values():
            raise DatasetError(f"modalities and labels must have the same instances, at least one, got {counts}")

    def __repr__(self) -> str:
        shapes = {name: tuple(getattr(rows, "shape", (len(rows),))) for name, rows in self.modalities.items()}
        return f"Split({shapes}, {'labels' if self.labels is not None else 'no labels'})"

    def __len__(self) -> int:
        return len(next(iter(self.modalities.values())))

    def taken(self, index: Tensor) -> Split:
        """Some of the instances."""
        if len(index) == len(self) and bool((index == torch.arange(len(self))).all()):
            return self
        return Split(
            {name: take_rows(rows, index) for name, rows in self.modalities.items()},
            None if self.labels is None else self.labels[index],
            {name: rows[index] for name, rows in self.lengths.items()},
            {name: rows[index] for name, rows in self.present.items()},
            tuple(self.ids[number] for number in index.tolist()) if self.ids else (),
        )

    def lacking(self, gone: Mapping[str, Tensor]) -> Split:
        """The same instances without some modalities, for each name bool (n,)."""
        present, modalities = dict(self.present), dict(self.modalities)
        for name, which in gone.items():
            present[name] = present[name] & ~which if name in present else ~which
            rows = self.modalities[name]
            assert isinstance(rows, Tensor)
            modalities[name] = rows.masked_fill(which.view(-1, *[1] * (rows.dim() - 1)), 0)
        return replace(self, modalities=modalities, present=present)

    @property
    def classes(self) -> Tensor | None:
        """The labels, if they are classes and not quantities."""
        return None if self.labels is None or self.labels.is_floating_point() else self.labels

    @property
    def images(self) -> Tensor | ImageFiles:
        if IMAGE not in self.modalities:
            raise DatasetError(f"there are no images, only {', '.join(self.modalities)}")
        return self.modalities[IMAGE]


def take_rows(rows: Tensor | ImageFiles, index: Tensor) -> Tensor | ImageFiles:
    """Some rows of a modality, in memory or on disk."""
    if isinstance(rows, Tensor):
        return rows[index]
    return replace(rows, paths=tuple(rows.paths[number] for number in index.tolist()))


def check_split(value: object) -> None:
    """Raise a TypeError unless the value is a `Split`."""
    if not isinstance(value, Split):
        raise TypeError(
            f"expected a Split, such as load_dataset(PATH)['train'], got {describe_type(value)}: "
            "Split({NAME: tensor, ...}, labels) makes one of tensors"
        )


@dataclass(frozen=True)
class Dataset:
    """Named splits ("train" always, "test" often), and what the labels mean.

    Examples:
        >>> from manyviews.data import load_dataset
        >>> photos = load_dataset("photos")
        >>> photos["train"].images.shape, photos.classes[:2]
        (torch.Size([2500, 3, 32, 32]), ('airplane', 'automobile'))
    """

    name: str
    splits: Mapping[str, Split]
    classes: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=(), repr=False)
    """What was left out or changed, and why, one line each."""
    views: tuple[str, ...] = ()
    """Modalities that are taken as views where none are named; all if empty."""
    split_rule: str = ""
    """How the splits were chosen here, where the source has none; the ids are then the rows of the source."""

    def __post_init__(self) -> None:
        # Names of folders and files may hold bytes that are not UTF-8; results and reports are text.
        object.__setattr__(self, "name", escape_surrogates(self.name))
        object.__setattr__(self, "classes", tuple(map(escape_surrogates, self.classes)))

    def __getitem__(self, split: str) -> Split:
        if split not in self.splits:
            raise DatasetError(f"{self.name} has no split {split!r}, only {', '.join(self.splits)}")
        return self.splits[split]
