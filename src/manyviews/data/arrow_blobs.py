"""`ArrowBlobs`: encoded files in a column of a Hugging Face dataset, which are read when they are needed."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from manyviews.data.blobs import Blobs
from manyviews.utils import open_regular

if TYPE_CHECKING:
    import datasets

BATCH_ROWS = 1000
NUM_FINGERPRINTED = 16
"""Files whose content is in the fingerprint; of the others it has the sizes."""


@dataclass(frozen=True)
class ArrowBlobs(Blobs):
    """Bytes in a column of Arrow files that are mapped into memory, or files that the column names.

    Workers get the names of the Arrow files, not their content.

    Examples:
        >>> from datasets import Dataset
        >>> column = Dataset.from_dict({"a": [{"bytes": b"RIFF", "path": None}]}).with_format("arrow")
        >>> with ArrowBlobs.make(column, "a", (("train", 1),)).open(0) as content:
        ...     content.read()
        b'RIFF'
    """

    column: datasets.Dataset = field(repr=False)
    """A dataset of one column, in the format "arrow"."""
    description: str
    rows: np.ndarray = field(repr=False)
    """Row (n,) of each file."""
    sizes: np.ndarray = field(repr=False)
    """Size (n,) of each file in bytes; NAMED of a file that the column only names, MISSING of none."""
    splits: tuple[tuple[str, int], ...] = field(repr=False)
    """Names and sizes of the splits whose rows are one after another."""
    roots: tuple[Path, ...] | None = None
    """Folders of files that the column may name; None means any."""

    MISSING = -2
    NAMED = -1

    @classmethod
    def make(
        cls,
        column: datasets.Dataset,
        description: str,
        splits: tuple[tuple[str, int], ...],
        roots: Sequence[Path] | None = None,
    ) -> ArrowBlobs:
        """Measure the files of a column, without reading them."""
        measured = [_measure_chunk(chunk) for batch in column.iter(BATCH_ROWS) for chunk in batch.column(0).chunks]
        sizes = np.concatenate([np.empty(0, np.int64), *measured])
        limits = None if roots is None else tuple(roots)
        return cls(column, description, np.arange(len(sizes)), sizes, splits, limits)

    @property
    def exists(self) -> np.ndarray:
        """Mask (n,) of the files that are not missing."""
        exists: np.ndarray = self.sizes != self.MISSING
        return exists

    def __len__(self) -> int:
        return len(self.rows)

    def open(self, i: int) -> IO[bytes]:
        cell = self.column[int(self.rows[i])].column(0)[0].as_py()
        content = cell.get("bytes") if isinstance(cell, dict) else cell
        if content is not None:
            return io.BytesIO(content)
        text = (cell or {}).get("path") or ""
        try:
            path = Path(text).resolve()
        except ValueError as error:  # a NUL byte
            raise OSError(f"{text!r} is not a valid path: {error}") from error
        if self.roots is not None and not any(path.is_relative_to(root) for root in self.roots):
            raise OSError(
                f"the file {text!r} is outside of the dataset: if you trust it, use follow_symlinks or "
                "--follow-symlinks"
            )
        return open_regular(path)

    def get_name(self, i: int) -> str:
        row = int(self.rows[i])
        for split, size in self.splits:
            if row < size:
                return f"{self.description}, row {split}/{row}"
            row -= size
        raise IndexError(i)

    def select(self, index: Sequence[int]) -> ArrowBlobs:
        kept = np.asarray(index, np.int64)
        return replace(self, rows=self.rows[kept], sizes=self.sizes[kept])

    def list_content(self) -> list[Tensor | bytes]:
        """List the sizes of the files, and the content of some of them."""
        content: list[Tensor | bytes] = [torch.from_numpy(self.sizes)]
        for i in range(0, len(self), -(-len(self) // NUM_FINGERPRINTED) or 1):
            if self.sizes[i] >= 0:
                with self.open(i) as file:
                    content.append(file.read())
        return content


def _measure_chunk(chunk: Any) -> np.ndarray:
    from pyarrow import compute, types

    is_struct = types.is_struct(chunk.type)
    content = chunk.field("bytes") if is_struct else chunk
    sizes: np.ndarray = compute.fill_null(compute.binary_length(content), ArrowBlobs.MISSING).to_numpy(
        zero_copy_only=False
    )
    sizes = sizes.astype(np.int64)
    if is_struct:
        if chunk.type.get_field_index("path") >= 0:
            named = chunk.field("path").is_valid().to_numpy(zero_copy_only=False)
            sizes[(sizes == ArrowBlobs.MISSING) & named] = ArrowBlobs.NAMED
        sizes[~chunk.is_valid().to_numpy(zero_copy_only=False)] = ArrowBlobs.MISSING
    return sizes
