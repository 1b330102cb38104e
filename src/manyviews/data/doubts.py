"""What a person would want to know of data before training on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

from torch import Tensor

from manyviews.data.dataset import IMAGE, Dataset, Split
from manyviews.data.files import ImageFiles, check_header

MOST_NAMED = 5
"""Examples that are named."""
MIN_SIDE_PIXELS = 8
"""An image with a shorter side has hardly anything to crop."""


def suspicious(data: Dataset) -> list[str]:
    """Lines about what looks wrong: values, tiny images, features that never change, ids in two
    splits, classes never trained.

    Examples:
        >>> from manyviews.data import load_dataset
        >>> suspicious(load_dataset("digits"))[:1]
        ['pixels: 3 of 64 features never change in train']
    """
    lines = (_constant(data["train"]), _ids(data), _labels(data), _missing(data), _tiny(data))
    return [*data.notes, *(line for kind in lines for line in kind)]


def measure_images(images: Tensor | ImageFiles) -> list[tuple[int, int]]:
    """Height and width of each image, read from the headers of files."""
    return [(images.shape[2], images.shape[3])] * len(images) if isinstance(images, Tensor) else _measure_files(images)


@lru_cache(maxsize=4)
def _measure_files(images: ImageFiles) -> list[tuple[int, int]]:
    return [check_header(path) for path in images.paths]


def _tiny(data: Dataset) -> Iterator[str]:
    for split, part in data.splits.items():
        images = part.modalities.get(IMAGE)
        sizes = [] if images is None else measure_images(images)
        if tiny := [place for place, size in enumerate(sizes) if min(size) < MIN_SIDE_PIXELS]:
            first = images.paths[tiny[0]] if isinstance(images, ImageFiles) else f"number {tiny[0]}"
            height, width = sizes[tiny[0]]
            yield (
                f"{len(tiny):,} of {len(part):,} images of {split} have a side of less than {MIN_SIDE_PIXELS} pixels, "
                f"such as {first} ({height} x {width})"
            )


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
