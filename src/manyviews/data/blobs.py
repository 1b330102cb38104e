"""`Blobs`: encoded files (images, audio, video) that are opened when they are needed, wherever they are stored."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING

from PIL import Image
from torch import Tensor

from manyviews.data.image_files import CorruptImageError, ImageSource, open_image, pil_to_tensor
from manyviews.utils import check_regular

if TYPE_CHECKING:
    from typing_extensions import Self


class Blobs(ABC):
    """n encoded files. Workers get a copy of the object, so it must be small and must not hold an open file.

    Examples:
        >>> from pathlib import Path
        >>> blobs = FileBlobs((Path("a.wav"), Path("b.wav")))
        >>> isinstance(blobs, Blobs), blobs.select([1]).get_name(0)
        (True, 'b.wav')
    """

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def open(self, i: int) -> IO[bytes]:
        """Open the content for reading, from its start; the result can seek.

        Raises:
            OSError: it cannot be read.
        """

    @abstractmethod
    def get_name(self, i: int) -> str:
        """Return where the content is stored, for error messages."""

    @abstractmethod
    def select(self, index: Sequence[int]) -> Self:
        """Select files by their indices."""

    @abstractmethod
    def list_content(self) -> list[Tensor | bytes]:
        """List what identifies the content, for a fingerprint: names and sizes, if they are known."""


@dataclass(frozen=True)
class FileBlobs(Blobs):
    """Files on disk.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = (Path(folder) / "a.wav").write_bytes(b"RIFF")
        ...     with FileBlobs((Path(folder) / "a.wav",)).open(0) as file:
        ...         file.read()
        b'RIFF'
    """

    paths: tuple[Path, ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.paths)

    def open(self, i: int) -> IO[bytes]:
        check_regular(self.paths[i])
        return self.paths[i].open("rb")

    def get_name(self, i: int) -> str:
        return str(self.paths[i])

    def select(self, index: Sequence[int]) -> FileBlobs:
        return FileBlobs(tuple(self.paths[i] for i in index))

    def list_content(self) -> list[Tensor | bytes]:
        """List the relative paths and sizes of the files."""
        root = os.path.commonpath([path.parent for path in self.paths]) if self.paths else ""
        return [os.fsencode(f"{p.relative_to(root).as_posix()} {p.stat().st_size}\n") for p in self.paths]


@dataclass(frozen=True)
class BlobImages(ImageSource):
    """Encoded images that are decoded when they are indexed.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("RGB", (20, 10)).save(f"{folder}/a.png")
        ...     BlobImages(FileBlobs((Path(folder) / "a.png",)))[0].shape
        torch.Size([3, 10, 20])
    """

    blobs: Blobs
    raise_on_corrupt: bool = False

    def __len__(self) -> int:
        return len(self.blobs)

    def __getitem__(self, index: int) -> Tensor:  # type: ignore[override]
        with self._open(index) as image:
            return pil_to_tensor(image)

    def select(self, index: Sequence[int]) -> BlobImages:
        return BlobImages(self.blobs.select(index), self.raise_on_corrupt)

    def get_size(self, index: int) -> tuple[int, int]:
        with self._open(index) as image:
            return image.height, image.width

    def get_name(self, index: int) -> str:
        return self.blobs.get_name(index)

    @contextmanager
    def _open(self, index: int) -> Iterator[Image.Image]:
        name = self.blobs.get_name(index)
        try:
            file = self.blobs.open(index)
        except OSError as error:
            raise CorruptImageError(f"{name} cannot be read: {error}") from error
        with file, open_image(file, name) as image:
            yield image

    def list_content(self) -> list[Tensor | bytes]:
        return self.blobs.list_content()
