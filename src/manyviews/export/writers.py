"""Write ids, embeddings and labels to a file batch by batch, in constant memory.

- .npz: `ids` (n,), `vectors` (n, d) or an array (n, d) per modality, and optional `labels` (n,)
- .npy: the vectors; ids and labels are in a .csv file next to it
- .csv: one line per instance: `id`, `label` and d numbers (per modality)
- .parquet: `id`, `label` and `vector`, or a column per modality; needs pyarrow
"""

import csv
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from torch import Tensor

from manyviews.utils import atomic_path, check_writable, escape_surrogates

Label = str | float
Batch = tuple[list[str], Tensor, list[Label]]
"""Ids, vectors (B, d) or (B, N, d) for N modalities, and labels, or no labels."""
WriteFunction = Callable[[list[list[Label]], Tensor], None]
"""Writes the columns of a batch (ids, and labels if the file has them) and its vectors (B, N, d) of N modalities."""


@dataclass(frozen=True)
class _Layout:
    dim: int
    modalities: tuple[str, ...]
    columns: dict[str, type[str] | type[float]]
    """Type of `id` and, if the file has labels, of `label`."""


def check_embedding_path(path: Path, inputs: Iterable[str | Path] = (), modalities: bool = False) -> None:
    """Raise early if the file cannot be written or is one of the inputs."""
    check_writable(path, _WRITERS, inputs)
    if path.suffix.lower() == ".npy":
        if modalities:
            raise ValueError(f"{path} cannot store an array per modality: use a .npz, .csv or .parquet file")
        check_writable(get_ids_path(path), (".csv",), inputs)
    if path.suffix.lower() == ".parquet":
        _import_pyarrow()


@contextmanager
def open_embedding_writer(
    path: Path, dim: int, *, modalities: Sequence[str] = (), labels: type[str] | type[float] | None = None
) -> Iterator[Callable[..., None]]:
    """Yield a function that appends ids, vectors (B, d) or (B, N, d), and labels.

    The file appears, complete, if the block succeeds.

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
    layout = _Layout(dim, tuple(modalities), {"id": str} if labels is None else {"id": str, "label": labels})
    shape = (len(modalities), dim) if modalities else (dim,)
    with _WRITERS[path.suffix.lower()](path, layout) as write:

        def check_and_write(ids: Sequence[str], vectors: Tensor, batch_labels: Sequence[Label] = ()) -> None:
            if vectors.shape != (len(ids), *shape):
                raise ValueError(
                    f"vectors must have shape {(len(ids), *shape)}, one per id, got {tuple(vectors.shape)}"
                )
            num_labels = 0 if labels is None else len(ids)
            if len(batch_labels) != num_labels:
                raise ValueError(f"expected {num_labels} labels for {len(ids)} ids, got {len(batch_labels)}")
            columns = [ids, batch_labels][: len(layout.columns)]
            escaped = [[escape_surrogates(v) if isinstance(v, str) else v for v in values] for values in columns]
            if ids:
                write(escaped, vectors if modalities else vectors[:, None])

        yield check_and_write


def get_ids_path(path: Path) -> Path:
    """Return the path of the ids of a .npy file."""
    return path.with_name(f"{path.stem}.ids.csv")


class _GrowingArray:
    """Batches of an array in a temporary file, because a .npy header has the number of rows and the longest text."""

    def __init__(self, file: IO[bytes], dtype: str, *shape: int) -> None:
        self.file, self.dtype, self.count, self.shape = file, np.dtype(dtype), 0, shape

    def append(self, values: Tensor | list[Label]) -> None:
        batch = np.asarray(values, "U" if self.dtype.kind == "U" else self.dtype)
        np.save(self.file, batch)
        self.count += len(batch)
        self.dtype = np.promote_types(self.dtype, batch.dtype)

    def copy(self, target: IO[bytes]) -> None:
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": (self.count, *self.shape)}
        np.lib.format.write_array_header_1_0(target, header)
        end = self.file.tell()
        self.file.seek(0)
        while self.file.tell() < end:
            target.write(np.load(self.file).astype(self.dtype).tobytes())


@contextmanager
def _write_npy(path: Path, layout: _Layout) -> Iterator[WriteFunction]:
    with (
        atomic_path(path) as temporary,
        _write_csv(get_ids_path(path), replace(layout, dim=0)) as write_ids,
        tempfile.TemporaryFile(dir=path.parent) as buffer,
    ):
        array = _GrowingArray(buffer, "<f4", layout.dim)

        def write(columns: list[list[Label]], vectors: Tensor) -> None:
            array.append(vectors[:, 0])
            write_ids(columns, vectors[:, :0])

        yield write
        with temporary.open("wb") as file:
            array.copy(file)


@contextmanager
def _write_npz(path: Path, layout: _Layout) -> Iterator[WriteFunction]:
    with atomic_path(path) as temporary, ExitStack() as stack:

        def add_array(dtype: str, *shape: int) -> _GrowingArray:
            return _GrowingArray(stack.enter_context(tempfile.TemporaryFile(dir=path.parent)), dtype, *shape)

        arrays = [(name, add_array("<f4", layout.dim)) for name in layout.modalities or ("vectors",)]
        arrays += [(f"{name}s", add_array("<f8" if kind is float else "<U1")) for name, kind in layout.columns.items()]

        def write(columns: list[list[Label]], vectors: Tensor) -> None:
            batches: list[Tensor | list[Label]] = [*vectors.unbind(1), *columns]
            for (_, array), batch in zip(arrays, batches, strict=True):
                array.append(batch)

        yield write
        with zipfile.ZipFile(temporary, "w") as archive:
            for name, array in arrays:
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    array.copy(member)


@contextmanager
def _write_csv(path: Path, layout: _Layout) -> Iterator[WriteFunction]:
    with atomic_path(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        prefixes = [f"{name}." for name in layout.modalities] or [""]
        writer.writerow([*layout.columns, *(f"{prefix}{i}" for prefix in prefixes for i in range(layout.dim))])

        def write(columns: list[list[Label]], vectors: Tensor) -> None:
            lines = zip(*columns, vectors.flatten(1).tolist(), strict=True)
            writer.writerows([*first, *(f"{value:.9g}" for value in vector)] for *first, vector in lines)

        yield write


@contextmanager
def _write_parquet(path: Path, layout: _Layout) -> Iterator[WriteFunction]:
    arrow, parquet = _import_pyarrow()
    types = [arrow.float64() if kind is float else arrow.string() for kind in layout.columns.values()]
    vector = arrow.list_(arrow.float32(), layout.dim)
    names = [*layout.columns, *(layout.modalities or ("vector",))]
    schema = arrow.schema(list(zip(names, types + [vector] * (len(names) - len(types)), strict=True)))
    # Pass an open file: pyarrow accepts only UTF-8 paths.
    with atomic_path(path) as temporary, temporary.open("wb") as file, parquet.ParquetWriter(file, schema) as writer:

        def write(columns: list[list[Label]], vectors: Tensor) -> None:
            arrays = [arrow.array(values, kind) for values, kind in zip(columns, types, strict=True)]
            matrices = (arrow.array(matrix.contiguous().numpy().ravel()) for matrix in vectors.unbind(1))
            arrays += [arrow.FixedSizeListArray.from_arrays(matrix, layout.dim) for matrix in matrices]
            writer.write_table(arrow.table(arrays, schema=schema))

        yield write


def _import_pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise ValueError(f"writing a .parquet file needs pyarrow: pip install pyarrow ({error})") from error
    return pa, parquet


_WRITERS: dict[str, Callable[[Path, _Layout], AbstractContextManager[WriteFunction]]] = {
    ".npy": _write_npy,
    ".npz": _write_npz,
    ".csv": _write_csv,
    ".parquet": _write_parquet,
}
