"""CIFAR-10 and CIFAR-100 in the official Python layout: a folder, a .tar.gz archive, or the download."""

import tarfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch

from manyviews.data.dataset import IMAGE_MODALITY, Dataset, DatasetDict
from manyviews.data.download import download, verify_md5
from manyviews.data.errors import DatasetError, translate_errors
from manyviews.data.safe_pickle import load_numpy_pickle
from manyviews.utils import Budget, check_regular, describe_type, open_regular


@dataclass(frozen=True)
class CifarSpec:
    """File names, keys and checksum of one of the two datasets."""

    name: str
    folder: str
    archive: str
    md5: str
    train: tuple[str, ...]
    test: str
    meta: str
    label: bytes
    names: bytes


CIFAR_SPECS = {
    "cifar10": CifarSpec(
        "cifar10", "cifar-10-batches-py", "cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a",
        tuple(f"data_batch_{k}" for k in range(1, 6)), "test_batch", "batches.meta", b"labels", b"label_names",
    ),
    "cifar100": CifarSpec(
        "cifar100", "cifar-100-python", "cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85",
        ("train",), "test", "meta", b"fine_labels", b"fine_label_names",
    ),
}  # fmt: skip


def download_cifar(name: str, root: Path) -> DatasetDict:
    """Load from the folder or the archive in `root`; download the archive if neither exists."""
    spec = CIFAR_SPECS[name]
    if (root / spec.folder).is_dir():
        return load_cifar(root / spec.folder, spec)
    archive = root / spec.archive
    if not archive.exists():
        download(f"https://www.cs.toronto.edu/~kriz/{spec.archive}", archive, spec.md5)
    return load_cifar(archive, spec)


def detect_cifar(path: Path) -> CifarSpec | None:
    """Detect by name or content whether a path is a CIFAR folder or archive, and which one."""
    for spec in CIFAR_SPECS.values():
        if path.name == spec.archive or ((path / spec.meta).is_file() and (path / spec.test).is_file()):
            return spec
    return None


def load_cifar(path: Path, spec: CifarSpec) -> DatasetDict:
    """Load from a folder, or from an archive in one pass; nothing is unpacked to disk."""
    contents = None if path.is_dir() else _read_archive(path, spec)

    def read_file(name: str) -> dict[bytes, Any]:
        try:
            with open_regular(path / name) if contents is None else BytesIO(contents[name]) as file:
                size = (path / name).stat().st_size if contents is None else len(contents[name])
                batch = load_numpy_pickle(file, f"{path}/{name}", size)
        except (KeyError, FileNotFoundError) as error:
            raise DatasetError(f"{path} has no {name}: {spec.name} is incomplete") from error
        if not isinstance(batch, dict):
            raise DatasetError(f"{path}/{name} must hold the dict of a {spec.name} batch, got {describe_type(batch)}")
        return batch

    names = read_file(spec.meta).get(spec.names)
    if not isinstance(names, list) or not all(isinstance(name, bytes) for name in names):
        raise DatasetError(f"{path}/{spec.meta} has no list of class names")

    def read_split(*files: str) -> Dataset:
        pixels: list[np.ndarray] = []
        labels: list[int] = []
        for file in files:
            batch = read_file(file)
            data, label = batch.get(b"data"), batch.get(spec.label)
            if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3072:
                raise DatasetError(f"{path}/{file}: expected uint8 data (n, 3072)")
            label = label.tolist() if isinstance(label, np.ndarray) else label
            if (
                not isinstance(label, list)
                or len(label) != len(data)
                or any(type(y) is not int or y not in range(len(names)) for y in label)
            ):
                raise DatasetError(
                    f"{path}/{file}: expected {len(data)} {spec.label.decode()} from 0 to {len(names) - 1}"
                )
            pixels.append(data)
            labels += label
        images = torch.from_numpy(np.concatenate(pixels)).view(-1, 3, 32, 32)
        return Dataset({IMAGE_MODALITY: images}, torch.tensor(labels, dtype=torch.int64))

    splits = {"train": read_split(*spec.train), "test": read_split(spec.test)}
    return DatasetDict(spec.name, splits, tuple(name.decode(errors="replace") for name in names))


def _read_archive(archive: Path, spec: CifarSpec) -> dict[str, bytes]:
    budget = Budget(archive, check_regular(archive))
    verify_md5(archive, spec.md5)
    wanted = {f"{spec.folder}/{name}": name for name in (*spec.train, spec.test, spec.meta)}
    contents: dict[str, bytes] = {}
    with translate_errors(f"{archive} is truncated or corrupt"), tarfile.open(archive) as tar:
        for member in tar:
            if member.name in wanted and (file := tar.extractfile(member)) is not None:
                budget.take(member.size)
                contents[wanted[member.name]] = file.read()
    return contents
