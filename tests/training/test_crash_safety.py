"""Checkpoints, metrics and run directories stay intact after crashes and on a full disk."""

import errno
import fcntl
import os
import random
import re
import shutil
from pathlib import Path
from unittest import mock

import pytest
import torch

from manyviews.runs import Run
from manyviews.training import Config, ConfigError, check_output, list_checkpoints, read_metrics
from manyviews.training.checkpoints import CheckpointError, keep_newest, load_checkpoint, save_checkpoint
from manyviews.training.loggers import COLUMNS, MetricsFile
from manyviews.utils import atomic_path, write_atomic


def state(step: int) -> dict:
    return {"step": step, "weights": {"a": torch.full((100,), float(step))}, "rate": 0.5}


def test_newest_checkpoint_is_loaded_and_the_last_ones_kept(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path) is None
    for step in (5, 20, 100):
        save_checkpoint(tmp_path, step, state(step), keep=2)
    assert [path.name.split("-")[1] for path in list_checkpoints(tmp_path)] == ["00000100", "00000020"]
    assert load_checkpoint(tmp_path)["step"] == 100
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_corrupt_checkpoints_of_later_steps_do_not_displace_intact_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_checkpoint(tmp_path, 50, state(50), keep=2)
    save_checkpoint(tmp_path, 100, state(100), keep=2).write_bytes(b"damaged")
    (tmp_path / ".step-00000070-00000000.pt.123").write_bytes(b"cut off")
    assert load_checkpoint(tmp_path)["step"] == 50
    assert "trying the previous one" in caplog.text
    save_checkpoint(tmp_path, 60, state(60), keep=1)
    assert [path.name.split("-")[1] for path in tmp_path.iterdir()] == ["00000060"]


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "gone"])
def test_corrupt_checkpoint_falls_back_to_the_previous_one(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_checkpoint(tmp_path, 1, state(1), keep=5)
    newest = save_checkpoint(tmp_path, 2, state(2), keep=5)
    content = bytearray(newest.read_bytes())
    if damage == "flipped":
        content[random.Random(0).randrange(len(content))] ^= 1
    newest.write_bytes({"truncated": content[:-10], "flipped": content, "empty": b"", "gone": b"x" * 10}[damage])
    assert load_checkpoint(tmp_path)["step"] == 1
    assert re.search("cannot load .* its content does not match its digest.* trying the previous one", caplog.text)
    newest.rename(tmp_path / list_checkpoints(tmp_path)[1].name)  # now both are corrupt
    caplog.clear()
    with pytest.raises(CheckpointError, match=r"none of the 1 checkpoints .* --overwrite"):
        load_checkpoint(tmp_path)
    assert "cannot load the checkpoint" in caplog.text


def test_keep_newest_keeps_only_the_newest_intact_checkpoint(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, step, state(step), keep=5)
    list_checkpoints(tmp_path)[0].write_bytes(b"damaged")
    keep_newest(tmp_path)
    assert load_checkpoint(tmp_path)["step"] == 2
    assert len(list(tmp_path.iterdir())) == 1
    list_checkpoints(tmp_path)[0].write_bytes(b"damaged")
    keep_newest(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1  # none is intact: nothing is deleted


def test_code_in_a_checkpoint_is_not_executed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Evil:
        def __reduce__(self) -> tuple:
            return os.mkdir, (str(tmp_path / "executed"),)

    save_checkpoint(tmp_path, 1, state(1), keep=5)
    save_checkpoint(tmp_path, 2, {"step": 2, "x": Evil()}, keep=5)
    assert load_checkpoint(tmp_path)["step"] == 1
    assert "cannot load the checkpoint" in caplog.text
    assert not (tmp_path / "executed").exists()


def test_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    write_atomic(file, "old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=f"No space left.*{file}"):
        write_atomic(file, "new")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_undecodable_name_can_be_written(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    write_atomic(tmp_path / "file", name)
    assert (tmp_path / "file").read_text() == r"caf\xe9"


def test_temporary_files_of_killed_processes_are_removed_and_those_of_live_ones_kept(tmp_path: Path) -> None:
    dead, live, other, near = (tmp_path / name for name in (".file.1", ".file.2", ".file2.1", ".file.backup"))
    for path in (dead, live, other, near):
        path.write_text("cut off")
    os.mkfifo(pipe := tmp_path / ".file.77")  # opening it would block
    with live.open() as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        write_atomic(tmp_path / "file", "new")
        assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "file", live, other, near, pipe])
    write_atomic(tmp_path / "file", "new")
    assert not live.exists()
    with atomic_path(tmp_path / "file") as first:
        first.write_text("mine")
        assert not can_lock(first)
    assert (tmp_path / "file").read_text() == "mine"


def can_lock(path: Path) -> bool:
    """Return whether another process could lock the file, and so delete it as a leftover."""
    with path.open() as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def row(step: int) -> dict:
    return {"step": step, "epoch": 0, "loss": 1 / step, "learning_rate": 0.1, "temperature": 0.5}


def test_metrics_continue_after_a_step_and_drop_later_rows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "metrics.csv"
    logger = mock.Mock()
    metrics = MetricsFile(file, 0, [logger])
    metrics.rows += [row(1), row(2), {**row(3), "knn": 0.25, "rank": 7}]
    metrics.flush()
    assert [call.args[0]["step"] for call in logger.write.call_args_list] == [1, 2, 3]
    metrics.close()
    logger.close.assert_called_once()
    content = file.read_bytes()
    assert content.decode().splitlines()[0] == ",".join(COLUMNS)
    assert read_metrics(file) == [row(1), row(2), {**row(3), "knn": 0.25, "rank": 7}]

    file.write_bytes(content + b"4,0,0.2")  # killed while writing
    metrics = MetricsFile(file, 3, [])
    assert file.read_bytes() == content
    MetricsFile(file, 5, [])
    assert "has 3 rows for 5 steps" in caplog.text
    metrics = MetricsFile(file, 1, [])
    metrics.rows += [row(2), {**row(3), "knn": 0.25, "rank": 7}]
    metrics.flush()
    assert file.read_bytes() == content


def test_metrics_without_the_last_column_continue(tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    assert COLUMNS[-1] == "grad_norm"
    file.write_text(",".join(COLUMNS[:-1]) + "\n1,0,1.0,0.1,0.5,0.25,1.1,-2.0,7,3.5,10\n")
    metrics = MetricsFile(file, 1, [])
    metrics.rows += [{**row(2), "knn": 0.5, "grad_norm": 1.5}]
    metrics.flush()
    old, new = read_metrics(file)
    assert (old["knn"], old["knn_k"], "grad_norm" in old) == (0.25, 10, False)
    assert new == {**row(2), "knn": 0.5, "grad_norm": 1.5}


def test_rows_are_kept_while_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "metrics.csv"
    metrics = MetricsFile(file, 0, [])
    metrics.rows += [row(1)]

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            metrics.flush()
    metrics.rows += [row(2)]
    metrics.flush()
    assert read_metrics(file) == [row(1), row(2)]


@pytest.mark.parametrize("damage", ["deleted", "truncated"])
def test_lost_metrics_are_written_again(damage: str, tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    metrics = MetricsFile(file, 0, [])
    metrics.rows += [row(1), row(2)]
    metrics.flush()
    file.unlink() if damage == "deleted" else file.write_bytes(file.read_bytes()[:9])
    metrics.rows += [row(3)]
    metrics.flush()
    metrics.rows += [row(4)]
    metrics.flush()
    assert read_metrics(file) == [row(step) for step in (1, 2, 3, 4)]


def test_failing_logger_loses_only_its_rows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logger = mock.Mock()
    logger.write.side_effect = OSError("No space left on device")
    metrics = MetricsFile(tmp_path / "metrics.csv", 0, [logger])
    for step in (1, 2):
        metrics.rows += [row(step)]
        metrics.flush()
        assert caplog.text.count("lost rows: No space left") == step
    assert read_metrics(tmp_path / "metrics.csv") == [row(1), row(2)]


def test_overwrite_replaces_only_a_run(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run"
    Run.create(path, Config(), overwrite=False)
    (path / "metrics.csv").write_text("old")
    with pytest.raises(ConfigError, match=r"exists: use --resume .*, --overwrite to replace it"):
        Run.create(path, Config(), overwrite=False)
    assert (path / "metrics.csv").exists()
    Run.create(path, Config(views=3), overwrite=True)
    assert not (path / "metrics.csv").exists()
    assert Run.open(path).config.views == ("3",)
    assert [p.name for p in path.parent.iterdir()] == ["run"]

    with pytest.raises(ConfigError, match=r"^\. cannot be the directory of a run: choose another --output"):
        check_output(Path(), overwrite=True)
    holiday = tmp_path / "holiday"
    holiday.mkdir()
    (holiday / "photo.jpg").write_text("dear")
    (holiday / "config.yaml").write_text("views: 4")  # not a run
    with pytest.raises(ConfigError, match="is not a run directory, so --overwrite does not replace it"):
        check_output(holiday, overwrite=True)
    with pytest.raises(ConfigError, match=r"cannot write to .*photo.jpg"):
        check_output(holiday / "photo.jpg" / "run", overwrite=False)
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(ConfigError, match="is not a run directory"):
        check_output(link, overwrite=True)


def test_interrupted_replacement_restores_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run"
    for killed_at, views in ((1, 2), (2, 2), (3, 3)):
        for leftover in tmp_path.iterdir():
            shutil.rmtree(leftover)
        Run.create(path, Config(views=2), overwrite=False)
        rename, calls = Path.rename, []

        def killed(self: Path, target: Path, rename=rename, calls=calls, killed_at=killed_at) -> Path:
            calls.append(target)
            if len(calls) == killed_at:
                raise KeyboardInterrupt
            return rename(self, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", killed)
            with pytest.raises(KeyboardInterrupt):
                Run.create(path, Config(views=3), overwrite=True)
        assert len(list(tmp_path.iterdir())) == 2
        assert Run.open(path).config.views == (str(views),)
        with pytest.raises(ConfigError, match="exists: use --resume"):
            check_output(path, overwrite=False)
        assert list(tmp_path.iterdir()) == [path]
        assert Run.open(path).config.views == (str(views),)


def test_lock_removes_temporary_directories_of_killed_processes(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run[1]", Config(), overwrite=False)
    unrelated = [".run1.manyviews-new-0123abcd", ".run[1].20240101"]
    for name in (".run[1].manyviews-new-0123abcd", ".run[1].manyviews-old-0123abcd", *unrelated):
        (tmp_path / name).mkdir()
    with run.lock():
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == [*unrelated, "run[1]"]
