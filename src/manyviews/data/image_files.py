"""Decode image files, and read them lazily from disk."""

from __future__ import annotations

import operator
import os
import warnings
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from manyviews.data.errors import CorruptFileError, DatasetError
from manyviews.utils import check_regular, get_memory_limit

if TYPE_CHECKING:
    from typing_extensions import Self

IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "PPM", "TIFF", "GIF")
"""Detected by the first bytes (MPO starts like JPEG). Some other formats of PIL start programs, such as Ghostscript."""
IMAGE_EXTENSIONS = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm", ".tif", ".tiff", ".gif"}
MAX_PIXELS = 100_000_000
"""A larger image is refused as a decompression bomb."""
PIXEL_BYTES = 16
"""Memory per pixel while an image is decoded and converted."""


class CorruptImageError(CorruptFileError):
    """A file is not an image, or is truncated or corrupt."""


def read_image(path: Path) -> Tensor:
    """Read an image as uint8 (3, H, W): rotated by EXIF, converted to RGB, transparency over white.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("L", (20, 10)).save(f"{folder}/a.png")
        ...     read_image(Path(folder) / "a.png").shape
        torch.Size([3, 10, 20])
    """
    with open_image(path) as image:
        return pil_to_tensor(image)


def pil_to_tensor(image: Image.Image) -> Tensor:
    """Convert a PIL image to uint8 (3, H, W): rotated by EXIF, converted to RGB, transparency over white.

    Examples:
        >>> pil_to_tensor(Image.new("P", (20, 10))).shape
        torch.Size([3, 10, 20])
    """
    name = getattr(image, "filename", None) or "the image"
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):
        # 16 bits per pixel; PIL's conversion clips values at 255.
        values = np.asarray(image).astype(np.int64)
        if values.min() < 0 or values.max() > 65535:
            raise CorruptImageError(f"{name}: pixels must have 8 or 16 bits: convert it")
        image = Image.fromarray((values // 257).astype(np.uint8))
    elif image.mode == "F":
        raise CorruptImageError(f"{name}: pixels are floats with an unknown range: convert it")
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
    return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1).contiguous()


def array_to_tensor(array: np.ndarray) -> Tensor:
    """Convert an array (H, W, C) or (C, H, W) to a tensor (C, H, W).

    Examples:
        >>> array_to_tensor(np.zeros((10, 20, 3), np.uint8)).shape
        torch.Size([3, 10, 20])
    """
    return torch.from_numpy(array if array.shape[0] in (1, 3) else array.transpose(2, 0, 1).copy())


def check_image_header(path: Path) -> tuple[int, int]:
    """Read height and width from the header; raise if it is invalid or has too many pixels."""
    with open_image(path) as image:
        return image.height, image.width


@contextmanager
def open_image(source: Path | IO[bytes], name: str = "") -> Iterator[Image.Image]:
    """Open an image of one of `IMAGE_FORMATS`; the package opens images only here.

    Messages contain `name`, or else the source.

    Raises:
        CorruptImageError: it is not a regular file, or has another format, or is truncated or corrupt.
        DatasetError: its header has too many pixels.
    """
    bomb_hint = "a decompression bomb? Remove it, or shrink it if you trust it"
    max_pixels = min(MAX_PIXELS, get_memory_limit() // PIXEL_BYTES)
    try:
        if isinstance(source, Path):
            check_regular(source)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about large images and invalid EXIF
            with Image.open(source, formats=IMAGE_FORMATS) as image:
                if image.width * image.height > max_pixels:
                    raise DatasetError(f"{name or source} has {image.width} x {image.height} pixels: {bomb_hint}")
                yield image
    except Image.DecompressionBombError as error:
        raise DatasetError(f"{name or source}: {error}: {bomb_hint}") from error
    except DatasetError:
        raise
    # PIL raises many kinds of errors on a corrupt file (struct.error, IndexError, ...).
    except Exception as error:
        if isinstance(source, Path) and isinstance(error, UnidentifiedImageError) and (kind := _get_format(source)):
            supported = f"{', '.join(IMAGE_FORMATS[:-1])} or {IMAGE_FORMATS[-1]}"
            raise CorruptImageError(f"{source} has the unsupported format {kind}: convert it to {supported}") from error
        raise CorruptImageError(f"{name or source} cannot be decoded: {error}") from error


def _get_format(path: Path) -> str | None:
    """Detect an unsupported format from the first bytes of a file."""
    with path.open("rb") as file:
        start = file.read(16).ljust(16, b"\0")
    if start.startswith(b"%PDF"):
        return "PDF"
    Image.init()
    # `accepts` returns a bool, or text if PIL needs another package for the format.
    detected = (
        name for name, (_, accepts) in Image.OPEN.items() if accepts and accepts(start) and name not in IMAGE_FORMATS
    )
    return next(detected, None)


class ImageSource(Sequence[Tensor]):
    """Images uint8 (3, H, W) of any sizes that are read when they are indexed."""

    raise_on_corrupt: bool
    """Whether a corrupt image is an error, and not only skipped with a warning."""

    @abstractmethod
    def select(self, index: Sequence[int]) -> Self:
        """Select images by their indices."""

    @abstractmethod
    def get_size(self, index: int) -> tuple[int, int]:
        """Return height and width of an image, if possible without reading it."""

    @abstractmethod
    def list_content(self) -> list[Tensor | bytes]:
        """List what identifies the images, for a fingerprint."""

    def get_name(self, index: int) -> str:
        """Return where an image is stored, for messages."""
        return f"index {index}"

    def read_or_next(self, index: int) -> tuple[Tensor, int, list[str]]:
        """Read an image, or the next one that can be read: its pixels, its index, and the errors of skipped images.

        Raises:
            CorruptImageError: the image is corrupt, and `raise_on_corrupt` is set.
            DatasetError: no image can be read.
        """
        errors: list[str] = []
        for step in range(len(self)):
            i = (index + step) % len(self)
            try:
                return self[i], i, errors
            except CorruptImageError as error:
                if self.raise_on_corrupt:
                    raise
                errors.append(str(error))
        raise DatasetError(f"none of {len(self)} images can be read, first: {errors[0]}")


@dataclass(frozen=True)
class LazyImages(ImageSource):
    """Image files that are read when they are indexed.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("RGB", (20, 10)).save(f"{folder}/a.png")
        ...     LazyImages((Path(folder) / "a.png",))[0].shape
        torch.Size([3, 10, 20])
    """

    paths: tuple[Path, ...] = field(repr=False)
    raise_on_corrupt: bool = False

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor:  # type: ignore[override]
        return read_image(self.paths[operator.index(index)])

    def select(self, index: Sequence[int]) -> LazyImages:
        return replace(self, paths=tuple(self.paths[i] for i in index))

    def get_size(self, index: int) -> tuple[int, int]:
        return check_image_header(self.paths[index])

    def get_name(self, index: int) -> str:
        return str(self.paths[index])

    def list_content(self) -> list[Tensor | bytes]:
        """List the relative paths and sizes of the files."""
        root = os.path.commonpath([path.parent for path in self.paths]) if self.paths else ""
        return [os.fsencode(f"{p.relative_to(root).as_posix()} {p.stat().st_size}\n") for p in self.paths]
