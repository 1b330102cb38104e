"""CIFAR-10 and CIFAR-100 in their official Python layout: a folder, a .tar.gz, or the official download."""

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

from manyviews.data.dataset import IMAGE, Dataset, DatasetError, Split
from manyviews.data.download import check, download
from manyviews.data.pickles import load_numpy_pickle
from manyviews.utils.budget import Budget
from manyviews.utils.untrusted import check_regular, open_regular


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

Open = Callable[[str], tuple[IO[bytes], int]]
"""From the name of a file to its content and its size."""


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
    return _read(layout, lambda name: (open_regular(folder / name), (folder / name).stat().st_size), str(folder))


def from_archive(archive: Path, layout: Layout) -> Dataset:
    """Straight from the archive, in one pass: nothing is unpacked to disk."""
    budget = Budget(archive, check_regular(archive))
    check(archive, layout.md5)
    wanted = {f"{layout.folder}/{name}": name for name in (*layout.train, layout.test, layout.meta)}
    held: dict[str, bytes] = {}
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                if member.name in wanted and (file := tar.extractfile(member)) is not None:
                    budget.take(member.size)
                    held[wanted[member.name]] = file.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error, KeyError) as error:  # a KeyError of links to nothing
        raise DatasetError(f"{archive} is no whole archive: {error}") from error
    return _read(layout, lambda name: (BytesIO(held[name]), len(held[name])), str(archive))


def _read(layout: Layout, opened: Open, where: str) -> Dataset:
    def content(name: str) -> dict[bytes, Any]:
        try:
            file, size = opened(name)
            with file:
                held = load_numpy_pickle(file, f"{where}/{name}", size)
        except (KeyError, FileNotFoundError) as error:
            raise DatasetError(f"{where} holds no {name}: {layout.name} is not complete there") from error
        if not isinstance(held, dict):
            raise DatasetError(f"{where}/{name} holds a {type(held).__name__}, not the dict of a {layout.name} batch")
        return held

    def split(names: Iterable[str]) -> Split:
        pixels: list[np.ndarray] = []
        labels: list[int] = []
        for name in names:
            batch = content(name)
            data, label = batch.get(b"data"), batch.get(layout.label)
            if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3072:
                raise DatasetError(f"{where}/{name}: expected uint8 data (n, 3072)")
            label = label.tolist() if isinstance(label, np.ndarray) else label
            known = range(len(classes))
            if (
                not isinstance(label, list)
                or len(label) != len(data)
                or any(type(y) is not int or y not in known for y in label)
            ):
                raise DatasetError(
                    f"{where}/{name}: expected {len(data)} {layout.label.decode()} from 0 to {len(classes) - 1}"
                )
            pixels.append(data)
            labels += label
        images = torch.from_numpy(np.concatenate(pixels)).view(-1, 3, 32, 32)
        return Split({IMAGE: images}, torch.tensor(labels, dtype=torch.int64))

    names = content(layout.meta).get(layout.names)
    if not isinstance(names, list) or not all(isinstance(name, bytes) for name in names):
        raise DatasetError(f"{where}/{layout.meta} names no classes")
    classes = tuple(name.decode(errors="replace") for name in names)
    return Dataset(layout.name, {"train": split(layout.train), "test": split([layout.test])}, classes)
