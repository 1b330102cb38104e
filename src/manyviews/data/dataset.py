"""Dataset: instances with named modalities and optional labels. DatasetDict: named splits of a dataset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from manyviews.utils import BudgetError, describe_type, escape_surrogates

if TYPE_CHECKING:
    from manyviews.data.image_files import LazyImages


IMAGE_MODALITY = "image"
"""Name of the image modality."""
SPLIT_ALIASES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "valid"),
    **dict.fromkeys(("test", "testing"), "test"),
}
"""Canonical name of each split name that files and folders may use."""


class DatasetError(ValueError):
    """Data is missing or invalid; the message has the file and what to do."""


class DatasetWarning(UserWarning):
    """Data was skipped or changed when it was loaded; see `DatasetDict.warnings`."""


@contextmanager
def translate_errors(message: str) -> Iterator[None]:
    """Convert any error of a reader to a `DatasetError` that starts with `message`: a corrupt file can cause any error.

    Errors of this package and of memory budgets keep their messages.
    """
    try:
        yield
    except (DatasetError, Warning):
        raise
    except BudgetError as error:
        raise DatasetError(str(error)) from error
    except Exception as error:
        reason = repr(error) if isinstance(error, LookupError) or not str(error) else str(error)
        raise DatasetError(f"{message}: {reason[:1000]}") from error


def get_canonical_split(name: str) -> str | None:
    """Get the canonical name of a split, or None if the name is not a split.

    Examples:
        >>> get_canonical_split("Train"), get_canonical_split("dev"), get_canonical_split("extra")
        ('train', 'valid', None)
    """
    return SPLIT_ALIASES.get(name.lower())


@dataclass(frozen=True, repr=False)
class Dataset:
    """n instances: a tensor (n, ...) or images on disk for each modality, and optional labels (n,).

    Images are uint8 (n, C, H, W), features float32 (n, d), sequences float32 (n, T, d). Labels are classes from 0, or
    floats (regression targets).

    Examples:
        >>> split = Dataset({"text": torch.randn(5, 7, 20), "audio": torch.randn(5, 40)}, labels=torch.arange(5))
        >>> len(split), len(split.select(torch.tensor([1, 3])))
        (5, 2)
    """

    modalities: Mapping[str, Tensor | LazyImages]
    labels: Tensor | None = None
    lengths: Mapping[str, Tensor] = field(default_factory=dict)
    """Number of steps (n,) of each sequence modality; the steps after them are padding."""
    masks: Mapping[str, Tensor] = field(default_factory=dict)
    """bool (n,) for each modality that some instances lack: false where it is missing. Missing values are zeros."""
    ids: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        from manyviews.data.image_files import LazyImages

        if not isinstance(self.modalities, Mapping):
            raise TypeError(f"modalities must be a dict of tensors by name, got {describe_type(self.modalities)}")
        tensors = {**self.modalities, **({} if self.labels is None else {"labels": self.labels})}
        for name, values in tensors.items():
            if not isinstance(values, (Tensor, LazyImages)):
                kind = f"{values.dtype} {values.shape}" if hasattr(values, "dtype") else describe_type(values)
                raise TypeError(f"{name} must be a tensor (instances, ...), got {kind}: try torch.as_tensor")
        counts = {name: len(values) for name, values in tensors.items()}
        counts |= {f"lengths of {name}": len(values) for name, values in self.lengths.items()}
        counts |= {f"mask of {name}": len(values) for name, values in self.masks.items()}
        counts |= {"ids": len(self.ids)} if self.ids else {}
        if not self.modalities or len(set(counts.values())) != 1 or 0 in counts.values():
            raise DatasetError(
                f"modalities and labels must have the same number of instances, at least one, got {counts}"
            )

    def __repr__(self) -> str:
        shapes = {name: tuple(getattr(values, "shape", (len(values),))) for name, values in self.modalities.items()}
        return f"Dataset({shapes}, {'labels' if self.labels is not None else 'no labels'})"

    def __len__(self) -> int:
        return len(next(iter(self.modalities.values())))

    def select(self, index: Tensor) -> Dataset:
        """Select instances by their indices."""
        if len(index) == len(self) and bool((index == torch.arange(len(self))).all()):
            return self
        return Dataset(
            {name: select_rows(values, index) for name, values in self.modalities.items()},
            None if self.labels is None else self.labels[index],
            {name: lengths[index] for name, lengths in self.lengths.items()},
            {name: mask[index] for name, mask in self.masks.items()},
            tuple(self.ids[i] for i in index.tolist()) if self.ids else (),
        )

    def drop_modalities(self, missing: Mapping[str, Tensor]) -> Dataset:
        """Mark modalities as missing and set them to zero; `missing` has bool (n,) for each name."""
        masks, modalities = dict(self.masks), dict(self.modalities)
        for name, dropped in missing.items():
            masks[name] = masks[name] & ~dropped if name in masks else ~dropped
            values = self.modalities[name]
            assert isinstance(values, Tensor)
            modalities[name] = values.masked_fill(dropped.view(-1, *[1] * (values.dim() - 1)), 0)
        return replace(self, modalities=modalities, masks=masks)

    @property
    def class_labels(self) -> Tensor | None:
        """The labels if they are classes, None if they are regression targets or absent."""
        return None if self.labels is None or self.labels.is_floating_point() else self.labels

    @property
    def images(self) -> Tensor | LazyImages:
        if IMAGE_MODALITY not in self.modalities:
            raise DatasetError(f"there are no images, only {', '.join(self.modalities)}")
        return self.modalities[IMAGE_MODALITY]


def select_rows(values: Tensor | LazyImages, index: Tensor) -> Tensor | LazyImages:
    """Select instances of a modality, in memory or on disk."""
    if isinstance(values, Tensor):
        return values[index]
    return replace(values, paths=tuple(values.paths[i] for i in index.tolist()))


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
    """How the splits were made if the source has none; the ids are then row indices of the source."""

    def __post_init__(self) -> None:
        # File names may have bytes that are not UTF-8; results and reports are text.
        object.__setattr__(self, "name", escape_surrogates(self.name))
        object.__setattr__(self, "class_names", tuple(map(escape_surrogates, self.class_names)))

    def __getitem__(self, split: str) -> Dataset:
        if split not in self.splits:
            raise DatasetError(f"{self.name} has no split {split!r}, only {', '.join(self.splits)}")
        return self.splits[split]
