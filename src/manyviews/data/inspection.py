"""Find likely problems of a dataset before training."""

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations

from torch import Tensor

from manyviews.data.dataset import IMAGE_MODALITY, DatasetDict
from manyviews.data.image_files import LazyImages, check_image_header

MAX_EXAMPLES = 5
"""Maximum number of examples in a message."""
MIN_SIDE_PIXELS = 8
"""Images with a shorter side are reported as tiny."""


def find_problems(data: DatasetDict) -> list[str]:
    """Describe likely problems, one per line: load warnings, constant features, duplicate ids, classes that are not in
    the training split, absent modalities, tiny images.

    Examples:
        >>> from manyviews.data import load_dataset
        >>> find_problems(load_dataset("digits"))[:1]
        ['pixels: 3 of 64 features are constant in train']
    """
    checks = (
        _find_constant_features, _find_duplicate_ids, _find_label_problems, _find_absent_modalities, _find_tiny_images,
    )  # fmt: skip
    return [*data.warnings, *(line for check in checks for line in check(data))]


def measure_images(images: Tensor | LazyImages) -> list[tuple[int, int]]:
    """Get height and width of each image; for files, from their headers."""
    return [(images.shape[2], images.shape[3])] * len(images) if isinstance(images, Tensor) else _measure_files(images)


@lru_cache(maxsize=4)
def _measure_files(images: LazyImages) -> list[tuple[int, int]]:
    return [check_image_header(path) for path in images.paths]


def _find_tiny_images(data: DatasetDict) -> Iterator[str]:
    for split, part in data.splits.items():
        images = part.modalities.get(IMAGE_MODALITY)
        sizes = [] if images is None else measure_images(images)
        if tiny := [i for i, size in enumerate(sizes) if min(size) < MIN_SIDE_PIXELS]:
            first = images.paths[tiny[0]] if isinstance(images, LazyImages) else f"index {tiny[0]}"
            height, width = sizes[tiny[0]]
            yield (
                f"{len(tiny):,} of {len(part):,} images in {split} have a side shorter than {MIN_SIDE_PIXELS} pixels, "
                f"such as {first} ({height} x {width})"
            )


def _find_constant_features(data: DatasetDict) -> Iterator[str]:
    train = data["train"]
    for name, features in train.modalities.items():
        if not isinstance(features, Tensor) or features.dim() == 4:
            continue
        valid = features[train.masks[name]] if name in train.masks else features
        flat = valid.flatten(0, -2)
        if name in train.lengths:
            lengths = train.lengths[name][train.masks[name]] if name in train.masks else train.lengths[name]
            flat = valid[(lengths[:, None] > lengths.new_tensor(range(features.shape[1])))]
        constant = int((flat == flat[0]).all(0).sum()) if len(flat) else 0
        if constant:
            yield f"{name}: {constant} of {features.shape[-1]} features are constant in train"


def _find_duplicate_ids(data: DatasetDict) -> Iterator[str]:
    counts = {split: Counter(part.ids) for split, part in data.splits.items() if part.ids}
    for split, ids in counts.items():
        if duplicates := [name for name, count in ids.items() if count > 1]:
            yield f"{len(duplicates)} duplicate ids in {split}: {', '.join(duplicates[:MAX_EXAMPLES])}"
    for first, second in combinations(counts, 2):
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
        for name, mask in part.masks.items():
            if not mask.any():
                yield f"{name} is missing in all instances of {split}"
