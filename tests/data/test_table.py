"""Tables (.csv, .tsv, .jsonl, .parquet): each format, kinds, gaps, special columns, and every error."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import random
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from manyviews.data import (
    CorruptImageError,
    DatasetDict,
    DatasetError,
    DatasetWarning,
    Images,
    LazyImages,
    Sequences,
    Texts,
    Vectors,
    find_problems,
    is_table,
    load_dataset,
    table_columns,
    table_readers,
)
from manyviews.data.table_readers import read_table

Rows = Sequence[Mapping[str, Any]]


def write_table(path: Path, rows: Rows) -> Path:
    """Write rows in the format of the extension; a missing key is an empty cell."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif path.suffix == ".parquet":
        pa.parquet.write_table(pa.table({name: [row.get(name) for row in rows] for name in names}), path)
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, names, delimiter="\t" if path.suffix == ".tsv" else ",", restval="")
            writer.writeheader()
            writer.writerows(rows)
    return path


def make_images(folder: Path, names: Iterable[str], size: tuple[int, int] = (12, 8)) -> None:
    for seed, name in enumerate(names):
        pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / name)


def load(path: Path, **options: Any) -> DatasetDict:
    """Load a table without raising its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DatasetWarning)
        return load_dataset(path, **options)


def load_rows(folder: Path, rows: Rows, suffix: str = ".jsonl", **options: Any) -> DatasetDict:
    return load(write_table(folder / f"table{suffix}", rows), **options)


def load_text(folder: Path, content: str | bytes, name: str = "table.csv", **options: Any) -> DatasetDict:
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return load(folder / name, **options)


# formats


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_every_format_gives_the_same_dataset(tmp_path: Path, suffix: str) -> None:
    make_images(tmp_path, ["a.png", "b.png", "c.png"])
    np.save(tmp_path / "a.npy", np.arange(4.0))
    np.save(tmp_path / "c.npy", np.arange(4))
    rows = [
        {
            "id": "x1",
            "split": "train",
            "photo": "a.png",
            "title": 'a "cat", on\na mat',
            "sound": "a.npy",
            "label": "cat",
        },
        {"id": "x2", "split": "dev", "photo": "b.png", "title": "狗", "label": "dog"},
        {"id": "x3", "split": "Train", "photo": "c.png", "sound": "c.npy", "label": "cat"},
    ]
    data = load_rows(tmp_path, rows, suffix)
    assert list(data.splits) == ["train", "valid"]
    assert data.name == "table"
    assert data.class_names == ("cat", "dog")
    assert data.warnings == ()
    assert data.split_rule == ""
    train, valid = data["train"], data["valid"]
    assert train.ids == ("x1", "x3")
    assert valid.ids == ("x2",)
    assert train.labels is not None
    assert train.labels.tolist() == [0, 0]
    assert train["photo"].describe() == "images of 3 x 8 x 12"
    assert isinstance(train["title"], Texts)
    assert train["title"].values == ('a "cat", on\na mat', "")
    assert train["title"].get_mask().tolist() == [True, False]
    assert isinstance(train["sound"], Vectors)
    assert train["sound"].values.tolist() == [[0, 1, 2, 3], [0, 1, 2, 3]]
    assert valid["sound"].get_mask().tolist() == [False]


def test_lists_are_vectors_sequences_and_images(tmp_path: Path) -> None:
    make_images(tmp_path, ["a.png", "b.png", "c.png"])
    rows = [
        {"vector": [1, 2.5], "sequence": [[1, 2], [3, 4], [5, 6]], "photos": ["a.png", "b.png"]},
        {"vector": [], "sequence": [[7, 8]], "photos": ["c.png"]},
        {"vector": [3, 4], "photos": []},
        {"photos": None, "vector": [0, 1]},
    ]
    for suffix in (".jsonl", ".parquet"):
        train = load_rows(tmp_path, rows, suffix)["train"]
        vector, sequence, photos = train["vector"], train["sequence"], train["photos"]
        assert isinstance(vector, Vectors)
        assert vector.values.tolist() == [[1, 2.5], [0, 0], [3, 4], [0, 1]]
        assert vector.get_mask().tolist() == [True, False, True, True]
        assert isinstance(sequence, Sequences)
        assert sequence.lengths.tolist() == [3, 1, 1, 1]
        assert sequence.values.shape == (4, 3, 2)
        assert sequence.get_mask().tolist() == [True, True, False, False]
        assert isinstance(photos, Images)
        assert photos.counts is not None
        assert photos.counts.tolist() == [2, 1, 0, 0]
        assert photos.get_mask().tolist() == [True, True, False, False]


def test_cells_of_csv_may_have_lists_and_several_images(tmp_path: Path) -> None:
    make_images(tmp_path, ["a.png", "b.png", "c.png"])
    train = load_text(tmp_path, 'v,p,t\n"[1, 2]",a.png | b.png,[laughs]\n"[3, 4]",c.png,[sighs]\n,,a|b.txt\n')["train"]
    assert [train[name].describe() for name in "vpt"] == [
        "vectors of 2",
        "images of 3 x 8 x 12, 1 to 2 per instance",
        "texts",
    ]
    assert isinstance(train["p"], Images)
    assert train["p"].counts is not None
    assert train["p"].counts.tolist() == [2, 1, 0]


def test_byte_order_mark_blank_lines_and_any_line_ends_are_accepted(tmp_path: Path) -> None:
    for end in ("\n", "\r\n", "\r"):
        content = "\ufeff" + end.join(["text,name", "a,b", "", "c, d ", ""])
        train = load_text(tmp_path, content)["train"]
        assert isinstance(train["text"], Texts)
        assert train["text"].values == ("a", "c")
        assert train["name"].values == ("b", "d")  # type: ignore[attr-defined]
    data = load_text(tmp_path, '\ufeff{"text": "a"}\r\n\n{"text": "b"}', "table.jsonl")
    assert len(data["train"]) == 2


def test_parquet_types_are_converted(tmp_path: Path) -> None:
    table = pa.table({
        "text": pa.array(["a", "b"]).dictionary_encode(),
        "fixed": pa.array([[1, 2], None], pa.list_(pa.int16(), 2)),
        "half": pa.array([[1.5], [2.5]], pa.large_list(pa.float32())),
        "raw": pa.array([b"\xff", None]),
        "struct": pa.array([{"bytes": b"1", "path": None}] * 2),
        "day": pa.array([0, 1], pa.date32()),
        "score": pa.array([0.5, None]),
    })  # fmt: skip
    pa.parquet.write_table(table, tmp_path / "table.parquet")
    data = load(tmp_path / "table.parquet")
    described = {name: column.describe() for name, column in data["train"].modalities.items()}
    assert described == {"text": "texts", "fixed": "vectors of 2", "half": "vectors of 1", "day": "texts"}
    assert data["train"]["fixed"].get_mask().tolist() == [True, False]
    assert "column raw has a value of type binary and is skipped" in data.warnings[0]
    assert "column struct has a value of type struct" in data.warnings[1]
    assert "column score has numbers and is skipped (to use it: --kinds score=vector)" in data.warnings[2]


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_table(tmp_path / "table.parquet", [{"text": "a"}])
    monkeypatch.setattr(table_readers, "find_spec", lambda name: None)
    with pytest.raises(DatasetError, match=r'needs pyarrow: pip install "manyviews\[parquet\]"'):
        load(tmp_path / "table.parquet")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty: the first row must have the names"),
        ("\n\n", "is empty"),
        ("a,b\n", "has no rows"),
        ("a,b,a\n1,2,3\n", "row 1: two columns have the name 'a'"),
        (",b\n1,2\n", "row 1: column 1 has no name.*index=False"),
        ("a;b\nx;y\n", "row 1: there is one column, 'a;b'.*separated by commas"),
        ("a,b\nx,y\nx\n", "row 3: it has 1 cells, but the header has 2 columns"),
        ("a,b\nx,y\n\nx,y,z\n", "row 4: it has 3 cells, but the header has 2 columns.*not in quotes"),
        ('a,b\nx,"y\nx,y\n', "row 2: unexpected end of data.*quote"),
        ('a,b\n"x"y,z\n', "row 2: ',' expected after '\"'"),
        ("a,b\nx,\0\n", "line 2: the line has a NUL byte"),
        (b"a,b\nx,\xff\n", "line 1 or later: it is not UTF-8"),
        ("a,b\n\u00e9,x\n".encode("utf-16"), "it is not UTF-8"),
        (f"a,b\nx,y\n{'x' * 200_000},y\n", "row 3: field larger than field limit"),
        (",".join(f"c{i}" for i in range(10_001)), "has 10,001 columns, the maximum is 10,000"),
        ("a,b\n,\n", "no column of images, texts, recordings or features: .*columns a, b are skipped: each is empty"),
        ("id,label\n1,2\n", "no column of images, texts, recordings or features: it has only id, label"),
    ],
)  # fmt: skip
def test_a_corrupt_csv_is_an_error_with_the_row(tmp_path: Path, content: str | bytes, message: str) -> None:
    with pytest.raises(DatasetError, match=f"(?s)table.csv.*{message}"):
        load_text(tmp_path, content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no rows"),
        ('{"a": "x"}\n{"a": }\n', "row 2: it is not JSON"),
        ('{"a": "x"}\n\n["x"]\n', "row 3: expected a JSON object .*, got a list"),
        ("[" * 100_000, "row 1: it is not JSON"),
        ('{"": "x"}\n', "a column has no name"),
        (json.dumps({f"c{i}": 1 for i in range(10_001)}), "more than 10,000 columns"),
        ('{"a": {"b": 1}}', "no column of images.*column a has an object and is skipped"),
        ('{"a": [[1, 2], [3]]}', "column a has a list of anything but numbers"),
        ('{"a": ["x", "y"]}', "column a has lists of texts and is skipped"),
        ('{"a": [1' + "0" * 400 + "]}", "column a has a list with a number that is too large"),
    ],
)  # fmt: skip
def test_a_corrupt_jsonl_is_an_error_with_the_row(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(DatasetError, match=f"(?s)table.jsonl.*{message}"):
        load_text(tmp_path, content, "table.jsonl")


@pytest.mark.slow
def test_a_corrupt_parquet_is_an_error(tmp_path: Path) -> None:
    path = write_table(tmp_path / "table.parquet", [{"text": "a"}])
    content = path.read_bytes()
    for broken in (b"", b"PAR1", content[:-10], content.replace(b"PAR1", b"PAR2")):
        with pytest.raises(DatasetError, match=r"cannot read .*table\.parquet: "):
            load_text(tmp_path, broken, "table.parquet")
    pa.parquet.write_table(pa.table([["a"], ["b"]], names=["x", "x"]), path)
    with pytest.raises(DatasetError, match="different names"):
        load(path)


@pytest.mark.slow
def test_a_parquet_of_few_bytes_cannot_take_all_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(20_000, np.int32)), pa.array(["x" * 1_000_000]))
    pa.parquet.write_table(pa.table({"text": texts}), tmp_path / "table.parquet", compression="zstd")
    assert (tmp_path / "table.parquet").stat().st_size < 10_000
    monkeypatch.setattr(table_readers, "get_memory_limit", lambda: 2**28)
    with pytest.raises(DatasetError, match=r"cannot read|would take more than"):
        load(tmp_path / "table.parquet")


def test_a_jsonl_with_a_new_column_in_each_row_stays_in_its_budget(tmp_path: Path) -> None:
    lines = "".join(f'{{"c{i}": 1}}\n' for i in range(9_000))
    with pytest.raises(DatasetError, match="would take more than"):
        load_text(tmp_path, lines, "table.jsonl")


def test_a_line_without_an_end_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_readers, "MAX_LINE_CHARS", 100)
    with pytest.raises(DatasetError, match="line 2: the line has more than 100 characters"):
        load_text(tmp_path, "text\n" + "x" * 1000)


@pytest.mark.skipif(sys.platform == "win32", reason="no named pipes")
def test_a_named_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "table.csv")
    os.mkfifo(tmp_path / "pipe.npy")
    with pytest.raises(DatasetError, match="named pipe"):
        load(tmp_path / "table.csv")
    with pytest.raises(DatasetError, match=r"row 2, column v: .*named pipe"):
        load_text(tmp_path, "v\npipe.npy\n", "other.csv")


TEXTS = st.text(st.characters(blacklist_categories=["Cs", "Cc"]), max_size=20).map(str.strip)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.fixed_dictionaries({"en": TEXTS, "de": TEXTS}), min_size=1, max_size=20))
def test_csv_tsv_and_jsonl_hold_any_texts(tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, str]]) -> None:
    folder = tmp_path_factory.mktemp("texts")
    tables = [read_table(write_table(folder / f"table{suffix}", rows)) for suffix in (".csv", ".tsv", ".jsonl")]
    expected = {name: [row[name] or None for row in rows] for name in ("en", "de")}
    is_list = {name: all(not t or (t[0] == "[" and t[-1] == "]") for t in texts) for name, texts in expected.items()}
    for table in tables:
        for name, column in table.columns.items():
            assert column == expected[name] or is_list[name]


# kinds


def test_kinds_are_recognized(tmp_path: Path) -> None:
    make_images(tmp_path, ["a.PNG", "b.jpeg"])
    np.save(tmp_path / "vector.npy", np.ones(3, np.float16))
    np.save(tmp_path / "sequence.npy", np.ones((5, 3)))
    data = load_rows(
        tmp_path,
        [
            {"i": "a.PNG", "v": "vector.npy", "s": "sequence.npy", "t": "logo.png", "n": "3.5", "e": "", "flag": "yes"},
            {"i": "b.jpeg", "t": "the logo", "n": "-1e3"},
            {"v": "vector.npy", "t": "a name", "n": "7"},
        ],
        ".csv",
    )
    kinds = {name: column.kind for name, column in data["train"].modalities.items()}
    assert kinds == {"i": "image", "v": "vector", "s": "sequence", "t": "text", "flag": "text"}
    assert [line.partition(": ")[2] for line in data.warnings] == [
        "column n has numbers and is skipped (to use it: --kinds n=vector)",
        "column e is empty and is skipped",
    ]


def test_kinds_can_be_told_as_a_dict_or_as_texts(tmp_path: Path) -> None:
    make_images(tmp_path, ["plain.png"])
    (tmp_path / "plain.png").rename(tmp_path / "plain")
    path = tmp_path / "table.csv"
    path.write_text('photo,price,name,wave,label\nplain,3.5,7,"[1, 2, 3]",big\nplain,,8,"[4]",small\n')
    kinds = {"photo": "image", "price": "vector", "name": "text", "wave": "sequence", "label": "skip"}
    for told in (kinds, [f"{name}={kind}" for name, kind in kinds.items()]):
        data = load(path, kinds=told)
        train = data["train"]
        described = [column.describe() for column in train.modalities.values()]
        assert described == ["images of 3 x 8 x 12", "vectors of 1", "texts", "sequences of 1"]
        assert train.labels is None
        assert train["price"].get_mask().tolist() == [True, False]
        assert isinstance(train["wave"], Sequences)
        assert train["wave"].lengths.tolist() == [3, 1]
        assert data.warnings == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kinds": ["titel=text"]}, "no column 'titel': did you mean title"),
        ({"kinds": {"title": "txt"}}, "unknown kind 'txt' of column title: did you mean text"),
        ({"kinds": ["title"]}, "kinds must be COLUMN=KIND, such as photo=image, got 'title'"),
        ({"kinds": ["nothing=text"]}, "column nothing is of kind text, but all its cells are empty"),
        (
            {"kinds": ["title=vector"]},
            "row 2, column title: expected a .npy file, a number or a list of numbers, got 'a'",
        ),
        ({"kinds": ["title=image"]}, "row 2, column title: the file 'a' does not exist.*use --kinds title=text"),
        ({"label_column": "titel"}, "no column 'titel': did you mean title"),
        ({"split_column": "title"}, "row 2, column title: unknown split 'a'"),
        ({"id_column": "nothing"}, "row 2, column nothing: the cell is empty, but every row must have an id"),
        ({"label_column": "nothing"}, "row 2, column nothing: the cell is empty, but every row must have a label"),
        ({"id_column": "title", "kinds": ["title=text"]}, "column title has ids, splits or labels"),
    ],
)
def test_wrong_options_are_errors(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        load_text(tmp_path, "title,nothing\na,\nb,\n", **options)


@pytest.mark.parametrize(
    "option", [{"kinds": {"a": "text"}}, {"id_column": "a"}, {"split_column": "a"}, {"label_column": "a"}]
)
def test_options_of_tables_are_errors_for_other_data(tmp_path: Path, option: dict[str, Any]) -> None:
    make_images(tmp_path, ["a.png"])
    for source in ("digits", tmp_path):
        with pytest.raises(DatasetError, match=f"{next(iter(option))} is for the columns of a table .* is not a table"):
            load_dataset(source, **option)
    with pytest.raises(DatasetError, match="a class list selects subfolders"):
        load_text(tmp_path, "title\na\n", class_list=tmp_path / "classes.txt")


@pytest.mark.parametrize("name", ["12", "photo:2", "photo@64", "a=b", "text and audio", "a\x1bb"])
def test_names_that_views_cannot_express_are_errors_unless_skipped(tmp_path: Path, name: str) -> None:
    rows = [{name: "a", "title": "b"}]
    with pytest.raises(DatasetError, match=r"rename the column, or use --kinds .*=skip"):
        load_rows(tmp_path, rows)
    assert list(load_rows(tmp_path, rows, kinds={name: "skip"})["train"].modalities) == ["title"]


# files


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (
            "missing.png",
            "the file 'missing.png' does not exist: paths are relative to .*, and an empty cell means missing",
        ),
        ("n/a", "the file 'n/a' does not exist.*if the column has texts, use --kinds photo=text"),
        ("https://example.com/a.png", "is a URL: download the file.*--kinds photo=skip"),
        ("../outside.png", r"'\.\./outside.png' is outside of the folder of the table.*--follow-symlinks"),
        ("/etc/passwd.png", "is outside of the folder"),
        ("link.png", "'link.png' is outside of the folder"),
        ("x" * 5000 + ".png", "x\\.\\.\\.' is not a valid path"),
        ("a.png|missing.png", "'missing.png' does not exist"),
    ],
)
def test_an_invalid_path_is_an_error_with_row_and_column(tmp_path: Path, cell: str, message: str) -> None:
    folder = tmp_path / "data"
    make_images(folder, ["a.png", "../outside.png"])
    (folder / "link.png").symlink_to(tmp_path / "outside.png")
    with pytest.raises(DatasetError, match=f"table.csv, row 3, column photo: .*{message}"):
        load_text(folder, f"photo\na.png\n{cell}\na.png\n")


def test_paths_outside_of_the_folder_are_read_with_follow_symlinks(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    make_images(folder, ["a.png", "../outside.png"])
    (folder / "link.png").symlink_to(tmp_path / "outside.png")
    content = f"photo\na.png\n../outside.png\nlink.png\n{tmp_path / 'outside.png'}\n"
    assert len(load_text(folder, content, follow_symlinks=True)["train"]) == 4
    inside = f"photo\n{folder / 'a.png'}\n./a.png\n../data/a.png\n"
    assert len(load_text(folder, inside)["train"]) == 3


def test_a_folder_with_the_same_beginning_is_outside(tmp_path: Path) -> None:
    make_images(tmp_path, ["data/a.png", "data2/b.png"])
    with pytest.raises(DatasetError, match=r"row 2, column photo: .* is outside of the folder"):
        load_text(tmp_path / "data", "photo\n../data2/b.png\n")


def test_paths_in_json_with_odd_characters_are_errors(tmp_path: Path) -> None:
    for cell in ("a\0.png", "\ud800.png", "a\n.png"):
        with pytest.raises(DatasetError, match=r"row 1, column photo: .*(not a valid path|does not exist)"):
            load_rows(tmp_path, [{"photo": cell}])


def break_header(path: Path) -> None:
    path.write_bytes(b"not an image")


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize("damage", [break_header, truncate])
def test_a_corrupt_image_counts_as_missing_or_is_an_error(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    make_images(tmp_path, ["a.png", "b.png", "c.png"])
    damage(tmp_path / "b.png")
    path = tmp_path / "table.csv"
    path.write_text("photo,title\na.png,a\nb.png,b\nc.png|b.png,c\n")
    data = load(path)
    train = data["train"]
    assert isinstance(train["photo"], Images)
    assert train["photo"].counts is not None
    assert train["photo"].counts.tolist() == [1, 0, 1]
    assert isinstance(train["photo"].values, torch.Tensor)
    assert len(data.warnings) == 2
    assert "table.csv, row 3, column photo: " in data.warnings[0]
    assert data.warnings[0].endswith("; it counts as missing")
    assert "table.csv, row 4, column photo: " in data.warnings[1]
    assert list(data.warnings) == find_problems(data)
    with pytest.raises(CorruptImageError, match="row 3, column photo: "):
        load(path, raise_on_corrupt=True)
    with pytest.warns(DatasetWarning, match=r"row [34], column photo") as caught:
        load_dataset(path)
    assert [str(warning.message) for warning in caught] == list(data.warnings)
    path.write_text("photo,title\nb.png,b\n")
    with pytest.raises(DatasetError, match=r"no image of column photo can be read, first: .*row 2, column photo"):
        load(path)


def test_a_decompression_bomb_is_an_error_with_row_and_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_images(tmp_path, ["a.png"])
    monkeypatch.setattr("manyviews.data.image_files.MAX_PIXELS", 10)
    with pytest.raises(DatasetError, match=r"row 2, column photo: .*decompression bomb"):
        load_text(tmp_path, "photo\na.png\n")


def test_images_are_on_disk_if_their_sizes_differ_or_they_do_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_images(tmp_path, ["a.png", "b.png"])
    make_images(tmp_path, ["c.png"], size=(20, 9))
    rows = [{"one": "a.png", "two": "a.png"}, {"one": "b.png", "two": "c.png"}]

    def get_values(**options: Any) -> list[bool]:
        columns = load_rows(tmp_path, rows, **options)["train"].modalities.values()
        return [isinstance(column.values, LazyImages) for column in columns]  # type: ignore[attr-defined]

    assert get_values() == [False, True]
    column = load_rows(tmp_path, rows, raise_on_corrupt=True)["train"]["two"]
    assert column.describe() == "images on disk of 8 x 12 to 9 x 20"
    assert isinstance(column, Images)
    assert column.raise_on_corrupt
    monkeypatch.setattr(table_columns, "MAX_IN_MEMORY_BYTES", 3 * 8 * 12)
    assert get_values() == [True, True]


def test_images_that_are_not_decoded_are_only_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [*(f"{i}.png" for i in range(10)), "a.png"]
    make_images(tmp_path, names[:10], size=(20, 9))
    make_images(tmp_path, names[10:])
    decoded: list[object] = []
    original = table_columns.read_image
    monkeypatch.setattr(table_columns, "read_image", lambda path: decoded.append(path) or original(path))
    load_rows(tmp_path, [{"photo": name} for name in names])
    assert not decoded
    load_rows(tmp_path, [{"photo": name} for name in names[:10]])
    assert len(decoded) == 10


def test_transparency_is_over_white_as_in_folders(tmp_path: Path) -> None:
    Image.new("RGBA", (4, 4), (255, 0, 0, 0)).save(tmp_path / "a.png")
    column = load_text(tmp_path, "photo\na.png\n")["train"]["photo"]
    assert isinstance(column, Images)
    assert isinstance(column.values, torch.Tensor)
    assert (column.values == 255).all()


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones(4), "it has 4 features, but row 2 has 3"),
        (np.ones((2, 3)), r"expected a vector \(d,\), got an array \(2, 3\)"),
        (np.array(3.0), r"expected a vector \(d,\), got an array \(\)"),
        (np.ones(0), r"expected a vector \(d,\), got an array \(0,\)"),
        (np.array(["a"]), "'b.npy' must have numbers, got <U1"),
        (np.array([1, "a"], object), "cannot parse 'b.npy' as .npy: it has Python objects"),
        (b"\x93NUMPY nothing", "cannot parse 'b.npy' as .npy"),
        (b"", "cannot parse 'b.npy' as .npy"),
    ],
)
def test_an_invalid_array_is_an_error_with_row_and_column(tmp_path: Path, array: Any, message: str) -> None:
    np.save(tmp_path / "a.npy", np.ones(3))
    if isinstance(array, bytes):
        (tmp_path / "b.npy").write_bytes(array)
    else:
        np.save(tmp_path / "b.npy", array, allow_pickle=True)
    with pytest.raises(DatasetError, match=f"table.csv, row 4, column v: {message}"):
        load_text(tmp_path, "v,t\na.npy,x\n,x\nb.npy,x\n")


def test_a_vector_among_sequences_is_an_error_and_a_row_of_one_step_is_a_vector_if_told(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"s": [[1, 2]]}, {"s": [1, 2]}]
    with pytest.raises(DatasetError, match=r"row 2, column s: expected a sequence \(steps, d\), got an array \(2,\)"):
        load_rows(tmp_path, rows)
    assert load_rows(tmp_path, rows, kinds={"s": "vector"})["train"]["s"].describe() == "vectors of 2"


def test_a_header_that_claims_more_than_the_file_has_is_an_error(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones(3))
    content = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(content.replace(b"(3,)", b"(9999999999,)", 1)[: len(content)])
    with pytest.raises(DatasetError, match=r"row 2, column v: cannot parse 'a.npy' as .npy"):
        load_text(tmp_path, "v\na.npy\n")


def test_one_long_sequence_cannot_take_all_memory(tmp_path: Path) -> None:
    np.save(tmp_path / "short.npy", np.ones((1, 1)))
    np.save(tmp_path / "long.npy", np.ones((100_000, 1)))
    with pytest.raises(DatasetError, match=r"column s, of .* would take more than"):
        load_text(tmp_path, "s\nlong.npy\n" + "short.npy\n" * 2000)


def test_values_that_are_not_finite_are_missing_or_zero_with_a_warning(tmp_path: Path) -> None:
    data = load_text(tmp_path, '{"v": [NaN, 1]}\n{"v": [NaN, NaN], "t": "a"}\n{"v": [1e300, 2]}\n', "table.jsonl")
    vectors = data["train"]["v"]
    assert isinstance(vectors, Vectors)
    assert vectors.values.tolist() == [[0, 1], [0, 0], [0, 2]]
    assert vectors.get_mask().tolist() == [True, False, True]
    assert "column v: 2 values that are not finite are set to 0" in data.warnings[0]


# gaps, ids, splits, labels


def test_rows_without_any_value_are_skipped_with_a_warning(tmp_path: Path) -> None:
    data = load_text(tmp_path, "id,split,a,b\n1,train,x,\n2,train,,\n3,train,,y\n4,test,,\n")
    assert data["train"].ids == ("1", "3")
    assert list(data.splits) == ["train"]
    assert data["train"].get_mask(["a", "b"]).tolist() == [[True, False], [False, True]]
    assert data.warnings[0].endswith("rows without any value in a, b are skipped: 3, 5")


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3).filter(any), min_size=1, max_size=30))
def test_masks_are_where_cells_are_not_empty(
    tmp_path_factory: pytest.TempPathFactory, exists: list[list[bool]]
) -> None:
    folder = tmp_path_factory.mktemp("gaps")
    make_images(folder, ["a.png"])
    values = {"photo": "a.png", "title": "a cat", "vector": "[1, 2]"}
    rows = [{name: value if e else "" for (name, value), e in zip(values.items(), row, strict=True)} for row in exists]
    data = load_rows(folder, rows, ".csv")
    names = [name for i, name in enumerate(values) if any(row[i] for row in exists)]
    order = [(int(i), split.get_mask(names)[j]) for split in data.splits.values() for j, i in enumerate(split.ids)]
    assert sorted(i for i, _ in order) == list(range(len(rows)))
    for i, mask in order:
        assert mask.tolist() == [exists[i][list(values).index(name)] for name in names]


def test_two_rows_of_one_id_are_an_error_that_names_both(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"table.csv, column id: rows 2 and 4 have the same id 'x'"):
        load_text(tmp_path, "id,t\nx,a\ny,b\nx,c\n")
    with pytest.raises(DatasetError, match=r"table.jsonl, column key: rows 1 and 2 have the same id '7'"):
        load_rows(tmp_path, [{"key": 7, "t": "a"}, {"key": "7", "t": "b"}], id_column="key")
    with pytest.raises(DatasetError, match=r"row 1, column id: expected an id, got a list"):
        load_rows(tmp_path, [{"id": [7], "t": "a"}])


def test_ids_are_row_indices_without_a_column(tmp_path: Path) -> None:
    data = load_text(tmp_path, "split,t\ntrain,a\ntest,b\ntrain,c\n")
    assert (data["train"].ids, data["test"].ids) == (("0", "2"), ("1",))


def test_special_columns_are_found_in_any_case_and_can_be_chosen(tmp_path: Path) -> None:
    content = "ID,Split,Class,group,t\na,train,x,1,p\nb,test,y,2,q\n"
    data = load_text(tmp_path, content)
    assert list(data["train"].modalities) == ["t"]  # group has numbers
    assert data.class_names == ("x", "y")
    assert load_text(tmp_path, content, label_column="group").class_names == ("1", "2")
    chosen = load_text(tmp_path, content, id_column="t", kinds={"Split": "text", "Class": "skip"})
    assert list(chosen["train"].modalities) == ["ID", "Split"]
    assert chosen["train"].ids == ("p", "q")
    assert chosen.class_names == ("1", "2")


def test_an_unknown_or_empty_split_is_an_error_with_row_and_column(tmp_path: Path) -> None:
    with pytest.raises(
        DatasetError, match=r"table.csv, row 3, column split: unknown split 'tran': the splits are train"
    ):
        load_text(tmp_path, "split,t\ntrain,a\ntran,b\n")
    with pytest.raises(DatasetError, match="row 3, column split: the cell is empty"):
        load_text(tmp_path, "split,t\ntrain,a\n,b\n")
    with pytest.raises(DatasetError, match="no training instances: the splits of its rows are valid, test"):
        load_text(tmp_path, "split,t\ntest,a\ndev,b\n")


def test_without_a_split_column_a_random_fifth_of_each_class_is_for_testing(tmp_path: Path) -> None:
    rows = [{"t": f"text {i}", "label": "ab"[i % 2]} for i in range(100)]
    data = load_rows(tmp_path, rows)
    assert {split: len(part) for split, part in data.splits.items()} == {"train": 80, "test": 20}
    assert data["test"].labels is not None
    assert data["test"].labels.bincount().tolist() == [10, 10]
    assert "no column of splits; a random fifth of each class" in data.split_rule
    assert load_rows(tmp_path, rows)["test"].ids == data["test"].ids
    steps = np.diff(sorted(map(int, data["test"].ids)))
    assert len(set(steps.tolist())) > 2  # not every fifth row
    unlabeled = load_rows(tmp_path, [{"t": row["t"]} for row in rows])
    assert len(unlabeled["test"]) == 20
    assert "a random fifth of the instances" in unlabeled.split_rule


@pytest.mark.parametrize(
    ("cells", "labels", "names"),
    [
        (["10", "9", "-1"], [2, 1, 0], ("-1", "9", "10")),
        ([10, 9, 9], [1, 0, 0], ("9", "10")),
        (["b", "a", "10"], [2, 1, 0], ("10", "a", "b")),
        (["01", "1", "01"], None, ()),
        ([True, False, True], [1, 0, 1], ("false", "true")),
        (["0.5", "1", "2e1"], [0.5, 1.0, 20.0], ()),
        ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], ()),
        (["nan", "a", "inf"], [2, 0, 1], ("a", "inf", "nan")),
    ],
)
def test_integers_and_texts_are_classes_and_other_numbers_are_targets(
    tmp_path: Path, cells: list[Any], labels: list[float] | None, names: tuple[str, ...]
) -> None:
    data = load_rows(tmp_path, [{"t": "a", "target": cell} for cell in cells])
    got = data["train"].labels
    assert got is not None
    assert got.is_floating_point() == (not names)
    if labels is not None:
        assert got.tolist() == labels
    assert data.class_names == names


def test_invalid_labels_are_errors_with_row_and_column(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"row 3, column label: the cell is empty, .*--kinds label=skip"):
        load_text(tmp_path, "t,label\na,x\nb,\n")
    with pytest.raises(DatasetError, match="row 3, column label: the label must be a finite number, got 'inf'"):
        load_text(tmp_path, "t,label\na,0.5\nb,inf\n")
    with pytest.raises(DatasetError, match="row 1, column label: expected a label, got a list, a file or an object"):
        load_rows(tmp_path, [{"t": "a", "label": {"x": 1}}])
    data = load_text(tmp_path, "t,label\na,\nb,\n")
    assert data["train"].labels is None
    assert "column label is empty: there are no labels" in data.warnings[0]


def test_problems_are_found_in_texts_and_images_with_gaps(tmp_path: Path) -> None:
    make_images(tmp_path, ["a.png"])
    make_images(tmp_path, ["tiny.png"], size=(20, 4))
    content = "split,photo,other,title\ntrain,a.png|tiny.png,,x\ntrain,,a.png,\ntest,,,y\n"
    data = load_text(tmp_path, content)
    assert find_problems(data) == [
        "photo is missing in all instances of test",
        "other is missing in all instances of test",
        f"photo: 1 of 2 images in train have a side shorter than 8 pixels, such as {tmp_path / 'tiny.png'} (4 x 20)",
    ]


def test_tables_are_recognized_by_their_extension(tmp_path: Path) -> None:
    assert is_table(Path("a.CSV"))
    assert not is_table(Path("a.txt"))
    assert not is_table(None)
    make_images(tmp_path, ["folder.csv/a.png"])
    assert len(load(tmp_path / "folder.csv")["train"]) == 1
    (tmp_path / "a.xlsx").write_bytes(b"")
    with pytest.raises(DatasetError, match=r"expected a folder, a table \(\.csv, \.tsv, \.jsonl, \.parquet\)"):
        load(tmp_path / "a.xlsx")


# fuzz


def mutate(content: bytes, rng: random.Random) -> bytes:
    """Flip, remove, repeat or insert bytes."""
    out = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8))):
        first, last = sorted(rng.randrange(len(out) + 1) for _ in range(2))
        last = min(last, first + rng.choice((1, 4, 40)))
        odd = rng.choice(
            (b"\0", b'"', b"\n", b",", b"[", b"{", b"|", b"\xff", b"../", b"1e999", b"NaN", rng.randbytes(4))
        )
        out[first:last] = rng.choice((b"", odd, odd * 2, bytes(out[first:last]) * 2))
        out = out or bytearray(b"x")
    return bytes(out)


@pytest.mark.slow
@pytest.mark.parametrize(("suffix", "count"), [(".csv", 400), (".tsv", 400), (".jsonl", 400), (".parquet", 25)])
def test_corrupted_tables_are_read_or_refused(tmp_path: Path, suffix: str, count: int) -> None:
    make_images(tmp_path, ["a.png", "b.png"])
    np.save(tmp_path / "a.npy", np.ones((2, 3)))
    row: dict[str, Any] = {
        "id": "1",
        "split": "train",
        "photo": "a.png|b.png",
        "s": "a.npy",
        "t": "a cat",
        "label": "2",
    }
    if suffix in (".jsonl", ".parquet"):
        row |= {"v": [1.5, 2.5], "list": ["a.png"], "n": 3, "deep": [[1.0, 2.0], [3.0, 4.0]]}
    rows = [row | {"id": str(i), "label": str(i % 3), "split": ("train", "test")[i % 2]} for i in range(6)]
    content = write_table(tmp_path / f"table{suffix}", rows).read_bytes()
    rng = random.Random(0)
    results = [is_read(tmp_path, mutate(content, rng), f"table{suffix}") for _ in range(count)]
    assert 0 < sum(results) < count


def is_read(folder: Path, content: bytes, name: str) -> bool:
    """Return whether a table is read, or refused by the package's own error."""
    with contextlib.suppress(DatasetError):
        find_problems(load_text(folder, content, name))
        return True
    return False


# the command


def test_inspect_prints_kinds_and_takes_the_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from manyviews.cli.inspect_command import inspect_command

    make_images(tmp_path, ["a.png"])
    (tmp_path / "table.csv").write_text("key,photo,title,kind\nx,a.png,7,good\ny,,8,bad\n")
    inspect_command(str(tmp_path / "table.csv"), kinds=("title=text",), id_column="key", label_column="kind")
    words = capsys.readouterr().out.split()
    assert " ".join(words[words.index("train:") :]) == (
        "train: 2 photo image images of 3 x 8 x 12 1 instances title text texts 1 to 1, median 1 "
        "labels 2 classes of 1 to 1 no problems found"
    )


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs limits of the address space")
def test_a_parquet_table_is_read_under_a_limit_of_memory(tmp_path: Path) -> None:
    path = write_table(tmp_path / "a.parquet", [{"t": word} for word in "abcdef"])
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (7 * 2**29, 7 * 2**29));"
        f"from manyviews.data import load_dataset; print(len(load_dataset({str(path)!r})['train']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "5\n", done.stderr
