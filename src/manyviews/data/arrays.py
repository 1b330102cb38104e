"""Images in .npy and .npz files.

A .npy holds images alone. A .npz holds `images` and, if there are, `labels` and `ids`; or the same for each split, as
`train_images`, `train_labels`, `train_ids`, `test_images`, ...; `x_train`, `y_train` and `id_train` say the same.
"""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
import torch

from manyviews.data import bundles
from manyviews.data.dataset import IMAGE, Dataset, DatasetError, Split, split_of
from manyviews.data.modality import as_images
from manyviews.utils.budget import Budget, BudgetError
from manyviews.utils.untrusted import check_regular

MOST_CLASSES = 10**6
PART_BYTES = 2**24
IMAGES = r"(?:(\w+)_)?(images|labels|ids?)|(x|y|ids?)(?:_(\w+))?"
"""The names of arrays in a file of images."""
NAMES = {"images": "images", "x": "images", "labels": "labels", "y": "labels", "ids": "ids", "id": "ids"}


def load_arrays(path: Path) -> Dataset:
    """Images, or, where there are arrays of other names, a bundle (`bundles.py`)."""
    arrays = _read(path)
    if not all(re.fullmatch(IMAGES, name) for name in arrays):
        return bundles.from_arrays(arrays, path.stem, str(path))
    found: dict[str, dict[str, np.ndarray]] = {}
    for name, array in arrays.items():
        match = re.fullmatch(IMAGES, name)
        split = split_of((match[1] or match[4] or "train") if match else "")
        if match is None or split is None:
            raise DatasetError(
                f"{path}: do not know what {name!r} is; expected images, labels, train_images, x_train, ..."
            )
        kind = NAMES[match[2] or match[3]]
        if kind in found.setdefault(split, {}):
            raise DatasetError(f"{path} holds the {kind} of {split} twice, once as {name!r}")
        found[split][kind] = array
    if "images" not in found.get("train", {}):
        raise DatasetError(f"{path} has no images to train on; it holds {', '.join(arrays) or 'nothing'}")
    splits = {name: _split(parts, f"{path}, {name}") for name, parts in found.items()}
    labels = [s.labels for s in splits.values() if s.labels is not None]
    count = int(torch.cat(labels).max()) + 1 if labels else 0
    return Dataset(path.stem, splits, tuple(str(label) for label in range(count)))


def _read(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file, refused if they hold Python objects or would take more than the file's budget."""
    size = check_regular(path)
    budget = Budget(path, size)
    try:
        with path.open("rb") as file:
            start = file.read(6)
            file.seek(0)
            # Of what is no array at all numpy says that it holds Python objects.
            if not start.startswith((b"PK", b"\x93NUMPY")):
                raise DatasetError(f"{path} is no .npy or .npz file, by its first bytes")
            if not start.startswith(b"PK"):
                budget.take(size)
                return {"images": read_npy(file, size)}
            return {
                name.removesuffix(".npy"): read_npy(content, length) for name, length, content in members(file, budget)
            }
    except (DatasetError, BudgetError):
        raise
    # Readers of zip files and of headers fail in many ways on a broken file; none of them is ours to tell apart.
    except Exception as error:
        if isinstance(error, _ObjectsError):
            raise DatasetError(
                f"{path} holds Python objects instead of numbers, as arrays of rows of different shapes do: save "
                "images of different sizes as files in a folder; pad sequences to one array (n, T, d) and save how "
                "many steps each has as NAME_length"
            ) from error
        raise DatasetError(f"{path} is no whole .npy or .npz file: {error}") from error


def members(file: IO[bytes], budget: Budget, by_name: bool = False) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Name, unpacked size and content of each member of a zip archive, if all of them fit into the budget."""
    with zipfile.ZipFile(file) as archive:
        inside = archive.infolist()
        if odd := [one for one in inside if one.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)]:
            raise ValueError(f"{odd[0].filename} is compressed in another way than deflate")
        budget.take(sum(one.file_size for one in inside))
        for one in sorted(inside, key=lambda one: one.filename) if by_name else inside:
            with archive.open(one) as content:
                yield one.filename, one.file_size, content


class _ObjectsError(ValueError):
    """An array of Python objects, which is a pickle."""


def read_npy(file: IO[bytes], size: int) -> np.ndarray:
    """The array in an .npy file of so many bytes: no more memory is taken than it has, whatever its header claims.

    Raises:
        ValueError: it is no whole array of numbers or text.
    """
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"it is of version {version} of the format, which is for named fields")
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read_header(file)
    if dtype.hasobject:
        raise _ObjectsError("it holds Python objects")
    length = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or length > size or not dtype.itemsize:
        raise ValueError(f"it has {size:,} bytes and claims to hold {dtype} {shape}")
    content = np.empty(length, np.uint8)
    place = 0
    while place < length:  # in parts, so that it can be interrupted
        part = file.read(min(PART_BYTES, length - place))
        if not part:
            raise ValueError(f"it ends after {place:,} of {length:,} bytes")
        content[place : place + len(part)] = np.frombuffer(part, np.uint8)
        place += len(part)
    return content.view(dtype).reshape(shape, order="F" if fortran else "C")


def _split(parts: dict[str, np.ndarray], where: str) -> Split:
    if "images" not in parts:
        raise DatasetError(f"{where}: {', '.join(parts)} without images")
    labels = None
    if "labels" in parts:
        given = parts["labels"]
        given = given[:, 0] if given.ndim == 2 and given.shape[1] == 1 else given  # as Keras has them
        if given.ndim != 1 or given.dtype.kind not in "iu":
            raise DatasetError(f"{where}: labels must be integers, one each, got {given.dtype} {given.shape}")
        if given.size and not 0 <= given.min() <= given.max() < MOST_CLASSES:
            raise DatasetError(f"{where}: labels must number classes from 0, got {given.min()} to {given.max()}")
        labels = torch.from_numpy(given.astype(np.int64))
    ids = bundles.read_ids(parts["ids"]) if "ids" in parts else ()
    return Split({IMAGE: as_images(parts["images"], where)}, labels, ids=ids)
