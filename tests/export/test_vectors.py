"""Ids and vectors survive each kind of file; a file is there whole or not at all."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from pyarrow import parquet

from manyviews.export.vectors import check_vector_file, ids_beside, vector_file

IDS = ["a.jpg", "sub, folder/ü.png", 'quote".png', "new\nline.gif", "b" * 300]
VECTORS = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))


def write(path: Path) -> None:
    with vector_file(path, dim=3) as add:
        add(IDS[:2], VECTORS[:2])
        add(IDS[2:], VECTORS[2:])


def read(path: Path) -> tuple[list[str], np.ndarray]:
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as file:
            return file["ids"].tolist(), file["vectors"]
    if path.suffix == ".npy":
        with ids_beside(path).open(newline="") as file:
            return [row["id"] for row in csv.DictReader(file)], np.load(path, allow_pickle=False)
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            header, *rows = csv.reader(file)
        assert header == ["id", "0", "1", "2"]
        return [row[0] for row in rows], np.array([row[1:] for row in rows], dtype=np.float32)
    table = parquet.read_table(path)
    return table["id"].to_pylist(), np.array(table["vector"].to_pylist(), dtype=np.float32)


@pytest.mark.parametrize("ending", [".npz", ".npy", ".csv", ".parquet"])
def test_what_is_written_is_read(tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyviews.export.vectors.AT_ONCE", 2)
    path = tmp_path / f"out{ending}"
    write(path)
    ids, vectors = read(path)
    assert ids == IDS
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors, VECTORS.numpy())
    assert {p.name for p in tmp_path.iterdir()} == {path.name} | ({"out.ids.csv"} if ending == ".npy" else set())


@pytest.mark.parametrize("ending", [".npz", ".npy", ".csv", ".parquet"])
def test_what_breaks_off_leaves_the_old_file(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"out{ending}"
    write(path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def broken() -> None:
        with vector_file(path, dim=3) as add:
            add(IDS[:2], VECTORS[:2])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken()
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_name_that_is_no_text_is_written(tmp_path: Path) -> None:
    for ending in (".npz", ".csv", ".parquet"):
        with vector_file(tmp_path / f"out{ending}", dim=3) as add:
            add([b"a\xff.jpg".decode(errors="surrogateescape")], VECTORS[:1])
        assert read(tmp_path / f"out{ending}")[0] == ["a\\xff.jpg"]


def test_vectors_that_do_not_fit_their_ids_are_refused(tmp_path: Path) -> None:
    for ending in (".npz", ".npy", ".csv", ".parquet"):
        path = tmp_path / f"out{ending}"

        def write_odd(path: Path, rows: int, dim: int) -> None:
            with vector_file(path, dim=3) as add:
                add([], VECTORS[:0])
                add(IDS[:2], torch.ones(rows, dim))

        for rows, dim in ((3, 3), (2, 5)):
            with pytest.raises(ValueError, match=r"vectors must be \(2, 3\), one for each id"):
                write_odd(path, rows, dim)
        assert not list(tmp_path.iterdir())


def test_no_input_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "data.npz").write_bytes(b"precious")
    (tmp_path / "data.ids.csv").write_text("precious")
    (tmp_path / "link.npz").symlink_to(tmp_path / "data.npz")
    for output, given in (("data.npz", "data.npz"), ("link.npz", "data.npz"), ("data.npy", "data.ids.csv")):
        with pytest.raises(ValueError, match="is what is read: name another output"):
            check_vector_file(tmp_path / output, inputs=["photos", str(tmp_path / given)])
    check_vector_file(tmp_path / "other.npz", inputs=[tmp_path / "data.npz"])


def test_where_no_file_can_be_written_is_named_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder.npz").mkdir()
    for path, message in (
        (tmp_path / "out.txt", r"must end in \.npy, \.npz, \.csv, \.parquet, and"),
        (tmp_path / "folder.npz", "it is a folder"),
        (tmp_path / "nowhere" / "out.npz", "is no folder"),
    ):
        with pytest.raises(ValueError, match=message):
            check_vector_file(path)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ValueError, match="needs pyarrow"):
        check_vector_file(tmp_path / "out.parquet")
