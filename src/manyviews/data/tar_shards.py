"""Tar files in the WebDataset layout: members of one key, the name up to its first dot, are an instance.

What follows the key says what a member is: `0001.jpg` is the image of the instance 0001, `0001.left.jpg` its image
`left`, `0001.txt` its text, `0001.cls` its class. A JSON object has a text for each of its fields. Texts, classes and
features are read when the shards are loaded; images, audio and video by their offsets, when they are needed.
"""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from manyviews.data.dataset import DatasetDict, get_canonical_split
from manyviews.data.errors import DatasetError, translate_errors
from manyviews.data.image_arrays import read_npy
from manyviews.data.image_files import IMAGE_EXTENSIONS
from manyviews.data.media_files import AUDIO_EXTENSIONS, VIDEO_EXTENSIONS
from manyviews.data.table_columns import choose_array_kind
from manyviews.data.table_file import TableOptions, convert_table
from manyviews.data.table_readers import (
    Cell,
    EncodedFile,
    RawTable,
    convert_cell,
    measure_cell,
    to_float32,
)
from manyviews.data.tar_blobs import TarBlobs
from manyviews.data.tar_index import load_index
from manyviews.data.tar_patterns import get_shards_name, list_shards
from manyviews.utils import Budget, describe_type, parse_json, track

MAX_TEXT_BYTES = 2**24
"""Maximum size of a text, a class or a JSON object."""
GROUPS = {
    **{extension[1:]: "image" for extension in IMAGE_EXTENSIONS},
    **{extension[1:]: "audio" for extension in AUDIO_EXTENSIONS},
    **{extension[1:]: "video" for extension in VIDEO_EXTENSIONS},
    "npy": "features",
    "txt": "text",
    "cls": "label",
    "json": "json",
}
"""What a member is, by its last extension; also the name of its column."""
MEDIA_GROUPS = ("image", "audio", "video")


def load_shards(source: str, options: TableOptions) -> DatasetDict:
    """Load tar files; options are those of a table whose columns are the kinds of members and the fields of JSON.

    Raises:
        DatasetError: a file is not a tar file or is truncated, or a member is invalid; the message has both.
    """
    return convert_table(read_shards(list_shards(source), source), get_shards_name(source), options)


@dataclass
class _Members:
    """The members of one column: for each row that has one, its shard, its index in the shard's lists, its name."""

    prefix: str
    suffix: str
    by_row: dict[int, tuple[int, int, int, str]] = field(default_factory=dict)
    """Shard, offset, size and name of the member of a row."""

    @property
    def group(self) -> str:
        return GROUPS[self.suffix]


def read_shards(paths: list[Path], source: str) -> RawTable:
    """Read tar files to a table with a column for each extension group and for each field of JSON objects."""
    keys, members, warnings = _group_members(paths)
    if not keys:
        raise DatasetError(f"{source} has no members such as 0001.jpg: {'; '.join(warnings) or 'it is empty'}")
    shard_names = _name_shards(paths)
    rows = [f"{shard_names[shard]}/{key}" for shard, key in keys]
    has_unique_keys = len({key for _, key in keys}) == len(keys)
    table = RawTable(source, rows=rows, ids=tuple(key for _, key in keys) if has_unique_keys else tuple(rows))
    table.warnings = warnings
    reader = _MemberReader(paths, source)
    named = _name_columns(members)
    for name, part in named.items():
        if part.group in MEDIA_GROUPS:
            table.columns[name] = [EncodedFile(part.group) if i in part.by_row else None for i in range(len(rows))]
            table.blobs[name] = _make_blobs(tuple(paths), part, len(rows))
        elif part.group != "json":
            table.columns[name] = reader.read_cells(part, len(rows))
        if part.group == "features":
            table.kinds[name] = choose_array_kind(table.columns[name])
        elif part.group == "text":
            table.kinds[name] = "text"
    for part in named.values():
        if part.group == "json":
            _add_fields(table, part, reader)
    table.splits = _read_splits(paths, [shard for shard, _ in keys])
    return table


def _group_members(paths: list[Path]) -> tuple[list[tuple[int, str]], list[_Members], list[str]]:
    """Group the members of each shard by key; return the shard and the key of each row, and warnings."""
    rows: dict[tuple[int, str], int] = {}
    members: dict[str, _Members] = {}
    skipped: dict[str, tuple[int, str]] = {}
    for shard, path in enumerate(track(paths, "indexing shards", len(paths))):
        index = load_index(path)
        for name, offset, size in zip(index.names, index.offsets.tolist(), index.sizes.tolist(), strict=True):
            folder, slash, base = name.rpartition("/")
            stem, _, extension = base.partition(".")
            extension = extension.lower()
            prefix, _, suffix = extension.rpartition(".")
            if not stem or suffix not in GROUPS:
                count, example = skipped.get(suffix, (0, f"{path}, member {name}"))
                skipped[suffix] = count + 1, example
                continue
            row = rows.setdefault((shard, folder + slash + stem), len(rows))
            if extension not in members:
                members[extension] = _Members(prefix, suffix)
            if row in members[extension].by_row:
                raise DatasetError(f"{path}, member {name!r}: its key has two members .{extension}: remove one")
            members[extension].by_row[row] = shard, offset, size, name
    warnings = [
        f"{count:,} members .{suffix} are skipped, first: {example}"
        if suffix
        else f"{count:,} members without a key and an extension are skipped, first: {example}"
        for suffix, (count, example) in skipped.items()
    ]
    return list(rows), list(members.values()), warnings


def _name_columns(members: list[_Members]) -> dict[str, _Members]:
    """Name columns by what comes between key and last extension, or else by the group of the extension.

    Members of one group with different extensions, such as .jpg and .png, are one column unless an instance has both;
    then the extensions are part of the names.
    """
    by_group: dict[tuple[str, str], list[_Members]] = {}
    for part in members:
        by_group.setdefault((part.prefix, part.group), []).append(part)
    columns: list[tuple[str, str, _Members]] = []  # short name, full name
    for (prefix, group), parts in by_group.items():
        merged: dict[int, tuple[int, int, int, str]] = {}
        for part in parts:
            merged |= part.by_row
        if len(merged) == sum(len(part.by_row) for part in parts):
            merged_part = _Members(prefix, parts[0].suffix, dict(sorted(merged.items())))
            columns.append((prefix or group, f"{prefix}.{parts[0].suffix}".strip("."), merged_part))
        else:
            columns += [(name := f"{prefix}.{part.suffix}".strip("."), name, part) for part in parts]
    order = list(dict.fromkeys(GROUPS.values()))
    columns.sort(key=lambda column: (order.index(column[2].group), column[0]))
    short_names = [short for short, _, _ in columns]
    return {short if short_names.count(short) == 1 else full: part for short, full, part in columns}


def _name_shards(paths: list[Path]) -> list[str]:
    """Return the file names without extension, or whole paths if two are equal."""
    names = [path.stem for path in paths]
    return names if len(set(names)) == len(names) else [str(path.with_suffix("")) for path in paths]


def _make_blobs(paths: tuple[Path, ...], part: _Members, count: int) -> TarBlobs:
    missing = 0, 0, 0, ""
    shard, offsets, sizes, names = zip(*(part.by_row.get(i, missing) for i in range(count)), strict=True)
    return TarBlobs(paths, np.array(shard, np.int32), np.array(offsets, np.int64), np.array(sizes, np.int64), names)


class _MemberReader:
    """Reads members that are held in memory, in their order."""

    def __init__(self, paths: list[Path], source: str) -> None:
        self.paths = paths
        self.budget = Budget(source, sum(path.stat().st_size for path in paths))

    def read(self, part: _Members) -> Iterator[tuple[int, str, bytes]]:
        """Yield row, description and content of each member."""
        is_text = part.group != "features"
        for shard, rows in itertools.groupby(part.by_row.items(), key=lambda item: item[1][0]):
            with self.paths[shard].open("rb") as file:
                for row, (_, offset, size, name) in rows:
                    context = f"{self.paths[shard]}, member {name}"
                    if is_text and size > MAX_TEXT_BYTES:
                        raise DatasetError(f"{context} has {size:,} bytes, the maximum is {MAX_TEXT_BYTES:,}")
                    self.budget.take(size)
                    file.seek(offset)
                    content = file.read(size)
                    if len(content) < size:
                        raise DatasetError(f"{context}: the file is truncated: download it again")
                    yield row, context, content

    def read_cells(self, part: _Members, count: int) -> list[Cell]:
        """Read texts, classes or features."""
        cells: list[Cell] = [None] * count
        for row, context, content in self.read(part):
            cells[row] = _parse_array(content, context) if part.group == "features" else _decode(content, context)
            self.budget.take(measure_cell(cells[row]))
        return cells

    def read_objects(self, part: _Members) -> Iterator[tuple[int, dict[str, Cell]]]:
        """Read the fields of JSON objects."""
        for row, context, content in self.read(part):
            with translate_errors(f"{context}"):
                values = parse_json(_decode(content, context) or "{}")
            if not isinstance(values, dict):
                raise DatasetError(f"{context}: expected a JSON object, got {describe_type(values)}")
            cells = {name: convert_cell(value) for name, value in values.items()}
            self.budget.take(sum(map(measure_cell, cells.values())))
            yield row, cells


def _decode(content: bytes, context: str) -> str | None:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DatasetError(f"{context}: it is not UTF-8 ({error.reason})") from error
    return text.replace("\0", "").strip() or None


def _parse_array(content: bytes, context: str) -> np.ndarray:
    with translate_errors(f"{context}: cannot parse it as .npy"):
        array = read_npy(io.BytesIO(content), len(content))
    if array.dtype.kind not in "iuf" or array.ndim not in (0, 1, 2) or 0 in array.shape:
        raise DatasetError(f"{context}: expected numbers (d,) or (steps, d), got {array.dtype} {array.shape}")
    return to_float32(np.atleast_1d(array))


def _add_fields(table: RawTable, part: _Members, reader: _MemberReader) -> None:
    """Add a column for each field of JSON objects: NAME, or json.NAME if there is such a column."""
    names: dict[str, str] = {}
    for row, cells in reader.read_objects(part):
        for key, cell in cells.items():
            if key not in names:
                name = f"{part.prefix}.{key}" if part.prefix else key
                names[key] = f"json.{name}" if name in table.columns else name
                reader.budget.take(8 * len(table.rows))
                table.columns[names[key]] = [None] * len(table.rows)
            table.columns[names[key]][row] = cell
    for name in names.values():
        cells_of_name = table.columns[name]
        if any(isinstance(cell, np.ndarray) for cell in cells_of_name):
            table.kinds[name] = choose_array_kind(cells_of_name)


def _read_splits(paths: list[Path], shards: list[int]) -> list[str] | None:
    """Return the split of each row by a word in the name of its shard, or by the name of its folder."""
    splits = [_find_split(path.stem) or get_canonical_split(path.parent.name) for path in paths]
    if not any(splits):
        return None
    if None in splits:
        named = next(i for i, split in enumerate(splits) if split)
        raise DatasetError(
            f"{paths[named]} is of the split {splits[named]}, but {paths[splits.index(None)]} names no split: "
            "put train, valid or test into the names of all files, or of none"
        )
    return [splits[shard] or "" for shard in shards]


def _find_split(name: str) -> str | None:
    return next(filter(None, map(get_canonical_split, re.split(r"[^A-Za-z]+", name))), None)
