"""CIFAR-10 and CIFAR-100 in their official Python layout: a folder, a .tar.gz, or the official download."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from manyviews.data.dataset import IMAGE, Dataset, DatasetError, Split
from manyviews.data.download import check, download
from manyviews.data.pickles import load_numpy_pickle


@dataclass(frozen=True)
class Layout:
    """Where things are in one of the two sets."""

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
    def address(self) -> str:
        return f"https://www.cs.toronto.edu/~kriz/{self.archive}"


LAYOUTS = {
    "cifar10": Layout(
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
    "cifar100": Layout(
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

Open = Callable[[str], IO[bytes]]


def load_cifar(name: str, root: Path) -> Dataset:
    """From `root`: the folder or the archive, which is downloaded if neither is there."""
    layout = LAYOUTS[name]
    if (root / layout.folder).is_dir():
        return from_folder(root / layout.folder, layout)
    archive = root / layout.archive
    if not archive.exists():
        download(layout.address, archive, layout.md5)
    return from_archive(archive, layout)


def layout_of(path: Path) -> Layout | None:
    """Which set a folder or an archive is, by its name or what is in it."""
    for layout in LAYOUTS.values():
        if path.name == layout.archive or ((path / layout.meta).is_file() and (path / layout.test).is_file()):
            return layout
    return None


def from_folder(folder: Path, layout: Layout) -> Dataset:
    return _read(layout, lambda name: (folder / name).open("rb"), str(folder))


def from_archive(archive: Path, layout: Layout) -> Dataset:
    """Straight from the archive: nothing is unpacked to disk."""
    check(archive, layout.md5)
    with tarfile.open(archive) as tar:

        def member(name: str) -> IO[bytes]:
            file = tar.extractfile(f"{layout.folder}/{name}")
            if file is None:
                raise DatasetError(f"{archive} holds no {layout.folder}/{name}")
            return file

        return _read(layout, member, str(archive))


def _read(layout: Layout, opened: Open, where: str) -> Dataset:
    def content(name: str) -> dict[bytes, Any]:
        try:
            with opened(name) as file:
                held = load_numpy_pickle(file, f"{where}/{name}")
        except (KeyError, FileNotFoundError) as error:
            raise DatasetError(f"{where} holds no {name}: {layout.name} is not complete there") from error
        if not isinstance(held, dict):
            raise DatasetError(f"{where}/{name} holds a {type(held).__name__}, not the dict of a {layout.name} batch")
        return held

    def split(names: Iterable[str]) -> Split:
        pixels, labels = [], []
        for name in names:
            batch = content(name)
            data, label = np.asarray(batch.get(b"data")), np.asarray(batch.get(layout.label))
            if data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3072 or label.shape != data.shape[:1]:
                raise DatasetError(
                    f"{where}/{name}: expected uint8 data (n, 3072) and n {layout.label.decode()}, "
                    f"got {data.dtype} {data.shape} and {label.shape}"
                )
            pixels.append(data)
            labels.append(label)
        images = torch.from_numpy(np.concatenate(pixels)).view(-1, 3, 32, 32)
        return Split({IMAGE: images}, torch.from_numpy(np.concatenate(labels)).long())

    classes = tuple(name.decode() for name in content(layout.meta)[layout.names])
    return Dataset(layout.name, {"train": split(layout.train), "test": split([layout.test])}, classes)
