"""Real processes: `reproduce` commands that are interrupted, killed, or share one grid."""

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

from manyviews.reproduce import TrialRunner, TrialStore
from manyviews.training import SignalCatcher
from tests.helpers.tiny_run import ENVIRONMENT, last_checkpoint
from tests.reproduce.test_experiments import make_small_trials

LONG = ("--views", "2", "--losses", "mv-dhel", "--max-instances", "64", "--epochs", "20000")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name == "nt", reason="POSIX signals and locks")]


def reproduce(output: Path, *arguments: str) -> subprocess.Popen[str]:
    return start_python("-m", "manyviews", "reproduce", "table1", "--scale", "smoke", *arguments, "-o", str(output))


def start_python(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments], env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def wait_until(condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < end
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)


def count_steps(output: Path) -> list[int]:
    """Steps in the metrics of each run."""
    return [path.read_bytes().count(b"\n") - 1 for path in (output / "runs").glob("*/metrics.csv")]


def read_checkpoint_steps(output: Path) -> list[int]:
    """Step of the newest checkpoint of each run."""
    return [last_checkpoint(path.parent)["step"] for path in (output / "runs").glob("*/metrics.csv")]


def list_processes(folder: Path) -> list[int]:
    """Processes whose command line contains the folder; zombies have none."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # the process has ended
            if str(folder).encode() in path.read_bytes():
                pids.append(int(path.parent.name))
    return pids


def test_trials_checkpoint_on_signals(tmp_path: Path) -> None:
    signals = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    before = signal.signal(
        signal.SIGHUP, signal.SIG_DFL
    )  # it may be ignored, as under nohup, and children inherit that
    running = {signum: reproduce(tmp_path / signum.name, *LONG) for signum in signals}  # at once to save time
    signal.signal(signal.SIGHUP, before)
    try:
        for signum, process in running.items():
            wait_until(lambda signum=signum: sum(count_steps(tmp_path / signum.name)) >= 3, process)
            process.send_signal(signum)
        for signum, process in running.items():
            output, _ = process.communicate(timeout=120)
            assert process.returncode == 128 + signum, output
            assert "the running trials were checkpointed; the same command resumes them" in output
            assert "Traceback" not in output
            assert read_checkpoint_steps(tmp_path / signum.name) == count_steps(tmp_path / signum.name)
    finally:
        for process in running.values():
            process.kill()
            process.communicate()


@pytest.mark.distributed
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_trials_and_their_ranks_end_with_a_killed_reproduce(tmp_path: Path) -> None:
    """Two trials, one of them on two ranks."""
    code = """
import dataclasses, sys
from pathlib import Path
from manyviews.reproduce import TrialRunner
from tests.reproduce.test_experiments import make_small_trials
trials = [dataclasses.replace(c, config=dataclasses.replace(c.config, epochs=20000)) for c in make_small_trials(2)]
trials[1] = dataclasses.replace(trials[1], config=dataclasses.replace(trials[1].config, devices=2, device="cpu"))
TrialRunner(Path(sys.argv[1]), jobs=2).run(trials)
"""
    runs = tmp_path / "runs"
    process = start_python("-c", code, str(runs))
    try:
        wait_until(lambda: len(count_steps(tmp_path)) == 2 and min(count_steps(tmp_path)) >= 1, process)
        assert len(list_processes(runs)) == 4  # the parent, a trial, and a trial with two ranks
    finally:
        process.kill()
        process.communicate()
    end = time.monotonic() + 60
    while list_processes(runs):
        assert time.monotonic() < end, f"{list_processes(runs)} are left"
        time.sleep(0.1)
    assert read_checkpoint_steps(tmp_path) == count_steps(tmp_path)


def test_two_reproduce_commands_share_the_trials(tmp_path: Path) -> None:
    arguments = ("--views", "2", "--losses", "mv-dhel", "--max-instances", "64", "--seeds", "3")
    processes = [reproduce(tmp_path, *arguments) for _ in range(2)]
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    for text in outputs:
        assert "FAILED" not in text
        assert "[3/3]" in text
        assert "Smoke runs are too short" in text
    assert any("another process is running it" in text for text in outputs)
    assert sum("done by another process" in line for text in outputs for line in text.splitlines()) == 3
    logs = [path.read_text() for path in (tmp_path / "runs").glob("*/log.txt")]
    assert len(logs) == 3
    assert all(log.count("training:") == 1 and "resuming" not in log for log in logs)
    with (tmp_path / "table1.csv").open() as file:
        assert [row["seeds"] for row in csv.DictReader(file)] == ["3"]


def test_a_trial_abandoned_by_another_process_is_taken_over(tmp_path: Path) -> None:
    """Another process holds the lock until it is killed."""
    (trial,) = make_small_trials(1)
    code = "import fcntl, sys, time; f = open(sys.argv[1], 'a'); fcntl.flock(f, 2); print(flush=True); time.sleep(300)"
    with trial.lock(TrialStore(tmp_path)):
        (lock,) = (tmp_path / ".locks").iterdir()
    other = subprocess.Popen([sys.executable, "-c", code, str(lock)], stdout=subprocess.PIPE)
    messages = []

    def log(text: str) -> None:
        messages.append(text)
        if "another process" in text:
            other.kill()

    try:
        assert other.stdout is not None
        other.stdout.readline()
        assert TrialRunner(tmp_path, log=log).run([trial]) == {}
    finally:
        other.kill()
        other.communicate()
    assert messages[1].endswith("seed 0: another process is running it")
    assert "done (" in messages[2]
    assert trial.get_state(TrialStore(tmp_path)) == "done"


def test_sighup_stops_training_unless_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under nohup
    try:
        with SignalCatcher() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.signum == 0
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with SignalCatcher() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.signum == signal.SIGHUP
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)
