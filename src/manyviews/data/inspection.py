"""Find likely problems of a dataset before training."""

from collections import Counter
from collections.abc import Iterator
from itertools import combinations

from torch import Tensor

from manyviews.data.column import Features
from manyviews.data.dataset import DatasetDict
from manyviews.data.image_files import CorruptImageError
from manyviews.data.images import Images

MAX_EXAMPLES = 5
"""Maximum number of examples in a message."""
MIN_SIDE_PIXELS = 8
"""Images with a shorter side are reported as tiny."""


def find_problems(data: DatasetDict) -> list[str]:
    """Describe likely problems, one per line: load warnings, constant features, duplicate ids, classes that are not in
    the training split, absent modalities, images that are corrupt or tiny.

    Examples:
        >>> from manyviews.data import load_dataset
        >>> find_problems(load_dataset("digits"))[:1]
        ['pixels: 3 of 64 features are constant in train']
    """
    checks = (
        _find_constant_features, _find_duplicate_ids, _find_label_problems, _find_absent_modalities,
        _find_image_problems,
    )  # fmt: skip
    return [*data.warnings, *(line for check in checks for line in check(data))]


def _find_image_problems(data: DatasetDict) -> Iterator[str]:
    for split, part in data.splits.items():
        for name, column in part.modalities.items():
            if not isinstance(column, Images):
                continue
            corrupt = [error for error in column.sizes if isinstance(error, CorruptImageError)]
            if corrupt:
                yield f"{name}: {len(corrupt):,} images in {split} are corrupt, such as {corrupt[0]}"
            sizes = {i: size for i, size in enumerate(column.sizes) if isinstance(size, tuple)}
            if tiny := [i for i, size in sizes.items() if min(size) < MIN_SIDE_PIXELS]:
                height, width = sizes[tiny[0]]
                values = column.values
                first = f"index {tiny[0]}" if isinstance(values, Tensor) else values.get_name(tiny[0])
                yield (
                    f"{name}: {len(tiny):,} of {len(sizes):,} images in {split} have a side shorter than "
                    f"{MIN_SIDE_PIXELS} pixels, such as {first} ({height} x {width})"
                )


def _find_constant_features(data: DatasetDict) -> Iterator[str]:
    for name, column in data["train"].modalities.items():
        if isinstance(column, Features):
            valid = column.collect_valid()
            if constant := int((valid == valid[0]).all(0).sum()) if len(valid) else 0:
                yield f"{name}: {constant} of {column.dim} features are constant in train"


def _find_duplicate_ids(data: DatasetDict) -> Iterator[str]:
    counts = {split: Counter(part.ids) for split, part in data.splits.items() if part.ids}
    for split, ids in counts.items():
        if duplicates := [name for name, count in ids.items() if count > 1]:
            yield f"{len(duplicates)} duplicate ids in {split}: {', '.join(duplicates[:MAX_EXAMPLES])}"
    # Numbers of rows, which begin anew in each split, identify nothing.
    named = [split for split, ids in counts.items() if list(ids) != [str(i) for i in range(len(ids))]]
    for first, second in combinations(named, 2):
        if both := sorted(counts[first].keys() & counts[second].keys()):
            yield f"{len(both)} ids are in both {first} and {second}: {', '.join(both[:MAX_EXAMPLES])}"


def _find_label_problems(data: DatasetDict) -> Iterator[str]:
    labels = data["train"].class_labels
    if labels is None:
        return
    train_classes = set(labels.tolist())
    for split, part in data.splits.items():
        if part.labels is not None and (unknown := sorted(set(part.labels.tolist()) - train_classes)):
            names = ", ".join(data.class_names[label] for label in unknown[:MAX_EXAMPLES])
            yield f"{len(unknown)} classes of {split} are not in train: {names}"
    if len(train_classes) == 1:
        yield "all training instances have the same class"


def _find_absent_modalities(data: DatasetDict) -> Iterator[str]:
    for split, part in data.splits.items():
        for name, column in part.modalities.items():
            if not column.get_mask().any():
                yield f"{name} is missing in all instances of {split}"
