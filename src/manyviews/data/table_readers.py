"""Read the cells of a table: .csv and .tsv by `csv`, .jsonl line by line, .parquet by pyarrow in a process of its own.

A row has the number that an editor shows: in .csv and .tsv the header is row 1, in .jsonl a row is a line. Rows of a
.parquet file are counted from 0. Numbers in a list are converted to an array, so that a list of features needs
little more memory than the features.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from manyviews.data.blobs import Blobs
from manyviews.data.errors import DatasetError
from manyviews.utils import Budget, check_regular, describe_type, get_memory_limit, parse_json

MAX_COLUMNS = 10_000
MAX_LINE_CHARS = 2**26
"""Maximum length of a line; the parsed line takes up to 64 times as much memory."""
MAX_SHOWN_CHARS = 80
"""Longer cells are cut in messages."""
CELL_BYTES = 64
"""Memory of a cell and of its position in the table, without its characters or numbers."""
DELIMITERS = {".csv": ",", ".tsv": "\t"}
TABLE_EXTENSIONS = (*DELIMITERS, ".jsonl", ".parquet")


@dataclass(frozen=True)
class InvalidCell:
    """A value that no kind of column can hold."""

    reason: str


@dataclass(frozen=True)
class EncodedFile:
    """A file of some kind (image, audio, video), which the `Blobs` of its column have."""

    kind: str


Cell: TypeAlias = str | int | float | bool | np.ndarray | list[str] | EncodedFile | InvalidCell | None
"""None is missing. An array is float32 (d,) or (T, d)."""


@dataclass
class RawTable:
    """The cells of a table by column, and the name of each row for messages."""

    source: str
    columns: dict[str, list[Cell]] = field(default_factory=dict)
    rows: list[int] | list[str] = field(default_factory=list)
    """The number of each row as it is counted in the file, or its position in a source of several files."""
    folder: Path | None = None
    """Texts in cells may be paths relative to this folder; None means that they are not paths."""
    blobs: dict[str, Blobs] = field(default_factory=dict)
    """Files of the columns whose cells are `EncodedFile`; blob i is opened only if cell i is one."""
    class_names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Classes of the columns whose type lists them, in order; their cells are such names."""
    kinds: dict[str, str] = field(default_factory=dict)
    """Kinds of columns that are known from their types."""
    ids: tuple[str, ...] = ()
    """Ids of rows if no column has them. Default: row indices."""
    splits: list[str] | None = None
    """Splits of rows if no option names a column of them."""
    warnings: list[str] = field(default_factory=list)
    """A line for each part of the source that is skipped."""

    def describe_cell(self, i: int, name: str) -> str:
        """Describe the position of a cell for a message."""
        return f"{self.source}, row {self.rows[i]}, column {name}"

    def make_error(self, i: int, name: str, problem: str) -> DatasetError:
        """Make an error about a cell; it has the row and the column."""
        return DatasetError(f"{self.describe_cell(i, name)}: {problem}")


def read_table(path: Path) -> RawTable:
    r"""Read all cells of a table.

    Raises:
        DatasetError: the file is corrupt, has no rows, or needs too much memory; the message has the row.

    Examples:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "pets.csv"
        ...     _ = path.write_text("photo,name\na.jpg,Tom\nb.jpg,\n")
        ...     read_table(path).columns
        {'photo': ['a.jpg', 'b.jpg'], 'name': ['Tom', None]}
    """
    suffix = path.suffix.lower()
    size = check_regular(path)
    budget = Budget(path, size)
    if suffix in DELIMITERS:
        table = _read_csv(path, DELIMITERS[suffix], budget)
    else:
        table = _read_jsonl(path, path, budget) if suffix == ".jsonl" else _read_parquet(path, budget)
    if not table.rows:
        raise DatasetError(f"{path} has no rows")
    return table


def show_cell(cell: object) -> str:
    """Return a cell for a message, in quotes and cut if it is long.

    Examples:
        >>> show_cell("a.jpg"), len(show_cell("a" * 1000))
        ("'a.jpg'", 85)
    """
    text = cell if isinstance(cell, str) else str(cell)
    return repr(text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}...")


def _iterate_lines(path: Path, source: Path) -> Iterator[str]:
    number = 1
    try:
        with source.open(encoding="utf-8-sig", newline="") as file:
            while line := file.readline(MAX_LINE_CHARS):
                if len(line) == MAX_LINE_CHARS:
                    raise DatasetError(f"{path}, line {number}: the line has more than {MAX_LINE_CHARS:,} characters")
                if "\0" in line:
                    raise DatasetError(f"{path}, line {number}: the line has a NUL byte, which text does not have")
                yield line
                number += 1
    except UnicodeDecodeError as error:
        raise DatasetError(
            f"{path}, line {number} or later: it is not UTF-8 ({error.reason}): save it with that encoding"
        ) from error


def _read_csv(path: Path, delimiter: str, budget: Budget) -> RawTable:
    # A lenient reader would merge rows after a quote that is not closed.
    reader = csv.reader(_iterate_lines(path, path), delimiter=delimiter, strict=True)
    table, number = RawTable(str(path), folder=path.parent), 0
    rows: list[int] = []
    table.rows = rows
    cells: list[list[Cell]] = []
    try:
        for number, row in enumerate(reader, 1):
            if not row:
                continue
            if not table.columns:
                _check_header(path, row, delimiter)
                table.columns = {name.strip(): [] for name in row}
                cells = list(table.columns.values())
                continue
            if len(row) != len(cells):
                raise DatasetError(
                    f"{path}, row {number}: it has {len(row)} cells, but the header has {len(cells)} columns"
                    + (": is there a comma in a cell that is not in quotes?" if delimiter == "," else "")
                )
            budget.take(sum(map(sys.getsizeof, row)) + CELL_BYTES * (len(row) + 1))
            rows.append(number)
            for column, text in zip(cells, row, strict=True):
                column.append(text.strip() or None)
    except csv.Error as error:
        hint = "is a quote not closed? A quote in a quoted cell is written twice"
        raise DatasetError(f"{path}, row {number + 1}: {error}: {hint}") from error
    if not table.columns:
        raise DatasetError(f"{path} is empty: the first row must have the names of the columns")
    for name, column in table.columns.items():
        if all(isinstance(cell, str) and cell[0] == "[" and cell[-1] == "]" for cell in column if cell is not None):
            table.columns[name] = _parse_lists(column, budget)
    return table


def _check_header(path: Path, row: list[str], delimiter: str) -> None:
    names = [name.strip() for name in row]
    if len(names) > MAX_COLUMNS:
        raise DatasetError(f"{path} has {len(names):,} columns, the maximum is {MAX_COLUMNS:,}")
    if "" in names:
        raise DatasetError(
            f"{path}, row 1: column {names.index('') + 1} has no name: name it or, in pandas, use to_csv(index=False)"
        )
    if duplicates := [name for i, name in enumerate(names) if name in names[:i]]:
        raise DatasetError(f"{path}, row 1: two columns have the name {show_cell(duplicates[0])}: rename one")
    others = [other for other in ",;\t|" if other != delimiter and other in names[0]]
    if len(names) == 1 and others:
        raise DatasetError(
            f"{path}, row 1: there is one column, {show_cell(names[0])}: columns must be separated by "
            f"{'commas' if delimiter == ',' else 'tabs'}, not by {others[0]!r}"
        )


def _parse_lists(column: list[Cell], budget: Budget) -> list[Cell]:
    """Parse cells such as [0.5, 1] as JSON; the column is text if one of them is not."""
    try:
        parsed = [convert_cell(parse_json(cell)) if isinstance(cell, str) else None for cell in column]
    except ValueError:
        return column
    budget.take(sum(map(measure_cell, parsed)))
    return column if any(isinstance(cell, InvalidCell) for cell in parsed) else parsed


def _read_jsonl(path: Path, source: Path, budget: Budget) -> RawTable:
    """Read the lines of `source`; messages are about `path`."""
    rows: list[int] = []
    table = RawTable(str(path), rows=rows, folder=path.parent)
    for number, line in enumerate(_iterate_lines(path, source), 1):
        if line.isspace():
            continue
        try:
            values = parse_json(line)
        except ValueError as error:
            raise DatasetError(f"{path}, row {number}: {error}") from error
        if not isinstance(values, dict):
            got = describe_type(values)
            raise DatasetError(f'{path}, row {number}: expected a JSON object such as {{"text": "a cat"}}, got {got}')
        for name in values:
            if name not in table.columns:
                budget.take(CELL_BYTES * len(table.rows))
                table.columns[name] = [None] * len(table.rows)
        if len(table.columns) > MAX_COLUMNS:
            raise DatasetError(f"{path} has more than {MAX_COLUMNS:,} columns")
        for name, column in table.columns.items():
            cell = convert_cell(values.get(name))
            budget.take(measure_cell(cell))
            column.append(cell)
        rows.append(number)
    if "" in table.columns:
        raise DatasetError(f"{path}: a column has no name")
    return table


def convert_cell(value: Any) -> Cell:
    """Convert a JSON value: lists of numbers become arrays, what is empty becomes None.

    Examples:
        >>> convert_cell([1, 2.5]), convert_cell([[1, 2], [3, 4], [5, 6]]).shape, convert_cell(" ")
        (array([1. , 2.5], dtype=float32), (3, 2), None)
        >>> convert_cell({"a": 1})
        InvalidCell(reason='an object')
    """
    if isinstance(value, str):
        return value.strip() or None
    if value is None or isinstance(value, (bool, int, float)):
        return value if value == value else None  # NaN
    if isinstance(value, dict):
        return InvalidCell("an object")
    if not value:
        return None
    if all(isinstance(item, str) for item in value):
        return [text for item in value if (text := item.strip())] or None
    if all(_is_number(item) for item in value) or all(isinstance(item, list) and item for item in value):
        rows = value if isinstance(value[0], list) else [value]
        if len({len(row) for row in rows}) == 1 and all(_is_number(item) for row in rows for item in row):
            try:
                return to_float32(np.array(value, np.float64))
            except OverflowError:
                return InvalidCell("a list with a number that is too large")
    return InvalidCell("a list of anything but numbers, lists of numbers of one length, or texts")


def to_float32(array: np.ndarray) -> np.ndarray:
    """Convert to float32; numbers that are too large become infinite."""
    with np.errstate(over="ignore"):
        return array.astype(np.float32)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def measure_cell(cell: Cell) -> int:
    """Return the memory of a cell in bytes."""
    if isinstance(cell, np.ndarray):
        return CELL_BYTES + 64 + cell.nbytes
    if isinstance(cell, list):
        return CELL_BYTES + sum(map(sys.getsizeof, cell)) + 8 * len(cell)
    return CELL_BYTES + (sys.getsizeof(cell) if isinstance(cell, str) else 0)


def _read_parquet(path: Path, budget: Budget) -> RawTable:
    """Convert the file in a process of its own, with a limit of memory: a few bytes can claim any number of values."""
    if find_spec("pyarrow") is None:
        raise DatasetError(f'reading {path} needs pyarrow: pip install "manyviews[parquet]"')
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(Path(__file__).with_name("_read_parquet.py")), str(path.resolve()), folder]
        environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(  # noqa: S603
            [*command, str(get_memory_limit()), str(MAX_COLUMNS)],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            env=environment,
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines()
            reason = lines[-1] if lines and done.returncode > 0 else f"its reader ended with {done.returncode}"
            raise DatasetError(f"cannot read {path}: {reason[:1000]}")
        table = _read_jsonl(path, Path(folder) / "rows.jsonl", budget)
        content = json.loads((Path(folder) / "columns.json").read_text(encoding="utf-8"))
        for i, name in enumerate(content["names"]):
            if i in content["arrays"]:
                lengths, values = (np.load(Path(folder) / f"{i}-{part}.npy") for part in ("lengths", "values"))
                budget.take(values.nbytes + (CELL_BYTES + 64) * len(lengths))
                table.columns[name] = split_array(values, lengths.tolist())
            elif reason := content["invalid"].get(name):
                table.columns[name] = [None if cell is None else InvalidCell(reason) for cell in table.columns[name]]
    table.columns = {name: table.columns[name] for name in content["names"]} if table.rows else {}
    table.rows = list(range(len(table.rows)))
    return table


def split_array(values: np.ndarray, lengths: Iterable[int]) -> list[Cell]:
    """Split an array into consecutive parts; an empty part is None."""
    cells: list[Cell] = []
    start = 0
    for length in lengths:
        cells.append(values[start : start + length] if length else None)
        start += length
    return cells
