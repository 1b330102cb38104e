"""Ids and vectors round-trip through each file format, and writes are atomic."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from pyarrow import parquet

from manyviews.export import check_embedding_path, get_ids_path, open_embedding_writer

IDS = ["a.jpg", "sub, folder/ü.png", 'quote".png', "new\nline.gif", "b" * 300]
VECTORS = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))


def write(path: Path) -> None:
    with open_embedding_writer(path, dim=3) as write_batch:
        write_batch(IDS[:2], VECTORS[:2])
        write_batch(IDS[2:], VECTORS[2:])


def read(path: Path) -> tuple[list[str], np.ndarray]:
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as file:
            return file["ids"].tolist(), file["vectors"]
    if path.suffix == ".npy":
        with get_ids_path(path).open(newline="") as file:
            return [row["id"] for row in csv.DictReader(file)], np.load(path, allow_pickle=False)
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            header, *lines = csv.reader(file)
        assert header == ["id", "0", "1", "2"]
        return [line[0] for line in lines], np.array([line[1:] for line in lines], dtype=np.float32)
    table = parquet.read_table(path)
    return table["id"].to_pylist(), np.array(table["vector"].to_pylist(), dtype=np.float32)


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".csv", ".parquet"])
def test_vectors_round_trip(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"out{suffix}"
    write(path)
    ids, vectors = read(path)
    assert ids == IDS
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors, VECTORS.numpy())
    assert {p.name for p in tmp_path.iterdir()} == {path.name} | ({"out.ids.csv"} if suffix == ".npy" else set())


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".csv", ".parquet"])
def test_interrupted_write_keeps_the_old_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"out{suffix}"
    write(path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def write_and_interrupt() -> None:
        with open_embedding_writer(path, dim=3) as write_batch:
            write_batch(IDS[:2], VECTORS[:2])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_and_interrupt()
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_non_utf8_name_is_escaped(tmp_path: Path) -> None:
    for suffix in (".npz", ".csv", ".parquet"):
        with open_embedding_writer(tmp_path / f"out{suffix}", dim=3) as write_batch:
            write_batch([b"a\xff.jpg".decode(errors="surrogateescape")], VECTORS[:1])
        assert read(tmp_path / f"out{suffix}")[0] == ["a\\xff.jpg"]


def test_vectors_of_wrong_shape_are_refused(tmp_path: Path) -> None:
    for suffix in (".npz", ".npy", ".csv", ".parquet"):
        path = tmp_path / f"out{suffix}"

        def write_shape(path: Path, count: int, dim: int) -> None:
            with open_embedding_writer(path, dim=3) as write_batch:
                write_batch([], VECTORS[:0])
                write_batch(IDS[:2], torch.ones(count, dim))

        for count, dim in ((3, 3), (2, 5)):
            with pytest.raises(ValueError, match=r"vectors must have shape \(2, 3\), one per id"):
                write_shape(path, count, dim)
        assert not list(tmp_path.iterdir())


def test_inputs_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "data.npz").write_bytes(b"precious")
    (tmp_path / "data.ids.csv").write_text("precious")
    (tmp_path / "link.npz").symlink_to(tmp_path / "data.npz")
    for output, source in (("data.npz", "data.npz"), ("link.npz", "data.npz"), ("data.npy", "data.ids.csv")):
        with pytest.raises(ValueError, match="is an input: choose another output"):
            check_embedding_path(tmp_path / output, inputs=["photos", str(tmp_path / source)])
    check_embedding_path(tmp_path / "other.npz", inputs=[tmp_path / "data.npz"])


def test_unwritable_paths_are_refused_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder.npz").mkdir()
    for path, message in (
        (tmp_path / "out.txt", r"must end in \.npy, \.npz, \.csv, \.parquet, got"),
        (tmp_path / "folder.npz", "it is a folder"),
        (tmp_path / "nowhere" / "out.npz", "is not a writable folder"),
    ):
        with pytest.raises(ValueError, match=message):
            check_embedding_path(path)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ValueError, match="needs pyarrow"):
        check_embedding_path(tmp_path / "out.parquet")
