"""`TarBlobs`: members of tar files, which are read by their offsets when they are needed."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from manyviews.data.blobs import Blobs
from manyviews.utils import check_regular

BUFFER_BYTES = 2**18
"""A smaller member is read at once."""


@dataclass(frozen=True)
class TarBlobs(Blobs):
    """Members of tar files that are read by their offsets; a file is open only while a member of it is.

    Examples:
        >>> import tarfile, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "a.tar"
        ...     with tarfile.open(path, "w") as tar:
        ...         member = tarfile.TarInfo("cat.txt")
        ...         member.size = 4
        ...         tar.addfile(member, io.BytesIO(b"meow"))
        ...     numbers = np.array([0]), np.array([512]), np.array([4])
        ...     with TarBlobs((path,), *numbers, ("cat.txt",)).open(0) as content:
        ...         content.read()
        b'meow'
    """

    shards: tuple[Path, ...] = field(repr=False)
    shard: np.ndarray = field(repr=False)
    """Index (n,) of the tar file of each member."""
    offsets: np.ndarray = field(repr=False)
    sizes: np.ndarray = field(repr=False)
    names: tuple[str, ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.names)

    def open(self, i: int) -> IO[bytes]:
        path, size = self.shards[self.shard[i]], int(self.sizes[i])
        check_regular(path)
        part = _FilePart(path.open("rb", buffering=0), int(self.offsets[i]), size)
        return io.BufferedReader(part, max(1, min(size, BUFFER_BYTES)))

    def get_name(self, i: int) -> str:
        return f"{self.shards[self.shard[i]]}, member {self.names[i]}"

    def select(self, index: Sequence[int]) -> TarBlobs:
        kept = np.asarray(index, np.int64)
        names = tuple(self.names[i] for i in index)
        return replace(self, shard=self.shard[kept], offsets=self.offsets[kept], sizes=self.sizes[kept], names=names)

    def list_content(self) -> list[Tensor | bytes]:
        """List the names and sizes of the members."""
        return ["\0".join(self.names).encode("utf-8", "surrogateescape"), torch.from_numpy(self.sizes)]


class _FilePart(io.RawIOBase):
    """`size` bytes of a file from `start`; closing it closes the file."""

    def __init__(self, file: IO[bytes], start: int, size: int) -> None:
        self.file, self.start, self.size, self.position = file, start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self.position, os.SEEK_END: self.size}[whence]
        if base + offset < 0:
            raise OSError(f"cannot seek to {base + offset}")
        self.position = base + offset
        return self.position

    def tell(self) -> int:
        return self.position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        count = max(0, min(len(buffer), self.size - self.position))
        self.file.seek(self.start + self.position)
        content = self.file.read(count)
        buffer[: len(content)] = content
        self.position += len(content)
        return len(content)

    def close(self) -> None:
        self.file.close()
        super().close()
