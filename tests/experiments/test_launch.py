"""Real processes: `reproduce` that is stopped or killed, and two of them on one grid."""

import csv
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from manyviews.experiments import Launch
from manyviews.training.signals import StopRequest
from tests.experiments.test_grids import small_cells
from tests.training.small import ENVIRONMENT, last_checkpoint

LONG = ("--views", "2", "--objectives", "mv-dhel", "--limit", "64", "--epochs", "20000")
pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals and locks are POSIX's")


def reproduce(output: Path, *arguments: str) -> subprocess.Popen[str]:
    return started("-m", "manyviews", "reproduce", "table1", "--scale", "smoke", *arguments, "-o", str(output))


def started(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments], env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def wait_until(happened: Callable[[], object], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 240
    while not happened():
        assert time.monotonic() < end
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)


def steps(output: Path) -> list[int]:
    """Steps that each run has written."""
    return [path.read_bytes().count(b"\n") - 1 for path in (output / "runs").glob("*/metrics.csv")]


def saved(output: Path) -> list[int]:
    """Steps of the newest checkpoint of each run."""
    return [last_checkpoint(path.parent)["step"] for path in (output / "runs").glob("*/metrics.csv")]


def processes_in(folder: Path) -> list[int]:
    """Those whose command names the folder, zombies aside."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended meanwhile
            if str(folder).encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def test_signals_reach_the_cells_which_save(tmp_path: Path) -> None:
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # children inherit that it is ignored, as under nohup
    running = {number: reproduce(tmp_path / number.name, *LONG) for number in numbers}  # seconds each: all at once
    signal.signal(signal.SIGHUP, before)
    try:
        for number, process in running.items():
            wait_until(lambda number=number: sum(steps(tmp_path / number.name)) >= 3, process)
            process.send_signal(number)
        for number, process in running.items():
            said, _ = process.communicate(timeout=120)
            assert process.returncode == 128 + number, said
            assert "the cells at work have saved; the same command goes on" in said
            assert "Traceback" not in said
            assert saved(tmp_path / number.name) == steps(tmp_path / number.name)
    finally:
        for process in running.values():
            process.kill()
            process.communicate()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_cells_and_their_ranks_end_with_a_reproduce_that_is_killed(tmp_path: Path) -> None:
    """Two cells, one of them on two ranks; who comes after takes their locks."""
    code = """
import dataclasses, sys
from pathlib import Path
from manyviews.experiments import Launch
from tests.experiments.test_grids import small_cells
cells = [dataclasses.replace(c, config=dataclasses.replace(c.config, epochs=20000)) for c in small_cells(2)]
cells[1] = dataclasses.replace(cells[1], config=dataclasses.replace(cells[1].config, devices=2, device="cpu"))
Launch(Path(sys.argv[1]), jobs=2)(cells)
"""
    runs = tmp_path / "runs"
    process = started("-c", code, str(runs))
    try:
        wait_until(lambda: len(steps(tmp_path)) == 2 and min(steps(tmp_path)) >= 1, process)
        assert len(processes_in(runs)) == 4  # itself, a cell, and a cell of two ranks
    finally:
        process.kill()
        process.communicate()
    end = time.monotonic() + 60
    while processes_in(runs):
        assert time.monotonic() < end, f"{processes_in(runs)} are left"
        time.sleep(0.1)
    assert saved(tmp_path) == steps(tmp_path)


def test_two_on_one_grid_share_the_work(tmp_path: Path) -> None:
    arguments = ("--views", "2", "--objectives", "mv-dhel", "--limit", "64", "--seeds", "3")
    both = [reproduce(tmp_path, *arguments) for _ in range(2)]
    said = [process.communicate(timeout=300)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    for text in said:
        assert "FAILED" not in text
        assert "[3/3]" in text
        assert "Smoke runs decide nothing" in text
    assert any("another process is computing it" in text for text in said)
    assert sum("done by another process" in line for text in said for line in text.splitlines()) == 3
    logs = [path.read_text() for path in (tmp_path / "runs").glob("*/log.txt")]
    assert len(logs) == 3
    assert all(log.count("training:") == 1 and "resuming" not in log for log in logs)
    with (tmp_path / "table1.csv").open() as file:
        assert [row["seeds"] for row in csv.DictReader(file)] == ["3"]


def test_a_cell_that_another_process_leaves_is_taken_over(tmp_path: Path) -> None:
    """The other one holds it until it is killed."""
    (cell,) = small_cells(1)
    code = "import fcntl, sys, time; f = open(sys.argv[1], 'a'); fcntl.flock(f, 2); print(flush=True); time.sleep(300)"
    with cell.lock(tmp_path):
        (lock,) = (tmp_path / ".locks").iterdir()
    other = subprocess.Popen([sys.executable, "-c", code, str(lock)], stdout=subprocess.PIPE)
    said = []

    def say(text: str) -> None:
        said.append(text)
        if "another process" in text:
            other.kill()

    try:
        assert other.stdout is not None
        other.stdout.readline()
        assert Launch(tmp_path, say=say)([cell]) == {}
    finally:
        other.kill()
        other.communicate()
    assert said[1].endswith("seed 0: another process is computing it")
    assert "done (" in said[2]
    assert cell.state(tmp_path) == "done"


def test_a_hangup_stops_training_unless_it_is_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under nohup
    try:
        with StopRequest() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.number == 0
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with StopRequest() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.number == signal.SIGHUP
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)
