"""What a person would want to know of data before training on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from torch import Tensor

from manyviews.data.dataset import Dataset, Split

MOST_NAMED = 5
"""Examples that are named."""


def suspicious(data: Dataset) -> list[str]:
    """Lines about what looks wrong: values, features that never change, ids in two splits, classes never trained.

    Examples:
        >>> from manyviews.data import load_dataset
        >>> suspicious(load_dataset("digits"))[:1]
        ['pixels: 3 of 64 features never change in train']
    """
    return [*data.notes, *_constant(data["train"]), *_ids(data), *_labels(data), *_missing(data)]


def _constant(train: Split) -> Iterator[str]:
    for name, rows in train.modalities.items():
        if not isinstance(rows, Tensor) or rows.dim() == 4:
            continue
        there = rows[train.present[name]] if name in train.present else rows
        flat = there.flatten(0, -2)
        if name in train.lengths:
            lengths = train.lengths[name][train.present[name]] if name in train.present else train.lengths[name]
            flat = there[(lengths[:, None] > lengths.new_tensor(range(rows.shape[1])))]
        constant = int((flat == flat[0]).all(0).sum()) if len(flat) else 0
        if constant:
            yield f"{name}: {constant} of {rows.shape[-1]} features never change in train"


def _ids(data: Dataset) -> Iterator[str]:
    counts = {split: Counter(part.ids) for split, part in data.splits.items() if part.ids}
    for split, ids in counts.items():
        twice = [name for name, count in ids.items() if count > 1]
        if twice:
            yield f"{len(twice)} ids are twice in {split}: {', '.join(twice[:MOST_NAMED])}"
    names = list(counts)
    for place, one in enumerate(names):
        for other in names[place + 1 :]:
            if both := sorted(counts[one].keys() & counts[other].keys()):
                yield f"{len(both)} ids are in both {one} and {other}: {', '.join(both[:MOST_NAMED])}"


def _labels(data: Dataset) -> Iterator[str]:
    train = data["train"].labels
    if train is None or train.is_floating_point():
        return
    known = set(train.tolist())
    for split, part in data.splits.items():
        unknown = sorted(set(part.labels.tolist()) - known) if part.labels is not None else []
        if unknown:
            names = ", ".join(data.classes[label] for label in unknown[:MOST_NAMED])
            yield f"{len(unknown)} classes of {split} are not in train: {names}"
    if len(known) == 1:
        yield "all of train is of one class"


def _missing(data: Dataset) -> Iterator[str]:
    for split, part in data.splits.items():
        for name, present in part.present.items():
            if not present.any():
                yield f"{name} is missing in all of {split}"
