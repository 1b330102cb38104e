"""Checkpoints, metrics and run directories: whole or not there, whatever happens."""

import errno
import fcntl
import os
import random
import shutil
from pathlib import Path
from unittest import mock

import pytest
import torch

from manyviews.training.checkpoints import CheckpointError, checkpoints, keep_newest, load_checkpoint, save_checkpoint
from manyviews.training.config import Config, ConfigError
from manyviews.training.files import replaced, write_atomically
from manyviews.training.journal import Journal
from manyviews.training.metrics import COLUMNS, Metrics, read_metrics
from manyviews.training.run import Run, check_output


def state(step: int) -> dict:
    return {"step": step, "weights": {"a": torch.full((100,), float(step))}, "rate": 0.5}


def test_the_newest_checkpoint_is_loaded_and_the_last_ones_kept(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path) is None
    for step in (5, 20, 100):
        save_checkpoint(tmp_path, step, state(step), keep=2)
    assert [path.name.split("-")[1] for path in checkpoints(tmp_path)] == ["00000100", "00000020"]
    assert load_checkpoint(tmp_path)["step"] == 100
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_damaged_checkpoints_of_later_steps_do_not_push_out_good_ones(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 50, state(50), keep=2)
    save_checkpoint(tmp_path, 100, state(100), keep=2).write_bytes(b"damaged")
    (tmp_path / ".step-00000070-00000000.pt.123").write_bytes(b"cut off")
    with pytest.warns(UserWarning, match="trying the one before"):
        assert load_checkpoint(tmp_path)["step"] == 50
    save_checkpoint(tmp_path, 60, state(60), keep=1)
    assert [path.name.split("-")[1] for path in tmp_path.iterdir()] == ["00000060"]


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "gone"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(damage: str, tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, state(1), keep=5)
    newest = save_checkpoint(tmp_path, 2, state(2), keep=5)
    content = bytearray(newest.read_bytes())
    if damage == "flipped":
        content[random.Random(0).randrange(len(content))] ^= 1
    newest.write_bytes({"truncated": content[:-10], "flipped": content, "empty": b"", "gone": b"x" * 10}[damage])
    with pytest.warns(UserWarning, match="cannot be used: its content is not what was written.* trying the one before"):
        assert load_checkpoint(tmp_path)["step"] == 1
    newest.rename(tmp_path / checkpoints(tmp_path)[1].name)  # now the other is damaged too
    with (
        pytest.warns(UserWarning, match="cannot be used"),
        pytest.raises(CheckpointError, match=r"none of 1 checkpoints .* --overwrite"),
    ):
        load_checkpoint(tmp_path)


def test_only_the_newest_whole_checkpoint_is_kept_when_room_is_short(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, step, state(step), keep=5)
    checkpoints(tmp_path)[0].write_bytes(b"damaged")
    keep_newest(tmp_path)
    assert load_checkpoint(tmp_path)["step"] == 2
    assert len(list(tmp_path.iterdir())) == 1
    checkpoints(tmp_path)[0].write_bytes(b"damaged")
    keep_newest(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1  # none is whole: nothing is thrown away


def test_a_checkpoint_with_code_in_it_is_not_executed(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple:
            return os.mkdir, (str(tmp_path / "executed"),)

    save_checkpoint(tmp_path, 1, state(1), keep=5)
    save_checkpoint(tmp_path, 2, {"step": 2, "x": Evil()}, keep=5)
    with pytest.warns(UserWarning, match="cannot be used"):
        assert load_checkpoint(tmp_path)["step"] == 1
    assert not (tmp_path / "executed").exists()


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    write_atomically(file, "old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=f"No space left.*{file}"):
        write_atomically(file, "new")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_name_that_is_no_text_can_be_written(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    write_atomically(tmp_path / "file", name)
    journal = Journal(tmp_path / "log.txt", silent=False, quiet=True)
    journal.say(name)
    assert (tmp_path / "file").read_text() == r"caf\xe9"
    assert r"caf\xe9" in (tmp_path / "log.txt").read_text()


def test_leftovers_of_killed_processes_are_removed_and_those_of_live_ones_stay(tmp_path: Path) -> None:
    dead, live, other, near = (tmp_path / name for name in (".file.1", ".file.2", ".file2.1", ".file.backup"))
    for path in (dead, live, other, near):
        path.write_text("cut off")
    os.mkfifo(pipe := tmp_path / ".file.77")  # whoever opens it waits
    with live.open() as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        write_atomically(tmp_path / "file", "new")
        assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "file", live, other, near, pipe])
    write_atomically(tmp_path / "file", "new")
    assert not live.exists()
    with replaced(tmp_path / "file") as first:
        first.write_text("mine")
        assert not claims(first)
    assert (tmp_path / "file").read_text() == "mine"


def claims(path: Path) -> bool:
    """Whether another process could take the file for a leftover."""
    with path.open() as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def row(step: int) -> dict:
    return {"step": step, "epoch": 0, "loss": 1 / step, "learning_rate": 0.1, "temperature": 0.5}


def test_metrics_go_on_after_a_step_and_drop_what_came_later(tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    sink = mock.Mock()
    metrics = Metrics(file, 0, [sink])
    metrics.rows += [row(1), row(2), {**row(3), "knn": 0.25, "rank": 7}]
    metrics.flush()
    assert [call.args[0]["step"] for call in sink.write.call_args_list] == [1, 2, 3]
    metrics.close()
    sink.close.assert_called_once()
    whole = file.read_bytes()
    assert whole.decode().splitlines()[0] == ",".join(COLUMNS)
    assert read_metrics(file) == [row(1), row(2), {**row(3), "knn": 0.25, "rank": 7}]

    file.write_bytes(whole + b"4,0,0.2")  # killed while writing
    metrics = Metrics(file, 3, [])
    assert file.read_bytes() == whole
    with pytest.warns(UserWarning, match="has 3 rows of the 5 steps"):
        Metrics(file, 5, [])
    metrics = Metrics(file, 1, [])
    metrics.rows += [row(2), {**row(3), "knn": 0.25, "rank": 7}]
    metrics.flush()
    assert file.read_bytes() == whole


def test_metrics_of_a_version_without_the_last_column_go_on(tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    assert COLUMNS[-1] == "knn_k"
    file.write_text(",".join(COLUMNS[:-1]) + "\n1,0,1.0,0.1,0.5,0.25,1.1,-2.0,7,3.5\n")
    metrics = Metrics(file, 1, [])
    metrics.rows += [{**row(2), "knn": 0.5, "knn_k": 10}]
    metrics.flush()
    old, new = read_metrics(file)
    assert (old["knn"], old["rankme"], "knn_k" in old) == (0.25, 3.5, False)
    assert new == {**row(2), "knn": 0.5, "knn_k": 10}


def test_rows_wait_while_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "metrics.csv"
    metrics = Metrics(file, 0, [])
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
def test_metrics_that_are_lost_are_written_again(damage: str, tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    metrics = Metrics(file, 0, [])
    metrics.rows += [row(1), row(2)]
    metrics.flush()
    file.unlink() if damage == "deleted" else file.write_bytes(file.read_bytes()[:9])
    metrics.rows += [row(3)]
    metrics.flush()
    metrics.rows += [row(4)]
    metrics.flush()
    assert read_metrics(file) == [row(step) for step in (1, 2, 3, 4)]


def test_a_sink_that_fails_loses_its_own_rows_alone(tmp_path: Path) -> None:
    sink = mock.Mock()
    sink.write.side_effect = OSError("No space left on device")
    metrics = Metrics(tmp_path / "metrics.csv", 0, [sink])
    for step in (1, 2):
        metrics.rows += [row(step)]
        with pytest.warns(UserWarning, match="has lost rows: No space left"):
            metrics.flush()
    assert read_metrics(tmp_path / "metrics.csv") == [row(1), row(2)]


def test_a_directory_is_replaced_only_when_told_and_only_if_it_is_a_run(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run"
    Run.create(path, Config(), overwrite=False)
    (path / "metrics.csv").write_text("old")
    with pytest.raises(ConfigError, match=r"exists: go on with --resume .*, replace it with --overwrite"):
        Run.create(path, Config(), overwrite=False)
    assert (path / "metrics.csv").exists()
    Run.create(path, Config(views=3), overwrite=True)
    assert not (path / "metrics.csv").exists()
    assert Run.open(path).config.views == 3
    assert [p.name for p in path.parent.iterdir()] == ["run"]

    with pytest.raises(ConfigError, match="needs a directory of its own"):
        check_output(Path(), overwrite=True)
    holiday = tmp_path / "holiday"
    holiday.mkdir()
    (holiday / "photo.jpg").write_text("dear")
    (holiday / "config.yaml").write_text("views: 4")  # not one of ours
    with pytest.raises(ConfigError, match="is no run, so --overwrite leaves it alone"):
        check_output(holiday, overwrite=True)
    with pytest.raises(ConfigError, match=r"cannot write to .*photo.jpg"):
        check_output(holiday / "photo.jpg" / "run", overwrite=False)
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(ConfigError, match="is no run"):
        check_output(link, overwrite=True)


def test_a_run_that_was_half_replaced_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        assert Run.open(path).config.views == views
        with pytest.raises(ConfigError, match="exists: go on"):
            check_output(path, overwrite=False)
        assert list(tmp_path.iterdir()) == [path]
        assert Run.open(path).config.views == views


def test_going_on_with_a_run_removes_what_killed_ones_left_beside_it(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run[1]", Config(), overwrite=False)
    of_others = [".run1.manyviews-new-0123abcd", ".run[1].20240101"]
    for name in (".run[1].manyviews-new-0123abcd", ".run[1].manyviews-old-0123abcd", *of_others):
        (tmp_path / name).mkdir()
    with run.claim():
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == [*of_others, "run[1]"]
