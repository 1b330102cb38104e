"""Ids and vectors in a file, a batch at a time: memory does not grow with their number.

- .npz: `ids` (n,), `vectors` (n, d), or an array (n, d) for each modality, and `labels` (n,) if asked for
- .npy: vectors alone; their ids, and labels, in a .csv file beside it
- .csv: a line for each, `id`, `label` and the d numbers (of each modality)
- .parquet: `id`, `label` and `vector`, or a column for each modality, where pyarrow is installed
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

from manyviews.training.files import check_writable, replaced
from manyviews.utils.text import escape_surrogates

Label = str | float
Add = Callable[..., None]
"""Writes ids, their vectors (n, d), or (n, N, d) of N modalities, and a label for each id where the file has them."""
HEADER = 128
"""Bytes of a .npy header of ours: room for any shape, which is known only at the end."""
AT_ONCE = 4096
"""Ids held at once when they are copied."""


@dataclass(frozen=True)
class _Layout:
    dim: int
    modalities: tuple[str, ...]
    labels: type[str] | type[float] | None

    @property
    def header(self) -> list[str]:
        return ["id"] if self.labels is None else ["id", "label"]

    def describe(self, ids: Sequence[str], labels: Sequence[Label]) -> Iterator[tuple[Label, ...]]:
        """The first cells of each line."""
        return zip(ids, strict=True) if self.labels is None else zip(ids, labels, strict=True)


def check_vector_file(path: Path, inputs: Iterable[str | Path] = (), modalities: bool = False) -> None:
    """Raise, before any work is done, if such a file cannot be written there, or is one of the inputs."""
    check_writable(path, (".npy", *_WRITERS), inputs)
    if path.suffix.lower() == ".npy":
        if modalities:
            raise ValueError(
                f"{path} can hold one array, not one for each modality: write a .npz, .csv or .parquet file"
            )
        check_writable(ids_beside(path), (".csv",), inputs)
    if path.suffix.lower() == ".parquet":
        _pyarrow()


@contextmanager
def vector_file(
    path: Path, dim: int, *, modalities: Sequence[str] = (), labels: type[str] | type[float] | None = None
) -> Iterator[Add]:
    """A function that adds vectors to a file; the file is there, whole, when the block ends well.

    Args:
        path: the file; its ending says which kind.
        dim: of a vector.
        modalities: if there are any, each instance has a vector of each of them.
        labels: `str` or `float` if each instance has a label that is to be written too.

    Examples:
        >>> import tempfile, torch
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with vector_file(Path(folder) / "out.npz", dim=2) as add:
        ...         add(["a.jpg", "b.jpg"], torch.ones(2, 2))
        ...     np.load(Path(folder) / "out.npz")["ids"].tolist()
        ['a.jpg', 'b.jpg']
    """
    check_vector_file(path, modalities=bool(modalities))
    ending, layout = path.suffix.lower(), _Layout(dim, tuple(modalities), labels)
    shape = (len(modalities), dim) if modalities else (dim,)
    with ExitStack() as stack:
        temporary = stack.enter_context(replaced(path))
        if ending == ".npy":
            beside = stack.enter_context(replaced(ids_beside(path)))
            add = stack.enter_context(_npy(temporary, beside, layout))
        else:
            add = stack.enter_context(_WRITERS[ending](temporary, layout))

        def checked(ids: Sequence[str], vectors: Tensor, given: Sequence[Label] = ()) -> None:
            if vectors.shape != (len(ids), *shape):
                raise ValueError(f"vectors must be {(len(ids), *shape)}, one for each id, got {tuple(vectors.shape)}")
            if len(given) != (0 if labels is None else len(ids)):
                raise ValueError(f"there must be a label for each id, if any, got {len(given)} for {len(ids)}")
            if ids:
                texts = [escape_surrogates(one) if isinstance(one, str) else one for one in given]
                add([escape_surrogates(name) for name in ids], vectors, texts)

        yield checked


def ids_beside(path: Path) -> Path:
    """The file with the ids of a .npy file."""
    return path.with_name(f"{path.stem}.ids.csv")


def _header(kind: str, *shape: int) -> bytes:
    words = repr({"descr": kind, "fortran_order": False, "shape": shape})
    return b"\x93NUMPY\x01\x00" + (HEADER - 10).to_bytes(2, "little") + words.ljust(HEADER - 11).encode() + b"\n"


@contextmanager
def _array(path: Path, dim: int) -> Iterator[Callable[[Tensor], None]]:
    count = 0

    def add(vectors: Tensor) -> None:
        nonlocal count
        count += len(vectors)
        file.write(vectors.numpy().astype("<f4").tobytes())

    with path.open("wb") as file:
        file.write(_header("<f4", 0, dim))
        yield add
        file.seek(0)
        file.write(_header("<f4", count, dim))


@contextmanager
def _npy(temporary: Path, beside: Path, layout: _Layout) -> Iterator[Add]:
    with beside.open("w", newline="", encoding="utf-8") as file, _array(temporary, layout.dim) as put:
        writer = csv.writer(file)
        writer.writerow(layout.header)

        def add(ids: Sequence[str], vectors: Tensor, labels: Sequence[Label]) -> None:
            put(vectors)
            writer.writerows(layout.describe(ids, labels))

        yield add


class _Column:
    """Texts or numbers that wait in a file of their own, because the members of an archive are written in turn."""

    def __init__(self, path: Path, kind: type[str] | type[float]) -> None:
        self.path, self.kind, self.count, self.longest = path, kind, 0, 1
        path.touch()

    def add(self, values: Sequence[Label]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(value) + "\n" for value in values)
        self.count += len(values)
        if self.kind is str:
            self.longest = max(self.longest, *(len(str(value)) for value in values))

    def copy(self, archive: zipfile.ZipFile, name: str) -> None:
        kind = "<f8" if self.kind is float else f"<U{self.longest}"
        with archive.open(name, "w", force_zip64=True) as member, self.path.open(encoding="utf-8") as lines:
            member.write(_header(kind, self.count))
            while values := [json.loads(line) for line in islice(lines, AT_ONCE)]:
                member.write(np.array(values, kind).tobytes())


@contextmanager
def _npz(temporary: Path, layout: _Layout) -> Iterator[Add]:
    names = [*(layout.modalities or ("vectors",)), "ids", "labels"]
    parts = [temporary.with_name(f"{temporary.name}.{number}") for number in range(len(names))]
    *arrays, ids_part, labels_part = parts
    try:
        columns = [_Column(ids_part, str)] + ([_Column(labels_part, layout.labels)] if layout.labels else [])
        with ExitStack() as stack:
            puts = [stack.enter_context(_array(part, layout.dim)) for part in arrays]

            def add(ids: Sequence[str], vectors: Tensor, labels: Sequence[Label]) -> None:
                for put, own in zip(puts, vectors.unbind(1) if layout.modalities else (vectors,), strict=True):
                    put(own)
                for column, values in zip(columns, (ids, labels), strict=False):
                    column.add(values)

            yield add
        with zipfile.ZipFile(temporary, "w") as archive:
            for part, name in zip(arrays, names, strict=False):
                archive.write(part, f"{name}.npy")
            for column, name in zip(columns, ("ids", "labels"), strict=False):
                column.copy(archive, f"{name}.npy")
    finally:
        for part in parts:
            part.unlink(missing_ok=True)


@contextmanager
def _csv(temporary: Path, layout: _Layout) -> Iterator[Add]:
    with temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        before = [f"{name}." for name in layout.modalities] or [""]
        writer.writerow([*layout.header, *(f"{name}{number}" for name in before for number in range(layout.dim))])

        def add(ids: Sequence[str], vectors: Tensor, labels: Sequence[Label]) -> None:
            rows = zip(layout.describe(ids, labels), vectors.flatten(1).tolist(), strict=True)
            writer.writerows([*first, *(f"{number:.9g}" for number in row)] for first, row in rows)

        yield add


@contextmanager
def _parquet(temporary: Path, layout: _Layout) -> Iterator[Add]:
    arrow, parquet = _pyarrow()
    kinds = {str: arrow.string(), float: arrow.float64()}
    first = [("id", kinds[str])] + ([("label", kinds[layout.labels])] if layout.labels else [])
    vector = arrow.list_(arrow.float32(), layout.dim)
    schema = arrow.schema([*first, *((name, vector) for name in layout.modalities or ("vector",))])
    # An open file: pyarrow takes no path but UTF-8.
    with temporary.open("wb") as file, parquet.ParquetWriter(file, schema) as writer:

        def add(ids: Sequence[str], vectors: Tensor, labels: Sequence[Label]) -> None:
            columns = [arrow.array(ids), *([arrow.array(labels, kinds[layout.labels])] if layout.labels else [])]
            for own in vectors.unbind(1) if layout.modalities else (vectors,):
                numbers = arrow.array(own.contiguous().numpy().ravel())
                columns.append(arrow.FixedSizeListArray.from_arrays(numbers, layout.dim))
            writer.write_table(arrow.table(columns, schema=schema))

        yield add


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise ValueError(f"a .parquet file needs pyarrow, which cannot be imported ({error}): install it") from error
    return pa, parquet


_WRITERS: dict[str, Callable[[Path, _Layout], AbstractContextManager[Add]]] = {
    ".npz": _npz,
    ".csv": _csv,
    ".parquet": _parquet,
}
