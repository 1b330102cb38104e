"""Bundles: features of several modalities for the same instances, with labels if there are any.

In a .npz file an array is `SPLIT/NAME` or `NAME_SPLIT` (or `NAME`, for training), SPLIT one of train, valid, test:

- `text`, `audio`, or any other name: features (n, d), padded sequences (n, T, d), or images uint8 (n, H, W, 3)
- `text_length`: steps of each sequence; without it, steps of zeros at the front or the end are padding
- `text_present`: which instances have it; without it, those whose features are all NaN have not
- `label` (or `y`): integers for classes, floats for a quantity
- `id`: a name for each instance

Padding at the front is moved to the end. A .mat file has a cell `X` of views (n, d) and classes `Y`; of each class
every fifth instance is for testing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyviews.data.dataset import Dataset, DatasetError, Split, split_of
from manyviews.data.matlab import load_matlab
from manyviews.data.modality import Modality

LABELS = ("label", "labels", "y")
IDS = ("id", "ids")
JOINING = (" + ", " to ", " and ")
"""Words between the names of modalities in results; a name that holds one could be read in two ways."""
ALIKE = dict.fromkeys(LABELS, "label") | dict.fromkeys(IDS, "id")


@dataclass
class Raw:
    """A split as it stands in a file, unchecked."""

    modalities: dict[str, np.ndarray] = field(default_factory=dict)
    labels: np.ndarray | None = None
    lengths: dict[str, np.ndarray] = field(default_factory=dict)
    present: dict[str, np.ndarray] = field(default_factory=dict)
    ids: tuple[str, ...] = ()


def from_arrays(arrays: Mapping[str, np.ndarray], name: str, where: str) -> Dataset:
    """A bundle from the named arrays of a file."""
    raws: dict[str, Raw] = {}
    notes: list[str] = []
    known: set[tuple[str, str]] = set()
    for key, array in arrays.items():
        split, what = parsed(key)
        if "/" in key and "/" in what:
            raise DatasetError(f"{where}: {key} begins with no split: expected train/..., valid/... or test/...")
        if array.ndim == 0:
            notes.append(f"{where}: {key} is a single value, and left out")
            continue
        raw = raws.setdefault(split, Raw())
        if (split, ALIKE.get(what, what)) in known:
            raise DatasetError(f"{where} holds {ALIKE.get(what, what)} of {split} twice, once as {key}")
        known.add((split, ALIKE.get(what, what)))
        modality, _, suffix = what.rpartition("_")
        if what in LABELS:
            raw.labels = array
        elif what in IDS:
            raw.ids = read_ids(array)
        elif modality and suffix in ("length", "lengths"):
            raw.lengths[modality] = array
        elif modality and suffix == "present":
            raw.present[modality] = array
        elif array.dtype.kind in "US":
            notes.append(f"{where}: {key} is text, not numbers, and left out")
        else:
            raw.modalities[what] = array
    return assembled(raws, name, where, notes)


def read_ids(array: np.ndarray) -> tuple[str, ...]:
    """The ids in an array of text, bytes or numbers.

    Examples:
        >>> read_ids(np.array([b"a", b"b"])), read_ids(np.array([3, 4]))
        (('a', 'b'), ('3', '4'))
    """
    ids = array.ravel().tolist()
    return tuple(one.decode("utf-8", "backslashreplace") if isinstance(one, bytes) else str(one) for one in ids)


def stack_rows(rows: object, where: str) -> np.ndarray:
    """One array of rows that have the same shape.

    Raises:
        DatasetError: they have different shapes.
    """
    try:
        return np.asarray(rows)
    except ValueError as error:
        raise DatasetError(
            f"{where}: rows must have the same shape, and they have different ones: pad them to one array (n, T, d), "
            "and say how many steps each has as NAME_lengths"
        ) from error


def parsed(key: str) -> tuple[str, str]:
    """Split and name of an array.

    Examples:
        >>> parsed("train/text"), parsed("text_length_test"), parsed("val_audio"), parsed("audio")
        (('train', 'text'), ('test', 'text_length'), ('valid', 'audio'), ('train', 'audio'))
    """
    before, after, slash = key.partition("_"), key.rpartition("_"), key.partition("/")
    for name, what in ((slash[0], slash[2]), (after[2], after[0]), (before[0], before[2])):
        if (split := split_of(name)) and what:
            return split, what
    return "train", key


def load_mat(path: Path) -> Dataset:
    """A bundle from a .mat file: its views are named view1, view2, ..."""
    held = load_matlab(path)
    if not isinstance(held.get("X"), list) or not isinstance(held.get("Y"), np.ndarray):
        raise DatasetError(f"{path}: expected a cell X of views and an array Y of classes, got {', '.join(held)}")
    labels = held["Y"].reshape(-1)
    if not (labels == labels.astype(np.int64)).all():
        raise DatasetError(f"{path}: Y must hold whole numbers")
    labels = labels.astype(np.int64)
    for number, view in enumerate(held["X"], 1):
        if not isinstance(view, np.ndarray) or view.ndim != 2 or len(view) != len(labels):
            got = getattr(view, "shape", "a cell")
            raise DatasetError(f"{path}: view {number} of X must be ({len(labels)}, d) as Y, got {got}")
    # How many of its class come before each instance.
    before = np.zeros(len(labels), np.int64)
    order = np.argsort(labels, kind="stable")
    _, first, inverse = np.unique(labels[order], return_index=True, return_inverse=True)
    before[order] = np.arange(len(labels)) - first[inverse]
    raws = {
        split: Raw(
            {f"view{number}": view[rows] for number, view in enumerate(held["X"], 1)},
            labels[rows],
            ids=tuple(map(str, np.flatnonzero(rows))),
        )
        for split, rows in (("train", before % 5 != 4), ("test", before % 5 == 4))
        if rows.any()
    }
    rule = "the file has none; of each class every fifth instance is taken for testing"
    return replace(assembled(raws, path.stem, str(path), []), split_rule=rule)


def assembled(raws: Mapping[str, Raw], name: str, where: str, notes: list[str]) -> Dataset:
    """A data set of checked splits, whose modalities and labels go together."""
    raws = {split: raw for split, raw in raws.items() if raw.modalities}
    if "train" not in raws:
        raise DatasetError(f"{where} holds no features to train on, only {', '.join(raws) or 'nothing'}")
    labels, classes = _labels(raws, where)
    splits = {split: _checked(raw, labels.get(split), f"{where}, {split}", notes) for split, raw in raws.items()}
    first = splits["train"]
    for split, other in splits.items():
        for modality in {*first.modalities, *other.modalities}:
            here, there = (_width(part.modalities.get(modality)) for part in (first, other))
            if here != there:
                raise DatasetError(f"{where}: {modality} is {here} in train and {there} in {split}")
    order = [split for split in ("train", "valid", "test") if split in splits]
    return Dataset(name, {split: splits[split] for split in order}, classes, tuple(notes))


def _width(rows: Any) -> str:
    if rows is None:
        return "not there"
    if rows.dim() == 4:
        return "images of " + " x ".join(map(str, rows.shape[1:]))
    return f"{'features' if rows.dim() == 2 else 'sequences'} of {rows.shape[-1]}"


def _labels(raws: Mapping[str, Raw], where: str) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Labels of each split, and the names of classes if they are integers."""
    found = {split: raw.labels for split, raw in raws.items() if raw.labels is not None}
    if not found:
        return {}, ()
    if lacking := [split for split in raws if split not in found]:
        raise DatasetError(f"{where}: {', '.join(lacking)} has no labels, and {', '.join(found)} has: give all or none")
    flat: dict[str, np.ndarray] = {}
    for split, array in found.items():
        if array.size != len(array) or array.dtype.kind not in "iubfU":
            raise DatasetError(f"{where}, {split}: labels must be a number each, got {array.dtype} {array.shape}")
        flat[split] = array.reshape(-1)
        if array.dtype.kind == "f" and not np.isfinite(flat[split]).all():
            row = int(np.flatnonzero(~np.isfinite(flat[split]))[0])
            raise DatasetError(f"{where}, {split}: the label of row {row} is {flat[split][row]}")
    texts = [split for split, array in flat.items() if array.dtype.kind == "U"]
    if numbers := [split for split in flat if texts and split not in texts]:
        raise DatasetError(f"{where}: labels are text in {', '.join(texts)} and numbers in {', '.join(numbers)}")
    if any(array.dtype.kind == "f" for array in flat.values()):
        return {split: torch.from_numpy(array.astype(np.float32)) for split, array in flat.items()}, ()
    names = np.unique(np.concatenate(list(flat.values())))
    places = {split: torch.from_numpy(np.searchsorted(names, array)) for split, array in flat.items()}
    return places, tuple(map(str, names.tolist()))


def _checked(raw: Raw, labels: Tensor | None, where: str, notes: list[str]) -> Split:
    counts = {modality: len(array) for modality, array in raw.modalities.items()}
    counts |= {} if labels is None else {"labels": len(labels)}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise DatasetError(f"{where}: modalities must have the same instances, got {told}")
    for name in raw.modalities:
        if not name.isprintable():
            raise DatasetError(f"{where}: {name!r} is no name for a modality: it cannot be printed")
        if used := [word for word in JOINING if word in name]:
            joining = f"results join names by {', '.join(map(repr, JOINING))}"
            raise DatasetError(f"{where}: {name!r} is no name for a modality: it holds {used[0]!r}, and {joining}")
    for kind, names in (("length", raw.lengths), ("present", raw.present)):
        if odd := [name for name in names if name not in raw.modalities]:
            raise DatasetError(f"{where}: {odd[0]}_{kind} without {odd[0]}")
    ready = {
        modality: Modality(array, raw.lengths.get(modality), raw.present.get(modality), f"{where}, {modality}", notes)
        for modality, array in raw.modalities.items()
    }
    there = np.stack([one.present for one in ready.values()])
    if not there.any(0).all():
        row = int(np.flatnonzero(~there.any(0))[0])
        raise DatasetError(f"{where}: row {row} has none of {', '.join(ready)}: leave it out")
    return Split(
        {modality: torch.from_numpy(one.rows) for modality, one in ready.items()},
        labels,
        {modality: torch.from_numpy(one.lengths) for modality, one in ready.items() if one.lengths is not None},
        {modality: torch.from_numpy(one.present) for modality, one in ready.items() if not one.present.all()},
        raw.ids,
    )
