"""CIFAR-10 and CIFAR-100 in the official Python layout: a folder, a .tar.gz archive, or the download."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from manyviews.data.dataset import IMAGE_MODALITY, Dataset, DatasetDict, DatasetError
from manyviews.data.download import download, verify_md5
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

    @property
    def url(self) -> str:
        return f"https://www.cs.toronto.edu/~kriz/{self.archive}"


CIFAR_SPECS = {
    "cifar10": CifarSpec(
        "cifar10",
        "cifar-10-batches-py",
        "cifar-10-python.tar.gz",
        "c58f30108f718f92721af3b95e74349a",
        tuple(f"data_batch_{k}" for k in range(1, 6)),
        "test_batch",
        "batches.meta",
        b"labels",
        b"label_names",
    ),
    "cifar100": CifarSpec(
        "cifar100",
        "cifar-100-python",
        "cifar-100-python.tar.gz",
        "eb9058c3a382ffc7106e4002c42a8d85",
        ("train",),
        "test",
        "meta",
        b"fine_labels",
        b"fine_label_names",
    ),
}

OpenMember = Callable[[str], tuple[IO[bytes], int]]
"""Maps the name of a file to its content and its size."""


def load_cifar(name: str, root: Path) -> DatasetDict:
    """Load from the folder or the archive in `root`; download the archive if neither exists."""
    spec = CIFAR_SPECS[name]
    if (root / spec.folder).is_dir():
        return load_cifar_folder(root / spec.folder, spec)
    archive = root / spec.archive
    if not archive.exists():
        download(spec.url, archive, spec.md5)
    return load_cifar_archive(archive, spec)


def detect_cifar(path: Path) -> CifarSpec | None:
    """Detect by name or content whether a path is a CIFAR folder or archive, and which one."""
    for spec in CIFAR_SPECS.values():
        if path.name == spec.archive or ((path / spec.meta).is_file() and (path / spec.test).is_file()):
            return spec
    return None


def load_cifar_folder(folder: Path, spec: CifarSpec) -> DatasetDict:
    return _parse_batches(spec, lambda name: (open_regular(folder / name), (folder / name).stat().st_size), str(folder))


def load_cifar_archive(archive: Path, spec: CifarSpec) -> DatasetDict:
    """Load from the archive in one pass; nothing is unpacked to disk."""
    budget = Budget(archive, check_regular(archive))
    verify_md5(archive, spec.md5)
    wanted = {f"{spec.folder}/{name}": name for name in (*spec.train, spec.test, spec.meta)}
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                if member.name in wanted and (file := tar.extractfile(member)) is not None:
                    budget.take(member.size)
                    contents[wanted[member.name]] = file.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error, KeyError) as error:  # KeyError: a dangling link
        raise DatasetError(f"{archive} is truncated or corrupt: {error}") from error
    return _parse_batches(spec, lambda name: (BytesIO(contents[name]), len(contents[name])), str(archive))


def _parse_batches(spec: CifarSpec, open_member: OpenMember, source: str) -> DatasetDict:
    def read_file(name: str) -> dict[bytes, Any]:
        try:
            file, size = open_member(name)
            with file:
                content = load_numpy_pickle(file, f"{source}/{name}", size)
        except (KeyError, FileNotFoundError) as error:
            raise DatasetError(f"{source} has no {name}: {spec.name} is incomplete") from error
        if not isinstance(content, dict):
            raise DatasetError(
                f"{source}/{name} must hold the dict of a {spec.name} batch, got {describe_type(content)}"
            )
        return content

    def read_split(names: Iterable[str]) -> Dataset:
        pixels: list[np.ndarray] = []
        labels: list[int] = []
        for name in names:
            batch = read_file(name)
            data, label = batch.get(b"data"), batch.get(spec.label)
            if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3072:
                raise DatasetError(f"{source}/{name}: expected uint8 data (n, 3072)")
            label = label.tolist() if isinstance(label, np.ndarray) else label
            if (
                not isinstance(label, list)
                or len(label) != len(data)
                or any(type(y) is not int or y not in range(len(classes)) for y in label)
            ):
                raise DatasetError(
                    f"{source}/{name}: expected {len(data)} {spec.label.decode()} from 0 to {len(classes) - 1}"
                )
            pixels.append(data)
            labels += label
        images = torch.from_numpy(np.concatenate(pixels)).view(-1, 3, 32, 32)
        return Dataset({IMAGE_MODALITY: images}, torch.tensor(labels, dtype=torch.int64))

    names = read_file(spec.meta).get(spec.names)
    if not isinstance(names, list) or not all(isinstance(name, bytes) for name in names):
        raise DatasetError(f"{source}/{spec.meta} has no list of class names")
    classes = tuple(name.decode(errors="replace") for name in names)
    return DatasetDict(spec.name, {"train": read_split(spec.train), "test": read_split([spec.test])}, classes)
