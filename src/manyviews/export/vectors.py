"""Ids and vectors in a file, a batch at a time: memory does not grow with their number.

- .npz: `ids` (n,) and `vectors` (n, d)
- .npy: vectors alone; their ids in a .csv file beside it
- .csv: a line for each, `id` and the d numbers
- .parquet: `id` and `vector`, where pyarrow is installed
"""

from __future__ import annotations

import csv
import json
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from manyviews.training.files import check_writable, replaced

Add = Callable[[Sequence[str], Tensor], None]
"""Writes ids and their vectors (n, d)."""
HEADER = 128
"""Bytes of a .npy header of ours: room for any shape, which is known only at the end."""
AT_ONCE = 4096
"""Ids held at once when they are copied."""


def check_vector_file(path: Path, inputs: Iterable[str | Path] = ()) -> None:
    """Raise, before any work is done, if such a file cannot be written there, or is one of the inputs."""
    check_writable(path, (".npy", *_WRITERS), inputs)
    if path.suffix.lower() == ".npy":
        check_writable(ids_beside(path), (".csv",), inputs)
    if path.suffix.lower() == ".parquet":
        _pyarrow()


@contextmanager
def vector_file(path: Path, dim: int) -> Iterator[Add]:
    """A function that adds vectors to a file; the file is there, whole, when the block ends well.

    Examples:
        >>> import tempfile, torch
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with vector_file(Path(folder) / "out.npz", dim=2) as add:
        ...         add(["a.jpg", "b.jpg"], torch.ones(2, 2))
        ...     np.load(Path(folder) / "out.npz")["ids"].tolist()
        ['a.jpg', 'b.jpg']
    """
    check_vector_file(path)
    ending = path.suffix.lower()
    with ExitStack() as stack:
        temporary = stack.enter_context(replaced(path))
        if ending == ".npy":
            beside = stack.enter_context(replaced(ids_beside(path)))
            add = stack.enter_context(_npy(temporary, beside, dim))
        else:
            add = stack.enter_context(_WRITERS[ending](temporary, dim))

        def checked(ids: Sequence[str], vectors: Tensor) -> None:
            if vectors.shape != (len(ids), dim):
                raise ValueError(f"vectors must be ({len(ids)}, {dim}), one for each id, got {tuple(vectors.shape)}")
            if ids:
                add([_text(name) for name in ids], vectors)

        yield checked


def ids_beside(path: Path) -> Path:
    """The file with the ids of a .npy file."""
    return path.with_name(f"{path.stem}.ids.csv")


def _text(name: str) -> str:
    """A name as text: of what is no UTF-8 in a file's name, the bytes are written."""
    return os.fsencode(name).decode(errors="backslashreplace")


def _header(kind: str, *shape: int) -> bytes:
    words = repr({"descr": kind, "fortran_order": False, "shape": shape})
    return b"\x93NUMPY\x01\x00" + (HEADER - 10).to_bytes(2, "little") + words.ljust(HEADER - 11).encode() + b"\n"


@contextmanager
def _array(path: Path, dim: int) -> Iterator[Add]:
    count = 0

    def add(ids: Sequence[str], vectors: Tensor) -> None:
        nonlocal count
        count += len(ids)
        file.write(vectors.numpy().astype("<f4").tobytes())

    with path.open("wb") as file:
        file.write(_header("<f4", 0, dim))
        yield add
        file.seek(0)
        file.write(_header("<f4", count, dim))


@contextmanager
def _npy(temporary: Path, beside: Path, dim: int) -> Iterator[Add]:
    with beside.open("w", newline="", encoding="utf-8") as file, _array(temporary, dim) as put:
        writer = csv.writer(file)
        writer.writerow(["id"])

        def add(ids: Sequence[str], vectors: Tensor) -> None:
            put(ids, vectors)
            writer.writerows([name] for name in ids)

        yield add


@contextmanager
def _npz(temporary: Path, dim: int) -> Iterator[Add]:
    """Parts of an archive are written one after the other, so vectors and ids wait in files of their own."""
    vectors_part, ids_part = (temporary.with_name(f"{temporary.name}.{part}") for part in ("vectors", "ids"))
    count = longest = 0
    try:
        with _array(vectors_part, dim) as put, ids_part.open("w", encoding="utf-8") as lines:

            def add(ids: Sequence[str], vectors: Tensor) -> None:
                nonlocal count, longest
                put(ids, vectors)
                lines.writelines(json.dumps(name) + "\n" for name in ids)
                count, longest = count + len(ids), max(longest, *map(len, ids))

            yield add
        with zipfile.ZipFile(temporary, "w") as archive, ids_part.open(encoding="utf-8") as lines:
            archive.write(vectors_part, "vectors.npy")
            with archive.open("ids.npy", "w", force_zip64=True) as member:
                member.write(_header(f"<U{longest}", count))
                names: list[str] = []
                for line in lines:
                    names.append(json.loads(line))
                    if len(names) == AT_ONCE:
                        member.write(np.array(names, f"<U{longest}").tobytes())
                        names.clear()
                member.write(np.array(names, f"<U{longest}").tobytes())
    finally:
        vectors_part.unlink(missing_ok=True)
        ids_part.unlink(missing_ok=True)


@contextmanager
def _csv(temporary: Path, dim: int) -> Iterator[Add]:
    with temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", *range(dim)])

        def add(ids: Sequence[str], vectors: Tensor) -> None:
            rows = zip(ids, vectors.tolist(), strict=True)
            writer.writerows([name, *(f"{number:.9g}" for number in row)] for name, row in rows)

        yield add


@contextmanager
def _parquet(temporary: Path, dim: int) -> Iterator[Add]:
    arrow, parquet = _pyarrow()
    schema = arrow.schema([("id", arrow.string()), ("vector", arrow.list_(arrow.float32(), dim))])
    with parquet.ParquetWriter(temporary, schema) as writer:

        def add(ids: Sequence[str], vectors: Tensor) -> None:
            column = arrow.FixedSizeListArray.from_arrays(arrow.array(vectors.numpy().ravel()), dim)
            writer.write_table(arrow.table([arrow.array(ids), column], schema=schema))

        yield add


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise ValueError(f"a .parquet file needs pyarrow, which cannot be imported ({error}): install it") from error
    return pa, parquet


_WRITERS: dict[str, Callable[[Path, int], AbstractContextManager[Add]]] = {
    ".npz": _npz,
    ".csv": _csv,
    ".parquet": _parquet,
}
