"""Images in .npy and .npz files.

A .npy file has images only. A .npz file has `images` and optionally `labels` and `ids`; or the same for each split:
`train_images`, `train_labels`, `train_ids`, `test_images`, ... (or `x_train`, `y_train`, `id_train`, ...).
"""

import math
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
import torch

from manyviews.data.column_arrays import to_nchw
from manyviews.data.dataset import IMAGE_MODALITY, Dataset, DatasetDict, get_canonical_split
from manyviews.data.errors import DatasetError, translate_errors
from manyviews.data.multimodal_arrays import make_dataset_from_arrays, read_ids
from manyviews.utils import Budget, check_regular

MAX_CLASSES = 10**6
CHUNK_BYTES = 2**24
IMAGE_KEY_PATTERN = r"(?:(\w+)_)?(images|labels|ids?)|(x|y|ids?)(?:_(\w+))?"
"""Names of arrays in a file of images."""
KEY_TO_FIELD = {"images": "images", "x": "images", "labels": "labels", "y": "labels", "ids": "ids", "id": "ids"}


def load_arrays(path: Path) -> DatasetDict:
    """Load images or, if any array has another name, a multimodal dataset (`multimodal_arrays.py`)."""
    arrays = _read_npz(path)
    if not all(re.fullmatch(IMAGE_KEY_PATTERN, name) for name in arrays):
        return make_dataset_from_arrays(arrays, path.stem, str(path))
    fields: dict[str, dict[str, np.ndarray]] = {}
    for name, array in arrays.items():
        match = re.fullmatch(IMAGE_KEY_PATTERN, name)
        split = get_canonical_split((match[1] or match[4] or "train") if match else "")
        if match is None or split is None:
            raise DatasetError(f"{path}: unknown array {name!r}; expected images, labels, train_images, x_train, ...")
        field = KEY_TO_FIELD[match[2] or match[3]]
        if field in fields.setdefault(split, {}):
            raise DatasetError(f"{path}: duplicate {field} in split {split} (array {name!r})")
        fields[split][field] = array
    if "images" not in fields.get("train", {}):
        raise DatasetError(f"{path} has no training images; it has {', '.join(arrays) or 'nothing'}")
    splits = {name: _make_split(arrays, f"{path}, {name}") for name, arrays in fields.items()}
    labels = [s.labels for s in splits.values() if s.labels is not None]
    count = int(torch.cat(labels).max()) + 1 if labels else 0
    return DatasetDict(path.stem, splits, tuple(str(label) for label in range(count)))


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of a file; raise if they hold Python objects or would exceed the file's memory budget."""
    size = check_regular(path)
    budget = Budget(path, size)
    with translate_errors(f"cannot parse {path} as .npy or .npz"), path.open("rb") as file:
        start = file.read(6)
        file.seek(0)
        # numpy would report any other file as an array of Python objects.
        if not start.startswith((b"PK", b"\x93NUMPY")):
            raise DatasetError(f"{path} does not start like a .npy or .npz file")
        if not start.startswith(b"PK"):
            budget.take(size)
            return {"images": read_npy(file, size)}
        return {
            name.removesuffix(".npy"): read_npy(content, length) for name, length, content in read_members(file, budget)
        }


def read_members(file: IO[bytes], budget: Budget, by_name: bool = False) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Yield name, unpacked size and content of each member of a zip archive; raise if they exceed the budget."""
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if unsupported := [m for m in members if m.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)]:
            raise ValueError(f"{unsupported[0].filename} has a compression other than deflate")
        budget.take(sum(member.file_size for member in members))
        for member in sorted(members, key=lambda member: member.filename) if by_name else members:
            with archive.open(member) as content:
                yield member.filename, member.file_size, content


def read_npy(file: IO[bytes], size: int) -> np.ndarray:
    """Read the array of a .npy file of `size` bytes, without trusting the shape in its header.

    Raises:
        ValueError: the file is truncated, corrupt, or does not hold numbers or text.
    """
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"version {version} of the format, which is for named fields, is not supported")
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read_header(file)
    if dtype.hasobject:
        raise ValueError(
            "it has Python objects instead of numbers, as arrays of different shapes do: save images of different "
            "sizes as files in a folder; pad sequences to one array (n, T, d) and save their lengths as NAME_length"
        )
    length = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or length > size or not dtype.itemsize:
        raise ValueError(f"the header claims {dtype} {shape}, but the file has {size:,} bytes")
    content = np.empty(length, np.uint8)
    offset = 0
    while offset < length:  # in chunks, so that it can be interrupted
        chunk = file.read(min(CHUNK_BYTES, length - offset))
        if not chunk:
            raise ValueError(f"it ends after {offset:,} of {length:,} bytes")
        content[offset : offset + len(chunk)] = np.frombuffer(chunk, np.uint8)
        offset += len(chunk)
    return content.view(dtype).reshape(shape, order="F" if fortran else "C")


def _make_split(arrays: dict[str, np.ndarray], context: str) -> Dataset:
    if "images" not in arrays:
        raise DatasetError(f"{context}: {', '.join(arrays)} without images")
    labels = None
    if "labels" in arrays:
        values = arrays["labels"]
        values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values  # the shape in Keras
        if values.ndim != 1 or values.dtype.kind not in "iu":
            raise DatasetError(f"{context}: labels must be integers (n,), got {values.dtype} {values.shape}")
        if values.size and not 0 <= values.min() <= values.max() < MAX_CLASSES:
            raise DatasetError(f"{context}: labels must be class indices from 0, got {values.min()} to {values.max()}")
        labels = torch.from_numpy(values.astype(np.int64))
    ids = read_ids(arrays["ids"]) if "ids" in arrays else ()
    return Dataset({IMAGE_MODALITY: to_nchw(arrays["images"], context)}, labels, ids=ids)
