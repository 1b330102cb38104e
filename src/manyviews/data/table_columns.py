"""From the cells of a table's column to a `Column`: recognize its kind, read its files, check every cell."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from manyviews.data.audio import Audio
from manyviews.data.blobs import BlobImages, FileBlobs
from manyviews.data.column import Column
from manyviews.data.column_arrays import make_column
from manyviews.data.errors import CorruptFileError, DatasetError, translate_errors
from manyviews.data.image_arrays import read_npy
from manyviews.data.image_files import (
    IMAGE_EXTENSIONS,
    LazyImages,
    check_image_header,
    read_image,
)
from manyviews.data.image_folder import MAX_IN_MEMORY_BYTES
from manyviews.data.images import Images
from manyviews.data.media import Media
from manyviews.data.media_files import AUDIO_EXTENSIONS, VIDEO_EXTENSIONS
from manyviews.data.table_readers import Cell, EncodedFile, InvalidCell, RawTable, show_cell, to_float32
from manyviews.data.texts import Texts
from manyviews.data.video import Video
from manyviews.utils import Budget, check_regular

T = TypeVar("T")
SKIP = "skip"
"""Kind of a column that is not loaded."""
SEPARATOR = "|"
"""Separates the paths of several images in a cell."""
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(nan|inf|infinity)", re.IGNORECASE)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


MEDIA: dict[str, tuple[type[Media], set[str]]] = {
    "audio": (Audio, AUDIO_EXTENSIONS), "video": (Video, VIDEO_EXTENSIONS),
}  # fmt: skip
"""Class and file extensions of each kind of recordings."""


def recognize_kind(cells: list[Cell], has_paths: bool = True) -> tuple[str, str]:
    """Recognize the kind of a column, or `SKIP` with the reason, from its cells that are not empty.

    Half of the cells decide between paths and text: a few other cells in a column of paths are mistakes. Without
    `has_paths`, a text is never a path.

    Examples:
        >>> recognize_kind(["a.jpg", None, "b.PNG|c.png"]), recognize_kind(["a cat", "logo.png", "a dog"])
        (('image', ''), ('text', ''))
        >>> recognize_kind(["a.wav", "b.mp3"]), recognize_kind(["a.mp4", None])
        (('audio', ''), ('video', ''))
        >>> recognize_kind(["3.5", "-1"])
        ('skip', 'has numbers')
    """
    existing = [cell for cell in cells if cell is not None]
    if not existing:
        return SKIP, "is empty"
    if invalid := [cell for cell in existing if isinstance(cell, InvalidCell)]:
        return SKIP, f"has {invalid[0].reason}"
    if files := [cell for cell in existing if isinstance(cell, EncodedFile)]:
        return files[0].kind, ""
    if arrays := [cell for cell in existing if isinstance(cell, np.ndarray)]:
        return ("vector" if arrays[0].ndim == 1 else "sequence"), ""
    if has_paths and 2 * sum(is_image_cell(cell) for cell in existing) >= len(existing):
        return "image", ""
    for kind, (_, extensions) in MEDIA.items():
        if has_paths and 2 * sum(_has_extension(cell, extensions) for cell in existing) >= len(existing):
            return kind, ""
    if any(isinstance(cell, list) for cell in existing):
        return SKIP, "has lists of texts"
    if all(not isinstance(cell, str) or NUMBER.fullmatch(cell) for cell in existing):
        return SKIP, "has numbers"
    if has_paths and 2 * sum(is_npy_path(cell) for cell in existing) >= len(existing):
        return "features", ""
    return "text", ""


def choose_array_kind(cells: list[Cell]) -> str:
    """Choose the kind of a column of arrays: a vector if all have one dimension and the same length.

    Examples:
        >>> choose_array_kind([np.zeros(3), None]), choose_array_kind([np.zeros(3), np.zeros(2)])
        ('vector', 'sequence')
    """
    shapes = {cell.shape for cell in cells if isinstance(cell, np.ndarray)}
    return "vector" if len(shapes) == 1 and len(next(iter(shapes))) == 1 else "sequence"


def is_image_cell(cell: Cell) -> bool:
    """Return whether a cell has the paths of one or several images, by their extensions.

    Examples:
        >>> is_image_cell("a.jpg|b.jpg"), is_image_cell(["a.jpg", "b.jpg"]), is_image_cell("a.txt")
        (True, True, False)
    """
    paths = cell if isinstance(cell, list) else cell.split(SEPARATOR) if isinstance(cell, str) else []
    return bool(paths) and all(os.path.splitext(path.strip())[1].lower() in IMAGE_EXTENSIONS for path in paths)  # noqa: PTH122 (fast)


def _has_extension(cell: Cell, extensions: set[str]) -> bool:
    return isinstance(cell, str) and os.path.splitext(cell.strip())[1].lower() in extensions  # noqa: PTH122 (fast)


def is_media_path(cell: Cell) -> bool:
    """Return whether a cell has the path of audio or of a video."""
    return any(_has_extension(cell, extensions) for _, extensions in MEDIA.values())


def is_npy_path(cell: Cell) -> bool:
    """Return whether a cell has the path of a .npy file."""
    return isinstance(cell, str) and cell.lower().endswith(".npy")


def to_number(cell: Cell) -> float | None:
    """Convert a cell to a number, or return None if it is not one.

    Examples:
        >>> to_number("-1e3"), to_number(2), to_number("1_000"), to_number(True)
        (-1000.0, 2.0, None, None)
    """
    if isinstance(cell, str):
        return float(cell) if NUMBER.fullmatch(cell) else None
    if isinstance(cell, (int, float)) and not isinstance(cell, bool):
        try:
            return float(cell)
        except OverflowError:
            return math.inf
    return None


@dataclass
class ColumnBuilder:
    """Builds the columns of a table; `warnings` has a line for each cell that is skipped."""

    table: RawTable
    raise_on_corrupt: bool = False
    follow_symlinks: bool = False
    warnings: list[str] = field(default_factory=list)
    decoded_bytes: int = 0

    def __post_init__(self) -> None:
        self.folder = os.path.abspath(self.table.folder or ".")  # noqa: PTH100 (links stay)
        self.real_folder = os.path.join(os.path.realpath(self.folder), "")  # noqa: PTH118 (ends in a separator)

    def build(self, name: str, kind: str) -> Column:
        """Build a column of a kind; "features" are vectors or sequences, whichever the first array is."""
        cells = self.table.columns[name]
        if name in self.table.blobs:
            return self._build_blobs(name, cells, kind)
        if kind == "image":
            return self._build_images(name, cells)
        if kind in MEDIA:
            return self._build_media(name, cells, kind)
        return self._build_texts(name, cells) if kind == "text" else self._build_features(name, cells, kind)

    def _build_blobs(self, name: str, cells: list[Cell], kind: str) -> Column:
        expected = next(cell.kind for cell in cells if isinstance(cell, EncodedFile))
        if kind != expected:
            raise DatasetError(f"{self.table.source}: column {name} has files of kind {expected}: it cannot be {kind}")
        mask, blobs = torch.tensor([cell is not None for cell in cells]), self.table.blobs[name]
        if kind == "image":
            images = BlobImages(blobs.select(mask.nonzero().squeeze(1).tolist()), self.raise_on_corrupt)
            return Images(images, None if mask.all() else mask.long())
        return MEDIA[kind][0](blobs, mask=None if mask.all() else mask, raise_on_corrupt=self.raise_on_corrupt)

    def _build_texts(self, name: str, cells: list[Cell]) -> Texts:
        texts = []
        for i, cell in enumerate(cells):
            if isinstance(cell, (list, np.ndarray, InvalidCell, EncodedFile)):
                raise self.table.make_error(i, name, f"expected text, got {_describe(cell)}")
            texts.append("" if cell is None else str(cell))
        return Texts(tuple(texts))

    def _build_images(self, name: str, cells: list[Cell]) -> Images:
        entries = [
            (i, Path(self.resolve_path(i, name, text)))
            for i, cell in enumerate(cells)
            if cell is not None
            for text in self._split_paths(i, name, cell)
        ]
        first_warning = len(self.warnings)
        sizes = self._read_each(name, entries, check_image_header)
        max_bytes = MAX_IN_MEMORY_BYTES - self.decoded_bytes
        is_small = (
            len(set(sizes.values())) == 1 and 3 * math.prod(next(iter(sizes.values()))) * len(entries) <= max_bytes
        )
        kept = [(i, path) for i, path in entries if path in sizes]
        decoded: dict[Path, Tensor] = {}
        if is_small:
            decoded = self._read_each(name, kept, read_image)
            kept = [(i, path) for i, path in kept if path in decoded]
        if not kept:
            raise DatasetError(f"no image of column {name} can be read, first: {self.warnings[first_warning]}")
        values: Tensor | LazyImages = LazyImages(tuple(path for _, path in kept), self.raise_on_corrupt)
        if len({image.shape for image in decoded.values()}) == 1:  # not if EXIF rotates some of them
            values = torch.stack([decoded[path] for _, path in kept])
            self.decoded_bytes += values.nbytes
        counts = torch.bincount(torch.tensor([i for i, _ in kept]), minlength=len(cells))
        return Images(values, None if bool((counts == 1).all()) else counts)

    def _build_media(self, name: str, cells: list[Cell], kind: str) -> Media:
        """Build a column of recordings; each file must exist and, by its header, have a stream of the kind."""
        build, _ = MEDIA[kind]
        entries = []
        for i, cell in enumerate(cells):
            if cell is not None:
                if not isinstance(cell, str):
                    raise self.table.make_error(i, name, f"expected the path of a {kind} file, got {_describe(cell)}")
                entries.append((i, Path(self.resolve_path(i, name, cell))))
        first_warning = len(self.warnings)

        def check(path: Path) -> float:
            return build(FileBlobs((path,))).read_seconds(0)

        seconds = self._read_each(name, entries, check)
        kept = {i: path for i, path in entries if path in seconds}
        if not kept:
            raise DatasetError(f"no file of column {name} can be read, first: {self.warnings[first_warning]}")
        # The file of a missing cell is never opened.
        paths = tuple(kept.get(i, Path(self.table.source)) for i in range(len(cells)))
        mask = torch.tensor([i in kept for i in range(len(cells))])
        return build(FileBlobs(paths), raise_on_corrupt=self.raise_on_corrupt, mask=None if mask.all() else mask)

    def _read_each(self, name: str, entries: list[tuple[int, Path]], read: Callable[[Path], T]) -> dict[Path, T]:
        """Read each file once, with a warning for each cell whose file cannot be read."""
        results: dict[Path, T] = {}
        errors: dict[Path, str] = {}
        for i, path in entries:
            if path not in results and path not in errors:
                try:
                    results[path] = read(path)
                except CorruptFileError as error:
                    if self.raise_on_corrupt:
                        raise type(error)(f"{self.table.describe_cell(i, name)}: {error}") from error
                    errors[path] = str(error)
                except DatasetError as error:  # too many pixels
                    raise self.table.make_error(i, name, str(error)) from error
            if path in errors:
                self.warnings.append(f"{self.table.describe_cell(i, name)}: {errors[path]}; it counts as missing")
        return results

    def _split_paths(self, i: int, name: str, cell: Cell) -> list[str]:
        if isinstance(cell, list):
            return cell
        if not isinstance(cell, str):
            raise self.table.make_error(i, name, f"expected the path of an image, got {_describe(cell)}")
        return [part.strip() for part in cell.split(SEPARATOR)] if is_image_cell(cell) else [cell]

    def resolve_path(self, i: int, name: str, text: str) -> str:
        """Resolve the path in a cell, relative to the table's folder and with links; raise if it leaves the folder."""
        if self.table.folder is None:
            raise self.table.make_error(i, name, f"{show_cell(text)} cannot be a path: the files must be in the data")
        if _URL.match(text):
            raise self.table.make_error(
                i, name, f"{show_cell(text)} is a URL: download the file and use its path, or leave the column out "
                f"with --kinds {name}={SKIP}"
            )  # fmt: skip
        try:
            path = os.path.realpath(os.path.join(self.folder, text))  # noqa: PTH118 (fast)
            if not self.follow_symlinks and not path.startswith(self.real_folder):
                raise self.table.make_error(
                    i, name, f"{show_cell(text)} is outside of the folder of the table: move it there or, if you trust "
                    "the table, use follow_symlinks or --follow-symlinks"
                )  # fmt: skip
            os.stat(path)  # noqa: PTH116 (fast)
        except FileNotFoundError as error:
            hint = (
                ""
                if is_image_cell(text) or is_npy_path(text) or is_media_path(text)
                else f"; if the column has texts, use --kinds {name}=text"
            )
            raise self.table.make_error(
                i, name, f"the file {show_cell(text)} does not exist: paths are relative to {self.folder}, and an "
                f"empty cell means missing{hint}"
            ) from error  # fmt: skip
        except DatasetError:
            raise
        except (OSError, ValueError) as error:  # too long, permission denied, a NUL byte
            raise self.table.make_error(i, name, f"{show_cell(text)} is not a valid path: {error}") from error
        return path

    def _build_features(self, name: str, cells: list[Cell], kind: str) -> Column:
        arrays = self._read_arrays(name, cells, kind)
        first = next(i for i, array in enumerate(arrays) if array is not None)
        reference = arrays[first]
        assert reference is not None
        is_vector = kind == "vector" or (kind == "features" and reference.ndim == 1)
        sequences: list[np.ndarray | None] = []
        for i, array in enumerate(arrays):
            if array is not None and not is_vector and array.ndim < reference.ndim:
                raise self.table.make_error(i, name, f"expected a sequence (steps, d), got an array {array.shape}")
            sequences.append(None if array is None else self._to_steps(i, name, array, is_vector))
        dim = next(len(sequence[0]) for sequence in sequences if sequence is not None)
        for i, sequence in enumerate(sequences):
            if sequence is not None and sequence.shape[1] != dim:
                row = self.table.rows[first]
                raise self.table.make_error(i, name, f"it has {sequence.shape[1]} features, but row {row} has {dim}")
        lengths = np.array([1 if sequence is None else len(sequence) for sequence in sequences])
        shape = (len(sequences), int(lengths.max()), dim)
        num_bytes = sum(sequence.nbytes for sequence in sequences if sequence is not None)
        Budget(f"{self.table.source}, column {name}", num_bytes).take(4 * math.prod(shape))
        values = np.zeros(shape, np.float32)
        for i, sequence in enumerate(sequences):
            if sequence is not None:
                values[i, : len(sequence)] = sequence
        mask = np.array([sequence is not None for sequence in sequences])
        context = f"{self.table.source}, column {name}"
        if is_vector:
            return make_column(values[:, 0], None, mask, context, self.warnings)
        return make_column(values, lengths, mask, context, self.warnings)

    def _to_steps(self, i: int, name: str, array: np.ndarray, is_vector: bool) -> np.ndarray:
        """Reshape to (T, d); T is 1 for a vector, and d is 1 for a sequence of numbers."""
        if array.ndim not in (1, 2) or 0 in array.shape or (is_vector and array.ndim == 2 and len(array) > 1):
            expected = "a vector (d,)" if is_vector else "a sequence (steps, d)"
            raise self.table.make_error(i, name, f"expected {expected}, got an array {array.shape}")
        return array.reshape(1 if is_vector else len(array), -1)

    def _read_arrays(self, name: str, cells: list[Cell], kind: str) -> list[np.ndarray | None]:
        arrays: list[np.ndarray | None] = []
        total = 0
        for i, cell in enumerate(cells):
            if cell is None or isinstance(cell, np.ndarray):
                array = cell
            elif (number := to_number(cell)) is not None:
                array = to_float32(np.array([number]))
            elif isinstance(cell, str) and is_npy_path(cell):
                path = Path(self.resolve_path(i, name, cell))
                with translate_errors(f"{self.table.describe_cell(i, name)}: cannot parse {show_cell(cell)} as .npy"):
                    size = check_regular(path)
                    total += size
                    Budget(f"{self.table.source}, column {name}", total).take(total)
                    with path.open("rb") as file:
                        array = read_npy(file, size)
                if array.dtype.kind not in "iuf":
                    raise self.table.make_error(i, name, f"{show_cell(cell)} must have numbers, got {array.dtype}")
                array = to_float32(array)
            else:
                expected = "a .npy file" if kind == "features" else "a .npy file, a number or a list of numbers"
                raise self.table.make_error(i, name, f"expected {expected}, got {_describe(cell)}")
            arrays.append(array)
        return arrays


def _describe(cell: Cell) -> str:
    if isinstance(cell, InvalidCell):
        return cell.reason
    if isinstance(cell, EncodedFile):
        return f"a file of kind {cell.kind}"
    if isinstance(cell, np.ndarray):
        return f"a list of numbers {cell.shape}"
    return f"a list of texts {show_cell(cell)}" if isinstance(cell, list) else show_cell(cell)
