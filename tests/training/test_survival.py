"""Real processes: killed at random moments and resumed, stopped by signals, on one rank and on two."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from manyviews.training import Config, Run
from tests.training.small import (
    ENVIRONMENT,
    assert_same_run,
    command,
    finished,
    flags,
    folder_of_images,
    last_checkpoint,
    small,
    start,
    tensors,
)

needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="processes are found in /proc")


def steps_written(run: Path) -> int:
    try:
        return (run / "metrics.csv").read_bytes().count(b"\n") - 1
    except FileNotFoundError:
        return -1


def kill(process: subprocess.Popen[str], number: int = signal.SIGKILL) -> None:
    os.killpg(process.pid, number)


def wait_for(process: subprocess.Popen[str], run: Path, steps: int) -> bool:
    """Wait until so many steps are written; False if the process ended before."""
    end = time.monotonic() + 120
    while steps_written(run) < steps:
        assert time.monotonic() < end, f"{steps_written(run)} steps of {steps} after two minutes"
        if process.poll() is not None:
            return False
        time.sleep(0.002)
    return True


@pytest.mark.parametrize(("workers", "ranks"), [(0, 1), (2, 1), (0, 2), (2, 2)])
def test_killed_and_resumed_is_bit_identical_to_uninterrupted(workers: int, ranks: int, tmp_path: Path) -> None:
    config = small(workers=workers, epochs=8, save_every=3)
    if workers:
        config = small(workers=workers, epochs=8, save_every=3, data=str(folder_of_images(tmp_path / "images")))
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finished(*flags(config), "--output", whole, ranks=ranks)

    chance = random.Random(f"{workers} {ranks}")  # moments repeat as far as the machine's own clock allows
    moments = sorted(chance.sample(range(1, 40), 2))
    kills = 0
    for moment in [0, *moments]:
        given = ["--resume", killed] if killed.exists() else [*flags(config), "--output", killed]
        process = start(*given, ranks=ranks)
        running = wait_for(process, killed, moment)
        time.sleep(chance.uniform(0, 0.05))
        kill(process)
        process.communicate(timeout=120)
        kills += running
    assert kills >= 2
    finished("--resume", killed, ranks=ranks)
    assert_same_run(whole, killed)


@pytest.mark.parametrize(("number", "ranks"), [(signal.SIGINT, 1), (signal.SIGTERM, 1), (signal.SIGTERM, 2)])
def test_a_signal_saves_says_how_to_go_on_and_leaves(number: int, ranks: int, tmp_path: Path) -> None:
    """The workers that read files get it too."""
    config, run = small(epochs=400, save_every=0), tmp_path / "run"
    if ranks == 1:
        config = replace(config, workers=2, data=str(folder_of_images(tmp_path / "images")))
    process = start(*flags(config), "--output", run, ranks=ranks)
    assert wait_for(process, run, 3), process.communicate(timeout=120)[0]
    kill(process, number)
    said, _ = process.communicate(timeout=120)
    assert f"all saved. Go on with: manyviews train --resume {run}" in said
    assert "Traceback" not in said.split("torch/distributed")[0]  # torchrun has one of its own to show
    assert process.returncode == 128 + number if ranks == 1 else process.returncode != 0
    assert last_checkpoint(run)["step"] == steps_written(run)


def test_two_ranks_train_as_one(tmp_path: Path) -> None:
    """In 64 bits a whole training agrees; in 32, rounding grows from step to step, so the first ones are compared.

    Some batches make it grow by 1e5 in two steps (in 64 bits it stays at 1e-15), so these are chosen ones.

    Without synchronised batch norm, pieces of five instances are the same pieces on one rank and on two.
    """
    for name, config, tolerance in (
        ("double", small(precision="64", objective="mv-infonce", learnable=True), 1e-8),
        ("single", small(epochs=1, batch_size=40, limit_order="first"), 1e-5),
        ("pieces", small(epochs=1, batch_size=40, micro_batch=5, sync_batch_norm=False, precision="64"), 1e-8),
    ):
        one, two = tmp_path / f"{name}-1", tmp_path / f"{name}-2"
        finished(*flags(config), "--output", one)
        finished(*flags(config), "--output", two, ranks=2)
        found, expected = (tensors(last_checkpoint(run)["embedder"]) for run in (two, one))
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            if value.is_floating_point() and not (name == "pieces" and "running" in key):  # each rank has its own
                torch.testing.assert_close(
                    found[key], value, rtol=tolerance, atol=tolerance, msg=lambda m, k=key, n=name: f"{n} {k}: {m}"
                )


def test_devices_start_their_own_ranks(tmp_path: Path) -> None:
    said = finished(*flags(small(epochs=1, devices=2, device="cpu")), "--output", tmp_path / "run")
    assert "2 ranks on cpu" in said
    assert said.count("is finished") == 1
    assert (tmp_path / "run" / "encoder.safetensors").exists()


def children(process: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def wait_until(holds: Callable[[], object], what: str) -> None:
    end = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < end, f"two minutes without {what}"
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@needs_proc
def test_ranks_that_were_started_end_with_the_first(tmp_path: Path) -> None:
    process = start(*flags(small(epochs=400, devices=2, device="cpu")), "--output", tmp_path / "run")
    wait_until(lambda: children(process.pid), "a second rank")
    (second,) = children(process.pid)
    process.kill()
    try:
        wait_until(lambda: not is_running(second), "the end of the second rank")
    finally:
        with suppress(ProcessLookupError):
            kill(process)
    process.communicate(timeout=60)


ALONE = """
import datetime
from manyviews.training import setup
from tests.training.small import small

setup.RENDEZVOUS = datetime.timedelta(seconds=1)
try:
    setup.launched(small(devices=2, device="cpu"))
except ConnectionError as error:
    print(error)
"""


def test_a_rank_that_meets_nobody_does_not_wait_for_long() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        own = {"LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(nobody.getsockname()[1])}
        call = [sys.executable, "-c", ALONE]
        done = subprocess.run(call, env=ENVIRONMENT | own, capture_output=True, text=True, check=False, timeout=120)
    assert "the 2 ranks have not met in 0:00:01" in done.stdout, done.stderr


@needs_proc
def test_a_rank_that_dies_ends_the_run_with_an_error(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start(*flags(small(epochs=4000, devices=2, device="cpu")), "--output", run)
    assert wait_for(process, run, 3), process.communicate(timeout=120)[0]
    os.kill(children(process.pid)[0], signal.SIGKILL)
    said, _ = process.communicate(timeout=120)
    assert process.returncode not in (0, None)
    # Fabric kills the first rank if it sees the death before the first rank does.
    assert process.returncode == -signal.SIGKILL or "has died" in said.splitlines()[-1]
    assert "Traceback" not in said


PATCHED = """
import datetime, sys, time
from manyviews.training import loop, setup
from manyviews.views import plain
from manyviews.cli import main

setup.EXCHANGE = datetime.timedelta(seconds=4)
evaluated, read_image = loop.evaluated, plain.read_image

def late(*arguments):
    time.sleep(8)
    return evaluated(*arguments)

def slow(path):
    time.sleep(0.2)
    return read_image(path)

if "--devices" in sys.argv:
    loop.evaluated = late
plain.read_image = slow
main()
"""
"""A program in which ranks wait for seconds only, an evaluation of two takes longer, and files are slow to read."""


def start_patched(folder: Path, *arguments: object) -> subprocess.Popen[str]:
    (folder / "patched.py").write_text(PATCHED)
    return subprocess.Popen(
        [sys.executable, str(folder / "patched.py"), *map(str, arguments)],
        env=ENVIRONMENT,
        start_new_session=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def test_an_evaluation_may_take_longer_than_ranks_wait_for_each_other(tmp_path: Path) -> None:
    config = small(epochs=1, devices=2, device="cpu", probe=True)
    process = start_patched(tmp_path, "train", *flags(config), "--output", tmp_path / "run")
    said, _ = process.communicate(timeout=240)
    assert process.returncode == 0, said
    assert said.count("is finished") == 1
    assert Run.open(tmp_path / "run").evaluation is not None


@needs_proc
def test_a_stop_amid_an_evaluation_of_files_is_no_failure_of_their_readers(tmp_path: Path) -> None:
    """Signals go to the workers as well, as from a terminal; one that is killed is another matter."""
    images, run = folder_of_images(tmp_path / "images"), tmp_path / "run"
    config = small(epochs=1, workers=2, probe=True, data=str(images), held_out=0, eval_every=5)
    done = "trained, and its encoder is written; stopped before it was evaluated. Go on with: manyviews train --resume"
    for arguments, number, code, message in (
        (["train", *flags(config), "--output", run], signal.SIGINT, 130, done),
        (["train", "--resume", run], signal.SIGTERM, 143, done),
        (["evaluate", run], signal.SIGTERM, 143, "manyviews: terminated"),
        (["evaluate", run], signal.SIGKILL, 2, "a process that reads images has died"),
    ):
        process = start_patched(tmp_path, *arguments)
        log = run / "log.txt"
        before = log.read_text().count("now evaluated") if log.exists() else 0

        def evaluates(process=process, before=before, arguments=arguments, log=log) -> bool:
            assert process.poll() is None, process.communicate()[0]
            begun = arguments[0] == "evaluate" or (log.exists() and log.read_text().count("now evaluated") > before)
            return begun and len(children(process.pid)) == 2

        wait_until(evaluates, "an evaluation")
        time.sleep(0.2)
        kill(process, number) if number != signal.SIGKILL else os.kill(children(process.pid)[0], number)
        said, _ = process.communicate(timeout=120)
        assert process.returncode == code, said
        assert message in said  # after it, a worker that was left may still complain
        assert "Traceback" not in said
        assert "not evaluated" not in said


IMPORTING = """
import os, signal, sys
from manyviews.cli import main

class Finder:
    def find_spec(self, name, *_):
        if name in ("tyro", "torch"):
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
sys.argv = ["manyviews", "train"]
main()
"""


def test_ctrl_c_amid_imports_is_quiet() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTING], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@needs_full
def test_nobody_who_reads_along_is_no_reason_to_stop(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with Path("/dev/full").open("w") as full:
        for name, out, err, code in (("pipe", writer, writer, 141), ("full", subprocess.DEVNULL, full, 0)):
            arguments = command(*flags(small(epochs=1)), "--output", tmp_path / name)
            done = subprocess.run(arguments, env=ENVIRONMENT, stdout=out, stderr=err, check=False, timeout=120)
            assert done.returncode == code
            assert Run.open(tmp_path / name).finished
    os.close(writer)


def test_weights_and_biases_offline(tmp_path: Path) -> None:
    finished(*flags(small(epochs=1, loggers=("wandb-offline",))), "--output", tmp_path / "run")
    (file,) = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    assert Run.open(tmp_path / "run").identity in file.name
    assert file.read_bytes().count(b"learning_rate") >= 5


def test_weights_and_biases_without_a_login_leave_nothing_behind(tmp_path: Path) -> None:
    own = {"HOME": str(tmp_path / "home"), "NETRC": str(tmp_path / "netrc")}
    (tmp_path / "home").mkdir()
    environment = {**{name: value for name, value in ENVIRONMENT.items() if not name.startswith("WANDB")}, **own}
    arguments = command(*flags(small(loggers=("wandb",))), "--output", tmp_path / "run")
    done = subprocess.run(
        arguments, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 2
    assert "Call `wandb login`, or take --loggers wandb-offline" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_mistake_on_two_ranks_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    process = start(*flags(small()), "--output", tmp_path / "run", ranks=2)
    said, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert said.count("exists: go on with --resume") == 1


def test_the_command_line_prints_its_config_and_names_mistakes(tmp_path: Path) -> None:
    said = finished("--recipe", "cifar100", "--views", "3", "--objective", "pvc", "--print-config")
    config = Config.from_yaml(said)
    assert (config.views, config.objective, config.data, config.epochs) == (3, "pvc", "cifar100", 200)
    for arguments, message in (
        (["--recipe", "cifar"], "no recipe 'cifar': did you mean cifar10 or cifar100"),
        (["--objective", "mvdhel"], "no objective 'mvdhel': did you mean mv-dhel"),
        (["--veiws", "3"], "--views"),
        (["--views", "1"], "views must be >= 2, got 1"),
        (["--resume", tmp_path], "is no run"),
        (["--resume", tmp_path, "--recipe", "cifar10"], "leave --recipe out"),
    ):
        process = start(*arguments)
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 2, said
        assert message in said
        assert "Traceback" not in said
