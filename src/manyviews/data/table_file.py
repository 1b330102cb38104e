"""Load a table (.csv, .tsv, .jsonl or .parquet): a row is an instance, a column a modality.

A cell has a text, or the path of an image (or several, separated by "|"), of audio, of a video or of a .npy file of
features, relative to the table. It may also have a list of numbers (a vector), of lists of numbers (a sequence) or of
paths of images. An empty cell means that the instance lacks the modality. Three columns are special: ids, splits and
labels.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from manyviews.data.column import Column
from manyviews.data.dataset import KINDS, SPLIT_ALIASES, Dataset, DatasetDict, get_canonical_split
from manyviews.data.errors import DatasetError
from manyviews.data.multimodal_arrays import check_modality_name
from manyviews.data.table_columns import SKIP, ColumnBuilder, recognize_kind, to_number
from manyviews.data.table_readers import Cell, EncodedFile, InvalidCell, RawTable, read_table, show_cell
from manyviews.utils import draw_permutation, suggest

ID_NAMES, SPLIT_NAMES, LABEL_NAMES = ("id",), ("split",), ("label", "class", "target", "group")
"""Names of the special columns, in any case, unless others are given."""
TEST_EVERY = 5
"""Without a split column, one instance of so many is in the test split."""
SPLIT_KEY = 2
"""Random key of these splits."""
SKIP_HINTS = {"has numbers": "--kinds {}=vector", "has classes": "--label-column {}"}
"""How to use columns that are skipped for a reason."""
MAX_EXAMPLES = 5
"""Maximum number of examples in a message."""


def load_table(
    path: Path,
    *,
    kinds: Mapping[str, str] | Sequence[str] = (),
    id_column: str | None = None,
    split_column: str | None = None,
    label_column: str | None = None,
    raise_on_corrupt: bool = False,
    follow_symlinks: bool = False,
    strict_columns: bool = True,
) -> DatasetDict:
    r"""Load a table.

    Args:
        path: a .csv, .tsv, .jsonl or .parquet file.
        kinds: kinds of columns that are recognized wrongly: image, text, sequence, vector, audio, video or skip,
            as a dict by the name of the column or as texts COLUMN=KIND.
        id_column: column of ids. Default: id, if it exists; otherwise ids are row indices.
        split_column: column of splits. Default: split, if it exists; otherwise a random fifth is the test split.
        label_column: column of labels. Default: the first of label, class, target and group that exists.
        raise_on_corrupt: raise an error for a corrupt image, audio file or video, instead of a warning and a missing
            value.
        follow_symlinks: read files outside of the folder of the table.
        strict_columns: raise an error for a kind or a special column that the table does not have, instead of ignoring
            it.

    Raises:
        DatasetError: the table or one of its cells is invalid; the message has the row and the column.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "animals.csv"
        ...     _ = path.write_text("en,de,label\ncat,Katze,pet\ndog,Hund,pet\nbee,,insect\n")
        ...     data = load_table(path)
        >>> data["train"], data.class_names, data["train"]["de"].get_mask()
        (Dataset(3 instances, en (text), de (text), labels), ('insect', 'pet'), tensor([ True,  True, False]))
    """
    options = TableOptions(
        kinds, id_column, split_column, label_column, raise_on_corrupt, follow_symlinks, strict_columns
    )
    return convert_table(read_table(path), path.stem, options)


@dataclass(frozen=True)
class TableOptions:
    """The options of `load_table`."""

    kinds: Mapping[str, str] | Sequence[str] = ()
    id_column: str | None = None
    split_column: str | None = None
    label_column: str | None = None
    raise_on_corrupt: bool = False
    follow_symlinks: bool = False
    strict_columns: bool = True

    def parse_kinds(self) -> dict[str, str]:
        """Parse the kinds of columns, from a dict or from texts COLUMN=KIND."""
        if isinstance(self.kinds, Mapping):
            return dict(self.kinds)
        parsed = {}
        for text in [self.kinds] if isinstance(self.kinds, str) else self.kinds:
            name, equals, kind = text.rpartition("=")
            if not equals:
                raise DatasetError(f"kinds must be COLUMN=KIND, such as photo=image, got {text!r}")
            parsed[name] = kind
        return parsed

    def select_columns(self, columns: Collection[str]) -> TableOptions:
        """Leave out special columns that do not exist, unless columns are strict."""
        if self.strict_columns:
            return self
        names = (self.id_column, self.split_column, self.label_column)
        id_column, split_column, label_column = (name if name in columns else None for name in names)
        return replace(self, id_column=id_column, split_column=split_column, label_column=label_column)


def convert_table(table: RawTable, name: str, options: TableOptions) -> DatasetDict:
    """Convert the cells of a table to a dataset.

    Raises:
        DatasetError: one of the cells is invalid; the message has the row and the column.
    """
    options = options.select_columns(table.columns)
    told = {
        column: kind
        for column, kind in options.parse_kinds().items()
        if options.strict_columns or column in table.columns
    }
    check_kinds(told, table)
    id_name = _find_column(table, options.id_column, ID_NAMES, told)
    split_name = _find_column(table, options.split_column, SPLIT_NAMES, told)
    label_name = _find_column(table, options.label_column, LABEL_NAMES, told)
    classes = [column for column in table.class_names if column not in told]
    if label_name is None and len(classes) == 1:
        label_name = classes[0]
    builder = ColumnBuilder(table, options.raise_on_corrupt, options.follow_symlinks, [*table.warnings])
    if label_name and options.label_column is None and all(cell is None for cell in table.columns[label_name]):
        builder.warnings.append(f"{table.source}: column {label_name} is empty: there are no labels")
        label_name = None
    labels, class_names = _read_labels(table, label_name) if label_name else (None, ())
    split_names = table.splits
    if split_name and (options.split_column or split_names is None):
        split_names = _read_splits(table, split_name)
    ids = table.ids or tuple(map(str, range(len(table.rows))))
    if id_name:
        ids = _read_ids(table, id_name, split_names)
    special = {id_name, split_name, label_name, *(name for name, kind in told.items() if kind == SKIP)}
    columns = _build_columns(builder, told, [name for name in table.columns if name not in special])
    dataset = Dataset(columns, labels, ids)
    keep = dataset.get_mask(list(columns)).any(1)
    if not keep.all():
        rows = [table.rows[i] for i in (~keep).nonzero().squeeze(1).tolist()]
        shown = ", ".join(map(str, rows[:MAX_EXAMPLES])) + (", ..." if len(rows) > MAX_EXAMPLES else "")
        builder.warnings.append(f"{table.source}: rows without any value in {', '.join(columns)} are skipped: {shown}")
    indices, rule = _choose_splits(split_names, dataset.class_labels, keep, table.source)
    splits = {split: dataset.select(index) for split, index in indices.items()}
    return DatasetDict(name, splits, class_names, tuple(builder.warnings), split_rule=rule)


def check_kinds(kinds: Mapping[str, str], table: RawTable) -> None:
    """Raise a DatasetError if a column does not exist, or if a kind is unknown."""
    for name, kind in kinds.items():
        if name not in table.columns:
            raise DatasetError(f"{table.source} has no column {name!r}{suggest(name, table.columns)}")
        if kind not in (*KINDS, SKIP):
            raise DatasetError(f"unknown kind {kind!r} of column {name}{suggest(kind, (*KINDS, SKIP))}")


def _find_column(table: RawTable, given: str | None, names: Sequence[str], told: Mapping[str, str]) -> str | None:
    """Find a special column: the given one or, by name, one that is not told to be a modality."""
    if given is not None:
        if given not in table.columns:
            raise DatasetError(f"{table.source} has no column {given!r}{suggest(given, table.columns)}")
        if given in told:
            raise DatasetError(f"column {given} has ids, splits or labels: it cannot also be of kind {told[given]}")
        return given
    candidates = {name.lower(): name for name in reversed(table.columns) if name not in told}
    return next((candidates[name] for name in names if name in candidates), None)


def _read_ids(table: RawTable, name: str, splits: Sequence[str] | None) -> tuple[str, ...]:
    """Read ids, which are different in each split."""
    first: dict[tuple[str, str], int] = {}
    hint = f"--kinds {name}={SKIP} leaves the column out"
    ids = _read_texts(table, name, "an id", hint)
    for i, text in enumerate(ids):
        key = (splits[i] if splits else "", text)
        if key in first:
            rows = f"rows {table.rows[first[key]]} and {table.rows[i]}"
            raise DatasetError(f"{table.source}, column {name}: {rows} have the same id {show_cell(text)}: {hint}")
        first[key] = i
    return tuple(ids)


def _read_texts(table: RawTable, name: str, expected: str, hint: str) -> list[str]:
    """Read cells that must be texts or numbers, and not empty."""
    texts = []
    for i, cell in enumerate(table.columns[name]):
        if cell is None:
            raise table.make_error(i, name, f"the cell is empty, but every row must have {expected}: {hint}")
        if isinstance(cell, (list, np.ndarray, InvalidCell, EncodedFile)):
            raise table.make_error(i, name, f"expected {expected}, got a list, a file or an object: {hint}")
        texts.append(str(cell).lower() if isinstance(cell, bool) else str(cell))
    return texts


def _read_splits(table: RawTable, name: str) -> list[str]:
    splits = []
    hint = (
        f"the splits are {', '.join(SPLIT_ALIASES)}; use --split-column for another column, or --kinds {name}=text if "
        "the table has no splits"
    )
    for i, text in enumerate(_read_texts(table, name, "a split", hint)):
        split = get_canonical_split(text)
        if split is None:
            raise table.make_error(i, name, f"unknown split {show_cell(text)}: {hint}")
        splits.append(split)
    return splits


def _read_labels(table: RawTable, name: str) -> tuple[Tensor, tuple[str, ...]]:
    """Read integers or texts as classes, other numbers as regression targets; also return the names of the classes."""
    hint = f"label all rows or, to ignore the column, use --kinds {name}={SKIP}"
    texts = _read_texts(table, name, "a label", hint)
    cells = table.columns[name]
    if name in table.class_names:
        names = list(table.class_names[name])
    elif all(_is_integer(cell) for cell in cells):
        names = [str(number) for number in sorted(set(map(int, texts)))]
    else:
        numbers = [to_number(cell) for cell in cells]
        if all(number is not None for number in numbers):
            targets = torch.tensor(numbers, dtype=torch.float32)
            if not targets.isfinite().all():
                i = int((~targets.isfinite()).nonzero()[0])
                raise table.make_error(i, name, f"the label must be a finite number, got {show_cell(cells[i])}")
            return targets, ()
        names = sorted(set(texts))
    index = {text: i for i, text in enumerate(names)}
    return torch.tensor([index[text] for text in texts]), tuple(names)


def _is_integer(cell: Cell) -> bool:
    if isinstance(cell, str):
        return re.fullmatch(r"0|-?[1-9]\d{0,17}", cell) is not None
    return isinstance(cell, int) and not isinstance(cell, bool)


def _build_columns(builder: ColumnBuilder, told: Mapping[str, str], names: Sequence[str]) -> dict[str, Column]:
    table = builder.table
    skipped: dict[str, list[str]] = {}
    kinds: dict[str, str] = {}
    for name in names:
        kind, reason = recognize_kind(table.columns[name], table.folder is not None)
        kind = table.kinds.get(name, kind) if kind != SKIP or reason == "has numbers" else kind
        if name in table.class_names and kind != SKIP:
            kind, reason = SKIP, "has classes"
        if name in told and reason == "is empty":
            raise DatasetError(f"{table.source}: column {name} is of kind {told[name]}, but all its cells are empty")
        kind = told.get(name, kind)
        if kind == SKIP:
            skipped.setdefault(reason, []).append(name)
        else:
            kinds[name] = kind
    for reason, columns in skipped.items():
        shown = ", ".join(columns[:MAX_EXAMPLES]) + (", ..." if len(columns) > MAX_EXAMPLES else "")
        hint = f" (to use it: {SKIP_HINTS[reason].format(columns[0])})" if reason in SKIP_HINTS else ""
        text = f"column {shown} {reason} and is skipped"
        text = text if len(columns) == 1 else f"columns {shown} are skipped: each {reason}"
        builder.warnings.append(f"{table.source}: {text}{hint}")
    if not kinds:
        reasons = "; ".join(builder.warnings) or f"it has only {', '.join(table.columns)}"
        raise DatasetError(f"{table.source} has no column of images, texts, recordings or features: {reasons}")
    for name in kinds:
        hint = f"rename the column, or use --kinds {name}={SKIP}"
        check_modality_name(name, f"{table.source}: {hint}")
    return {name: builder.build(name, kind) for name, kind in kinds.items()}


def _choose_splits(
    names: list[str] | None, classes: Tensor | None, keep: Tensor, source: str
) -> tuple[dict[str, Tensor], str]:
    """Return the indices of each split, and how they were chosen if the table has no splits."""
    kept, rule = keep.nonzero().squeeze(1), ""
    if names is None:
        order = kept[draw_permutation(len(kept), SPLIT_KEY)]
        rank = torch.arange(len(order))
        if classes is not None:
            values, by_class = classes[order].sort(stable=True)
            rank[by_class] = torch.arange(len(order)) - torch.searchsorted(values, values)
        is_test = torch.zeros(len(keep), dtype=torch.bool)
        is_test[order] = rank % TEST_EVERY == TEST_EVERY - 1
        names = ["test" if test else "train" for test in is_test.tolist()]
        scope = "the instances" if classes is None else "each class"
        rule = f"the table has no column of splits; a random fifth of {scope} is in the test split"
    indices = {
        split: torch.tensor([i for i in kept.tolist() if names[i] == split]) for split in ("train", "valid", "test")
    }
    if not len(indices["train"]):
        existing = ", ".join(split for split, index in indices.items() if len(index)) or "none"
        raise DatasetError(f"{source} has no training instances: the splits of its rows are {existing}")
    return {split: index for split, index in indices.items() if len(index)}, rule
