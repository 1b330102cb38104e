"""Multimodal datasets: features of several modalities for the same instances, with optional labels.

In a .npz file an array is named `SPLIT/NAME` or `NAME_SPLIT` (or `NAME`, for training); SPLIT is train, valid or test:

- `text`, `audio`, or any other name: features (n, d), padded sequences (n, T, d), or images uint8 (n, H, W, 3)
- `text_length`: number of steps of each sequence; without it, zeros at the front or the end are padding
- `text_mask`: which instances have the modality; without it, those whose features are not all NaN
- `label` (or `y`): integers for classes, floats for regression targets
- `id`: a name for each instance

Padding at the front is moved to the end.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from manyviews.data.column_arrays import make_column
from manyviews.data.dataset import Dataset, DatasetDict, get_canonical_split
from manyviews.data.errors import DatasetError

LABELS = ("label", "labels", "y")
IDS = ("id", "ids")
AMBIGUOUS_NAME = re.compile(r"\d+|.*[:@]\d+|.*=.*")
"""Names that `--views` and `--encoder` would read as a number, a count or a size of views, or a choice."""
RESERVED_SEPARATORS = (" + ", " to ", " and ")
"""Separators of modality names in results; a name that contains one would be ambiguous."""
FIELD_ALIASES = dict.fromkeys(LABELS, "label") | dict.fromkeys(IDS, "id")


@dataclass
class RawSplit:
    """The arrays of a split as they are in the file, not validated."""

    modalities: dict[str, np.ndarray] = field(default_factory=dict)
    labels: np.ndarray | None = None
    lengths: dict[str, np.ndarray] = field(default_factory=dict)
    masks: dict[str, np.ndarray] = field(default_factory=dict)
    ids: tuple[str, ...] = ()


def make_dataset_from_arrays(arrays: Mapping[str, np.ndarray], name: str, context: str) -> DatasetDict:
    """Make a multimodal dataset from the named arrays of a file."""
    raws: dict[str, RawSplit] = {}
    messages: list[str] = []
    existing: set[tuple[str, str]] = set()
    for key, array in arrays.items():
        split, entry = parse_key(key)
        if "/" in key and "/" in entry:
            raise DatasetError(
                f"{context}: {key} does not start with a split name: expected train/..., valid/... or test/..."
            )
        if array.ndim == 0:
            messages.append(f"{context}: {key} is a single value and is skipped")
            continue
        raw = raws.setdefault(split, RawSplit())
        field_key = split, FIELD_ALIASES.get(entry, entry)
        if field_key in existing:
            raise DatasetError(f"{context}: duplicate {field_key[1]} in split {split} (array {key})")
        existing.add(field_key)
        modality, _, suffix = entry.rpartition("_")
        if entry in LABELS:
            raw.labels = array
        elif entry in IDS:
            raw.ids = read_ids(array)
        elif modality and suffix in ("length", "lengths"):
            raw.lengths[modality] = array
        elif modality and suffix == "mask":
            raw.masks[modality] = array
        elif array.dtype.kind in "US":
            messages.append(f"{context}: {key} is text, not numbers, and is skipped")
        else:
            raw.modalities[entry] = array
    return build_dataset(raws, name, context, messages)


def read_ids(array: np.ndarray) -> tuple[str, ...]:
    """Read ids from an array of text, bytes or numbers.

    Examples:
        >>> read_ids(np.array([b"a", b"b"])), read_ids(np.array([3, 4]))
        (('a', 'b'), ('3', '4'))
    """
    ids = array.ravel().tolist()
    return tuple(i.decode("utf-8", "backslashreplace") if isinstance(i, bytes) else str(i) for i in ids)


def parse_key(key: str) -> tuple[str, str]:
    """Parse the key of an array into split and name.

    Examples:
        >>> parse_key("train/text"), parse_key("text_length_test"), parse_key("val_audio"), parse_key("audio")
        (('train', 'text'), ('test', 'text_length'), ('valid', 'audio'), ('train', 'audio'))
    """
    before, after, slash = key.partition("_"), key.rpartition("_"), key.partition("/")
    for split_name, name in ((slash[0], slash[2]), (after[2], after[0]), (before[0], before[2])):
        if (split := get_canonical_split(split_name)) and name:
            return split, name
    return "train", key


def build_dataset(raws: Mapping[str, RawSplit], name: str, context: str, messages: list[str]) -> DatasetDict:
    """Validate the splits and build a dataset; all splits must have the same modalities and kind of labels."""
    raws = {split: raw for split, raw in raws.items() if raw.modalities}
    if "train" not in raws:
        raise DatasetError(f"{context} has no training features, only {', '.join(raws) or 'nothing'}")
    labels, classes = _encode_labels(raws, context)
    splits = {
        split: _validate_split(raw, labels.get(split), f"{context}, {split}", messages) for split, raw in raws.items()
    }
    train = splits["train"]
    for split, dataset in splits.items():
        for modality in {*train.modalities, *dataset.modalities}:
            columns = (part.modalities.get(modality) for part in (train, dataset))
            expected, got = ("missing" if column is None else column.describe() for column in columns)
            if expected != got:
                raise DatasetError(f"{context}: {modality} is {expected} in train and {got} in {split}")
    order = [split for split in ("train", "valid", "test") if split in splits]
    return DatasetDict(name, {split: splits[split] for split in order}, classes, tuple(messages))


def _encode_labels(raws: Mapping[str, RawSplit], context: str) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Encode the labels of each split; also return the class names, if the labels are classes."""
    labels = {split: raw.labels for split, raw in raws.items() if raw.labels is not None}
    if not labels:
        return {}, ()
    if missing := [split for split in raws if split not in labels]:
        raise DatasetError(
            f"{context}: {', '.join(missing)} has no labels, but {', '.join(labels)} has: label all splits or none"
        )
    flat: dict[str, np.ndarray] = {}
    for split, array in labels.items():
        if array.size != len(array) or array.dtype.kind not in "iubfU":
            raise DatasetError(f"{context}, {split}: labels must be numbers (n,), got {array.dtype} {array.shape}")
        flat[split] = array.reshape(-1)
        if array.dtype.kind == "f" and not np.isfinite(flat[split]).all():
            row = int(np.flatnonzero(~np.isfinite(flat[split]))[0])
            raise DatasetError(f"{context}, {split}: the label of row {row} is {flat[split][row]}")
    texts = [split for split, array in flat.items() if array.dtype.kind == "U"]
    if numbers := [split for split in flat if texts and split not in texts]:
        raise DatasetError(f"{context}: labels are text in {', '.join(texts)} and numbers in {', '.join(numbers)}")
    if any(array.dtype.kind == "f" for array in flat.values()):
        return {split: torch.from_numpy(array.astype(np.float32)) for split, array in flat.items()}, ()
    names = np.unique(np.concatenate(list(flat.values())))
    indices = {split: torch.from_numpy(np.searchsorted(names, array)) for split, array in flat.items()}
    return indices, tuple(map(str, names.tolist()))


def check_modality_name(name: str, context: str) -> None:
    """Raise a DatasetError if the name of a modality cannot be shown, or would be ambiguous in results."""
    if not name.strip() or not name.isprintable():
        reason = "it has unprintable characters" if name.strip() else "it is empty"
        raise DatasetError(f"{context}: invalid modality name {name!r}: {reason}")
    if any(separator in name for separator in RESERVED_SEPARATORS):
        reserved = ", ".join(map(repr, RESERVED_SEPARATORS))
        raise DatasetError(f"{context}: invalid modality name {name!r}: it must not contain any of {reserved}")
    if AMBIGUOUS_NAME.fullmatch(name):
        raise DatasetError(f"{context}: invalid modality name {name!r}: views would read it as a number or a choice")


def _validate_split(raw: RawSplit, labels: Tensor | None, context: str, messages: list[str]) -> Dataset:
    counts = {modality: len(array) for modality, array in raw.modalities.items()}
    counts |= {} if labels is None else {"labels": len(labels)}
    if len(set(counts.values())) > 1:
        described = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise DatasetError(f"{context}: modalities must have the same number of instances, got {described}")
    for name in raw.modalities:
        check_modality_name(name, context)
    for kind, names in (("length", raw.lengths), ("mask", raw.masks)):
        if unknown := [name for name in names if name not in raw.modalities]:
            raise DatasetError(f"{context}: {unknown[0]}_{kind} without {unknown[0]}")
    columns = {
        name: make_column(array, raw.lengths.get(name), raw.masks.get(name), f"{context}, {name}", messages)
        for name, array in raw.modalities.items()
    }
    dataset = Dataset(columns, labels, raw.ids)
    exists = dataset.get_mask(list(columns)).any(1)
    if not exists.all():
        row = int((~exists).nonzero()[0])
        raise DatasetError(f"{context}: row {row} has none of {', '.join(columns)}: remove it")
    return dataset
