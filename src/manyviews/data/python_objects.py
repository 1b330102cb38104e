"""Datasets from Python objects: tensors, dicts of them, and map-style datasets of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeGuard, cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from manyviews.data.column import Column, Features
from manyviews.data.dataset import IMAGE_MODALITY, Dataset, DatasetDict, get_canonical_split
from manyviews.data.errors import DatasetError, warn_each
from manyviews.data.hf_datasets import convert_hf_dataset, is_hf_dataset
from manyviews.data.image_files import CorruptImageError, ImageSource, array_to_tensor, pil_to_tensor
from manyviews.data.images import Images
from manyviews.data.multimodal_arrays import check_modality_name
from manyviews.data.sequences import Sequences
from manyviews.data.texts import Texts
from manyviews.data.vectors import Vectors
from manyviews.utils import describe_type, track

MAX_IN_MEMORY_BYTES = 2**30
"""Images of one size are held as one tensor up to this many bytes."""
NUM_SAMPLED = 16
"""Items that are read first: whether images have one size, and whether an attribute has the labels."""
NUM_FINGERPRINTED = 32
"""Items of a dataset that stand for all of them in its fingerprint."""
TARGET_ATTRIBUTES = ("targets", "labels", "_labels")
"""Attributes in which datasets of torchvision have the labels of all items."""


_IMAGE = object()
"""Stands for an image in a list of values."""


class MapDataset(Protocol):
    """A map-style dataset of torch."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


def convert_dataset(source: object) -> DatasetDict:
    """Convert a Python object to a dataset.

    Args:
        source: a `DatasetDict`; a `Dataset`; a Hugging Face dataset, whose columns become modalities; a tensor; a dict
            of modalities (each a tensor, a list of str, or a `Column`) and optional `labels`; a map-style dataset of
            torch, whose items are an image, (image, label), or a dict of modalities and an optional `label`; or a dict
            of any of these by split ("train", "valid", "test").

    Raises:
        DatasetError: the object is empty, or its items differ in kind.
        TypeError: the object is none of these.

    Examples:
        >>> convert_dataset(torch.zeros(5, 3, 8, 8, dtype=torch.uint8))["train"]
        Dataset(5 instances, image (image), no labels)
        >>> convert_dataset({"train": {"audio": torch.randn(5, 40), "name": ["a", "b", "c", "d", "e"]}})["train"]
        Dataset(5 instances, audio (vector), name (text), no labels)
        >>> convert_dataset([(Image.new("RGB", (8, 8)), "cat"), (Image.new("RGB", (8, 8)), "dog")]).class_names
        ('cat', 'dog')
    """
    if isinstance(source, DatasetDict):
        _check_splits(source.splits)
        return source
    if is_hf_dataset(source):
        data = convert_hf_dataset(source)
        _check_splits(data.splits)
        warn_each(data.warnings, "the dataset")
        return data
    parts: dict[str, object] = {"train": source}
    if isinstance(source, Mapping) and source and all(get_canonical_split(str(name)) for name in source):
        parts = {cast("str", get_canonical_split(str(name))): part for name, part in source.items()}
        if "train" not in parts or len(parts) != len(source):
            raise DatasetError(f"a dict of splits must have train, and each split once, got {', '.join(source)}")
    converted = {name: _convert_split(part) for name, part in parts.items()}
    class_names, labels = _encode_labels({name: part for name, (_, part) in converted.items()})
    splits = {
        name: split if labels[name] is None else replace(split, labels=labels[name])
        for name, (split, _) in converted.items()
    }
    _check_splits(splits)
    if not class_names:
        counts = [int(split.class_labels.max()) + 1 for split in splits.values() if split.class_labels is not None]
        class_names = tuple(map(str, range(max(counts, default=0))))
    return DatasetDict("dataset", splits, class_names)


def _check_splits(splits: Mapping[str, Dataset]) -> None:
    """Raise a DatasetError for names, values or widths that would fail in training or evaluation."""
    train = splits["train"]
    for split, dataset in splits.items():
        for name in {**train.modalities, **dataset.modalities}:
            columns = (part.modalities.get(name) for part in (train, dataset))
            expected, got = ("missing" if column is None else _describe_column(column) for column in columns)
            if expected != got:
                raise DatasetError(f"{name} is {expected} in train and {got} in {split}: all splits must be alike")
        for name, column in dataset.modalities.items():
            check_modality_name(name, "rename the modality")
            if isinstance(column, Features) and (i := column.find_nonfinite()) is not None:
                raise DatasetError(
                    f"{name} must be finite, instance {i} of {split} has NaN or infinite values: set them to 0, or "
                    "mark the instance as missing by the mask of the column"
                )


def _describe_column(column: Column) -> str:
    return column.describe() if isinstance(column, Features) else f"of kind {column.kind}"


def _convert_split(source: object) -> tuple[Dataset, Sequence[Any] | None]:
    """Convert a split to a dataset, and return its labels unless they are in the dataset."""
    if isinstance(source, Dataset):
        return source, None
    if isinstance(source, Tensor):
        name = IMAGE_MODALITY if source.dim() == 4 else "features"
        return Dataset({name: source}), None
    if isinstance(source, Mapping):
        modalities = {str(name): values for name, values in source.items()}
        labels = modalities.pop("labels", modalities.pop("label", None))
        return Dataset(modalities), None if labels is None else [_to_plain(label) for label in labels]
    if _is_map_dataset(source):
        return _read_items(source)
    raise TypeError(
        "data must be a name, a path, a tensor, a dict of modalities, or a dataset with __len__ and __getitem__, got "
        f"{describe_type(source)}"
    )


def _is_map_dataset(source: object) -> TypeGuard[MapDataset]:
    return not isinstance(source, (str, bytes)) and hasattr(source, "__len__") and hasattr(source, "__getitem__")


def _encode_labels(
    labels: Mapping[str, Sequence[Any] | None],
) -> tuple[tuple[str, ...], dict[str, Tensor | None]]:
    """Return the names of the classes, and the labels of each split as indices of them or as regression targets."""
    values = [value for part in labels.values() for value in part or ()]
    if any(isinstance(value, float) for value in values):
        return (), {name: None if part is None else torch.tensor(part).float() for name, part in labels.items()}
    names = sorted(set(values), key=lambda value: (isinstance(value, str), value))
    index = {value: i for i, value in enumerate(names)}
    encoded = {name: None if part is None else torch.tensor([index[v] for v in part]) for name, part in labels.items()}
    return tuple(map(str, names)), encoded


def _read_items(dataset: MapDataset) -> tuple[Dataset, Sequence[Any] | None]:
    """Read a map-style dataset: images lazily unless they are small, everything else at once."""
    count = len(dataset)
    if not count:
        raise DatasetError("the dataset is empty")
    first = dataset[0]
    if isinstance(first, Mapping):
        return _read_dict_items(dataset, count, first)
    is_tuple = isinstance(first, tuple | list)
    has_labels = is_tuple and len(first) > 1
    get_image: Callable[[Any], Any] = _get_first if is_tuple else _get_item
    sample = {i: dataset[i] if i else first for i in range(0, count, -(-count // NUM_SAMPLED))}
    images = [_to_image(get_image(item), i) for i, item in sample.items()]
    is_small = len({image.shape for image in images}) == 1 and count * images[0].nbytes <= MAX_IN_MEMORY_BYTES
    # Small images are read here, and their labels with them: items may have other labels than the attribute.
    targets = None
    if has_labels and not is_small:
        targets = _find_targets(dataset, count, {i: _to_plain(item[1]) for i, item in sample.items()})
    labels, stack = [] if targets is None else targets, _ImageStack(count, MAX_IN_MEMORY_BYTES)
    if is_small or (has_labels and targets is None):
        for i in track(range(count), "reading the dataset", count):
            item = dataset[i]
            if has_labels:
                labels.append(_to_plain(item[1]))
            if is_small:
                stack.add(_to_image(get_image(item), i))
    values = ItemImages(dataset, tuple(range(count)), get_image) if stack.images is None else stack.images
    return Dataset({IMAGE_MODALITY: values}), labels if has_labels else None


class _ImageStack:
    """Up to `count` images of one size in one tensor; None once their sizes differ or they take too much memory."""

    def __init__(self, count: int, max_bytes: int) -> None:
        self.count, self.max_bytes, self.length = count, max_bytes, 0
        self.images: Tensor | None = None

    def add(self, image: Tensor) -> None:
        if self.images is None and self.count * image.nbytes <= self.max_bytes:
            self.images = torch.empty(self.count, *image.shape, dtype=torch.uint8)
        if self.images is None or image.shape != self.images.shape[1:]:
            self.images, self.max_bytes = None, 0
            return
        self.images[self.length] = image
        self.length += 1


def _read_dict_items(dataset: MapDataset, count: int, first: Mapping[str, Any]) -> tuple[Dataset, Sequence[Any] | None]:
    names = [str(name) for name in first]
    values: dict[str, list[Any]] = {name: [] for name in names}
    stacks: dict[str, _ImageStack] = {}
    for i in track(range(count), "reading the dataset", count):
        item = dataset[i] if i else first
        if not isinstance(item, Mapping) or (unknown := [name for name in item if name not in names]):
            got = describe_type(item) if not isinstance(item, Mapping) else f"the key {unknown[0]!r}"
            raise DatasetError(f"item {i} must be a dict with the keys {', '.join(names)}, got {got}")
        for name in names:
            value = item.get(name)
            if _is_image(value):
                if name not in stacks:
                    used_bytes = sum(stack.images.nbytes for stack in stacks.values() if stack.images is not None)
                    stacks[name] = _ImageStack(count, MAX_IN_MEMORY_BYTES - used_bytes)
                stacks[name].add(_to_image(value, i))
            values[name].append(_IMAGE if _is_image(value) else value)
    labels = values.pop("label", None)
    modalities: dict[str, Column] = {}
    for name, part in values.items():
        is_image = name in stacks
        modalities[name] = (
            _make_image_column(dataset, name, part, stacks[name]) if is_image else _make_feature_column(name, part)
        )
    return Dataset(modalities), None if labels is None else [_to_plain(label) for label in labels]


def _make_image_column(dataset: MapDataset, name: str, values: Sequence[Any], stack: _ImageStack) -> Images:
    if invalid := [i for i, value in enumerate(values) if value is not None and value is not _IMAGE]:
        got = describe_type(values[invalid[0]])
        raise DatasetError(f"{name} must be an image or None in all items, item {invalid[0]} has {got}")
    mask = torch.tensor([value is _IMAGE for value in values])
    images: Tensor | ItemImages
    if stack.images is None:
        images = ItemImages(dataset, tuple(mask.nonzero().squeeze(1).tolist()), _KeyGetter(name))
    else:
        images = stack.images[: stack.length]
    return Images(images) if mask.all() else Images(images, mask.long())


def _make_feature_column(name: str, values: Sequence[Any]) -> Column:
    """Make a column of texts, vectors or sequences; None is missing."""
    present = [value for value in values if value is not None]
    if not present:
        raise DatasetError(f"all items lack {name}")
    if all(isinstance(value, str) for value in present):
        return Texts(tuple(value or "" for value in values))
    try:
        tensors = [None if value is None else torch.as_tensor(value, dtype=torch.float32) for value in values]
    except (TypeError, ValueError, RuntimeError) as error:
        raise DatasetError(f"{name} must be an image, a text, or numbers (d,) or (T, d): {error}") from error
    mask = torch.tensor([tensor is not None for tensor in tensors])
    example = next(tensor for tensor in tensors if tensor is not None)
    formats = {(tensor.dim(), tensor.shape[-1:]) for tensor in tensors if tensor is not None}
    if example.dim() not in (1, 2) or len(formats) > 1:
        got = ", ".join(f"{dims}-dimensional" + "".join(f" of {d}" for d in width) for dims, width in sorted(formats))
        raise DatasetError(f"{name} must be numbers (d,) or (T, d) with the same d in all items, got {got}")
    zero = torch.zeros(example.shape if example.dim() == 1 else (1, example.shape[1]))
    filled = [zero if tensor is None else tensor for tensor in tensors]
    optional_mask = None if mask.all() else mask
    if example.dim() == 1:
        return Vectors(torch.stack(filled), mask=optional_mask)
    lengths = torch.tensor([len(tensor) for tensor in filled])
    padded = torch.nn.utils.rnn.pad_sequence(filled, batch_first=True)
    return Sequences(padded, lengths, mask=optional_mask)


@dataclass(frozen=True)
class ItemImages(ImageSource):
    """Images of the items of a map-style dataset, read when they are indexed."""

    dataset: MapDataset = field(repr=False)
    items: tuple[int, ...] = field(repr=False)
    """Indices of the items."""
    get_image: Callable[[Any], Any] = field(repr=False)
    raise_on_corrupt: bool = False

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Tensor:  # type: ignore[override]
        i = self.items[index]
        return _to_image(self.get_image(self.dataset[i]), i)

    def select(self, index: Sequence[int]) -> ItemImages:
        return replace(self, items=tuple(self.items[i] for i in index))

    def get_size(self, index: int) -> tuple[int, int]:
        height, width = self[index].shape[1:]
        return height, width

    def list_content(self) -> list[Tensor | bytes]:
        """List the indices of the items, and the pixels of some of them."""
        step = -(-len(self) // NUM_FINGERPRINTED)
        return [torch.tensor(self.items), *(self[i].contiguous() for i in range(0, len(self), step))]


@dataclass(frozen=True)
class _KeyGetter:
    name: str

    def __call__(self, item: Mapping[str, Any]) -> Any:
        return item[self.name]


def _get_first(item: Sequence[Any]) -> Any:
    return item[0]


def _get_item(item: Any) -> Any:
    return item


def _find_targets(dataset: MapDataset, count: int, labels: Mapping[int, Any]) -> list[Any] | None:
    """Return the labels of all items, if an attribute of the dataset has them and agrees with those of some items."""
    for name in TARGET_ATTRIBUTES:
        targets = getattr(dataset, name, None)
        if isinstance(targets, (list, tuple, Tensor, np.ndarray)) and len(targets) == count:
            with suppress(DatasetError):  # several numbers for each item
                plain = [_to_plain(target) for target in targets]
                if all(plain[i] == label for i, label in labels.items()):
                    return plain
    return None


def _is_image(value: object) -> bool:
    return isinstance(value, Image.Image) or (
        isinstance(value, (Tensor, np.ndarray)) and value.ndim == 3 and value.dtype in (torch.uint8, np.uint8)
    )


def _to_image(value: Any, i: int) -> Tensor:
    """Convert an image to uint8 (3, H, W)."""
    if isinstance(value, Image.Image):
        return pil_to_tensor(value)
    if isinstance(value, np.ndarray) and value.ndim == 3:
        value = array_to_tensor(value)
    if isinstance(value, Tensor) and value.dtype == torch.uint8 and value.dim() == 3 and value.shape[0] in (1, 3):
        return value.expand(3, -1, -1)
    got = f"{value.dtype} {tuple(value.shape)}" if hasattr(value, "dtype") else describe_type(value)
    hint = ": leave ToTensor and Normalize out of the dataset's transform" if "float" in got else ""
    raise CorruptImageError(f"item {i} must be a PIL image or uint8 (3, H, W), got {got}{hint}")


def _to_plain(label: Any) -> Any:
    """Convert a label to str, int or float."""
    try:
        value = label.item() if hasattr(label, "item") else label
    except (ValueError, RuntimeError):  # several numbers
        value = label
    if not isinstance(value, (str, int, float)):
        raise DatasetError(f"a label must be a number or a text, got {describe_type(label)}")
    return int(value) if isinstance(value, bool) else value
