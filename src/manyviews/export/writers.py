"""Write ids, embeddings and labels to a file batch by batch, in constant memory.

- .npz: `ids` (n,), `vectors` (n, d) or an array (n, d) per modality, and optional `labels` (n,)
- .npy: the vectors; ids and labels are in a .csv file next to it
- .csv: one line per instance: `id`, `label` and d numbers (per modality)
- .parquet: `id`, `label` and `vector`, or a column per modality; needs pyarrow
"""

from __future__ import annotations

import csv
import json
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from manyviews.utils import atomic_path, check_writable, escape_surrogates

Label = str | float
WriteFunction = Callable[..., None]
"""Writes ids, vectors (n, d) or (n, N, d) for N modalities, and labels if the file has them."""
NPY_HEADER_BYTES = 128
"""Fixed size of our .npy headers: the shape is filled in at the end."""
IDS_PER_CHUNK = 4096
"""Ids in memory while they are copied into an archive."""


@dataclass(frozen=True)
class _Layout:
    dim: int
    modalities: tuple[str, ...]
    labels: type[str] | type[float] | None

    @property
    def header(self) -> list[str]:
        return ["id"] if self.labels is None else ["id", "label"]

    def describe(self, ids: Sequence[str], labels: Sequence[Label]) -> Iterator[tuple[Label, ...]]:
        """Yield the leading cells of each line."""
        return zip(ids, strict=True) if self.labels is None else zip(ids, labels, strict=True)


def check_embedding_path(path: Path, inputs: Iterable[str | Path] = (), modalities: bool = False) -> None:
    """Raise early if the file cannot be written or is one of the inputs."""
    check_writable(path, (".npy", *_WRITERS), inputs)
    if path.suffix.lower() == ".npy":
        if modalities:
            raise ValueError(f"{path} cannot store an array per modality: use a .npz, .csv or .parquet file")
        check_writable(get_ids_path(path), (".csv",), inputs)
    if path.suffix.lower() == ".parquet":
        _import_pyarrow()


@contextmanager
def open_embedding_writer(
    path: Path, dim: int, *, modalities: Sequence[str] = (), labels: type[str] | type[float] | None = None
) -> Iterator[WriteFunction]:
    """Yield a function that appends vectors; the file appears, complete, if the block succeeds.

    Args:
        path: the file; its suffix selects the format.
        dim: dimension of a vector.
        modalities: if given, each instance has a vector per modality.
        labels: type of the labels (`str` or `float`), or None to write no labels.

    Examples:
        >>> import tempfile, torch
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with open_embedding_writer(Path(folder) / "out.npz", dim=2) as add:
        ...         add(["a.jpg", "b.jpg"], torch.ones(2, 2))
        ...     np.load(Path(folder) / "out.npz")["ids"].tolist()
        ['a.jpg', 'b.jpg']
    """
    check_embedding_path(path, modalities=bool(modalities))
    suffix, layout = path.suffix.lower(), _Layout(dim, tuple(modalities), labels)
    shape = (len(modalities), dim) if modalities else (dim,)
    with ExitStack() as stack:
        temporary = stack.enter_context(atomic_path(path))
        if suffix == ".npy":
            ids_path = stack.enter_context(atomic_path(get_ids_path(path)))
            write = stack.enter_context(_write_npy(temporary, ids_path, layout))
        else:
            write = stack.enter_context(_WRITERS[suffix](temporary, layout))

        def check_and_write(ids: Sequence[str], vectors: Tensor, batch_labels: Sequence[Label] = ()) -> None:
            if vectors.shape != (len(ids), *shape):
                raise ValueError(
                    f"vectors must have shape {(len(ids), *shape)}, one per id, got {tuple(vectors.shape)}"
                )
            num_labels = 0 if labels is None else len(ids)
            if len(batch_labels) != num_labels:
                raise ValueError(f"expected {num_labels} labels for {len(ids)} ids, got {len(batch_labels)}")
            if ids:
                escaped = [escape_surrogates(label) if isinstance(label, str) else label for label in batch_labels]
                write([escape_surrogates(name) for name in ids], vectors, escaped)

        yield check_and_write


def get_ids_path(path: Path) -> Path:
    """Path of the ids of a .npy file."""
    return path.with_name(f"{path.stem}.ids.csv")


def _make_npy_header(dtype: str, *shape: int) -> bytes:
    text = repr({"descr": dtype, "fortran_order": False, "shape": shape})
    return (
        b"\x93NUMPY\x01\x00"
        + (NPY_HEADER_BYTES - 10).to_bytes(2, "little")
        + text.ljust(NPY_HEADER_BYTES - 11).encode()
        + b"\n"
    )


@contextmanager
def _open_array(path: Path, dim: int) -> Iterator[Callable[[Tensor], None]]:
    count = 0

    def append(vectors: Tensor) -> None:
        nonlocal count
        count += len(vectors)
        file.write(vectors.numpy().astype("<f4").tobytes())

    with path.open("wb") as file:
        file.write(_make_npy_header("<f4", 0, dim))
        yield append
        file.seek(0)
        file.write(_make_npy_header("<f4", count, dim))


@contextmanager
def _write_npy(temporary: Path, ids_path: Path, layout: _Layout) -> Iterator[WriteFunction]:
    with ids_path.open("w", newline="", encoding="utf-8") as file, _open_array(temporary, layout.dim) as append:
        writer = csv.writer(file)
        writer.writerow(layout.header)

        def write(ids: Sequence[str], vectors: Tensor, labels: Sequence[Label]) -> None:
            append(vectors)
            writer.writerows(layout.describe(ids, labels))

        yield write


class _Column:
    """Values buffered in a file, because the members of an archive are written one after another."""

    def __init__(self, path: Path, kind: type[str] | type[float]) -> None:
        self.path, self.kind, self.count, self.max_length = path, kind, 0, 1
        path.touch()

    def add(self, values: Sequence[Label]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(value) + "\n" for value in values)
        self.count += len(values)
        if self.kind is str:
            self.max_length = max(self.max_length, *(len(str(value)) for value in values))

    def copy(self, archive: zipfile.ZipFile, name: str) -> None:
        dtype = "<f8" if self.kind is float else f"<U{self.max_length}"
        with archive.open(name, "w", force_zip64=True) as member, self.path.open(encoding="utf-8") as lines:
            member.write(_make_npy_header(dtype, self.count))
            while values := [json.loads(line) for line in islice(lines, IDS_PER_CHUNK)]:
                member.write(np.array(values, dtype).tobytes())


@contextmanager
def _write_npz(temporary: Path, layout: _Layout) -> Iterator[WriteFunction]:
    names = [*(layout.modalities or ("vectors",)), "ids", "labels"]
    parts = [temporary.with_name(f"{temporary.name}.{i}") for i in range(len(names))]
    *arrays, ids_part, labels_part = parts
    try:
        columns = [_Column(ids_part, str)] + ([_Column(labels_part, layout.labels)] if layout.labels else [])
        with ExitStack() as stack:
            appends = [stack.enter_context(_open_array(part, layout.dim)) for part in arrays]

            def write(ids: Sequence[str], vectors: Tensor, labels: Sequence[Label]) -> None:
                for append, matrix in zip(appends, vectors.unbind(1) if layout.modalities else (vectors,), strict=True):
                    append(matrix)
                for column, values in zip(columns, (ids, labels), strict=False):
                    column.add(values)

            yield write
        with zipfile.ZipFile(temporary, "w") as archive:
            for part, name in zip(arrays, names, strict=False):
                archive.write(part, f"{name}.npy")
            for column, name in zip(columns, ("ids", "labels"), strict=False):
                column.copy(archive, f"{name}.npy")
    finally:
        for part in parts:
            part.unlink(missing_ok=True)


@contextmanager
def _write_csv(temporary: Path, layout: _Layout) -> Iterator[WriteFunction]:
    with temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        prefixes = [f"{name}." for name in layout.modalities] or [""]
        writer.writerow([*layout.header, *(f"{prefix}{i}" for prefix in prefixes for i in range(layout.dim))])

        def write(ids: Sequence[str], vectors: Tensor, labels: Sequence[Label]) -> None:
            lines = zip(layout.describe(ids, labels), vectors.flatten(1).tolist(), strict=True)
            writer.writerows([*first, *(f"{value:.9g}" for value in vector)] for first, vector in lines)

        yield write


@contextmanager
def _write_parquet(temporary: Path, layout: _Layout) -> Iterator[WriteFunction]:
    arrow, parquet = _import_pyarrow()
    kinds = {str: arrow.string(), float: arrow.float64()}
    first = [("id", kinds[str])] + ([("label", kinds[layout.labels])] if layout.labels else [])
    vector = arrow.list_(arrow.float32(), layout.dim)
    schema = arrow.schema([*first, *((name, vector) for name in layout.modalities or ("vector",))])
    # Pass an open file: pyarrow accepts only UTF-8 paths.
    with temporary.open("wb") as file, parquet.ParquetWriter(file, schema) as writer:

        def write(ids: Sequence[str], vectors: Tensor, labels: Sequence[Label]) -> None:
            columns = [arrow.array(ids), *([arrow.array(labels, kinds[layout.labels])] if layout.labels else [])]
            for matrix in vectors.unbind(1) if layout.modalities else (vectors,):
                values = arrow.array(matrix.contiguous().numpy().ravel())
                columns.append(arrow.FixedSizeListArray.from_arrays(values, layout.dim))
            writer.write_table(arrow.table(columns, schema=schema))

        yield write


def _import_pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise ValueError(f"writing a .parquet file needs pyarrow: pip install pyarrow ({error})") from error
    return pa, parquet


_WRITERS: dict[str, Callable[[Path, _Layout], AbstractContextManager[WriteFunction]]] = {
    ".npz": _write_npz,
    ".csv": _write_csv,
    ".parquet": _write_parquet,
}
