"""Images in .npy and .npz files.

A .npy holds images alone. A .npz holds `images` and, if there are, `labels`; or the same for each split, as
`train_images`, `train_labels`, `test_images`, ...; `x_train` and `y_train` say the same.
"""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import numpy as np
import torch

from manyviews.data import bundles
from manyviews.data.dataset import IMAGE, Dataset, DatasetError, Split, split_of
from manyviews.data.modality import as_images

MOST_CLASSES = 10**6
MOST_BYTES = 2**36
IMAGES = r"(?:(\w+)_)?(images|labels)|(x|y)(?:_(\w+))?"
"""The names of arrays in a file of images."""
NAMES = {"images": "images", "x": "images", "labels": "labels", "y": "labels"}


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
    """The arrays of a file, refused if they hold Python objects or would unpack to more than `MOST_BYTES`."""
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as members:
                unpacked = sum(member.file_size for member in members.infolist())
            if unpacked > MOST_BYTES:
                raise DatasetError(
                    f"{path} unpacks to {unpacked:,} bytes: save it as .npy files, or images in a folder"
                )
        with path.open("rb") as file:
            # Of what is no array at all numpy says that it holds Python objects.
            if not file.peek(6).startswith((b"PK", b"\x93NUMPY")):
                raise DatasetError(f"{path} is no .npy or .npz file, by its first bytes")
            held = np.load(file, allow_pickle=False)
            arrays = {"images": held} if isinstance(held, np.ndarray) else {name: held[name] for name in held.files}
    except DatasetError:
        raise
    # numpy's reader fails in many ways on a broken file; none of them is ours to tell apart.
    except Exception as error:
        if "allow_pickle" in str(error) or "Object arrays" in str(error):
            raise DatasetError(
                f"{path} holds Python objects, such as images of different sizes: save one array of equally large "
                "images, or the images as files in a folder"
            ) from error
        raise DatasetError(f"{path} is no whole .npy or .npz file: {error}") from error
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise DatasetError(f"{path}: {name} is no array")
    return arrays


def _split(parts: dict[str, np.ndarray], where: str) -> Split:
    if "images" not in parts:
        raise DatasetError(f"{where}: labels without images")
    labels = None
    if "labels" in parts:
        given = parts["labels"]
        given = given[:, 0] if given.ndim == 2 and given.shape[1] == 1 else given  # as Keras has them
        if given.ndim != 1 or given.dtype.kind not in "iu":
            raise DatasetError(f"{where}: labels must be integers, one each, got {given.dtype} {given.shape}")
        if given.size and not 0 <= given.min() <= given.max() < MOST_CLASSES:
            raise DatasetError(f"{where}: labels must number classes from 0, got {given.min()} to {given.max()}")
        labels = torch.from_numpy(given.astype(np.int64))
    return Split({IMAGE: as_images(parts["images"], where)}, labels)
