"""Training processes that are killed at random moments or stopped by signals, and resumed, on one and two ranks."""

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

from manyviews.api import train
from manyviews.evaluation import load_evaluation
from manyviews.runs import Run
from manyviews.training import Config
from tests.helpers.command_line import manyviews
from tests.helpers.tiny_run import (
    ENVIRONMENT,
    assert_same_run,
    command,
    flags,
    folder_of_images,
    last_checkpoint,
    run_to_end,
    start,
    tensors,
    tiny_config,
)

pytestmark = pytest.mark.slow

needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="requires /proc")


def steps_written(run: Path) -> int:
    try:
        return (run / "metrics.csv").read_bytes().count(b"\n") - 1
    except FileNotFoundError:
        return -1


def kill(process: subprocess.Popen[str], signum: int = signal.SIGKILL) -> None:
    os.killpg(process.pid, signum)


def wait_for(process: subprocess.Popen[str], run: Path, steps: int) -> bool:
    """Wait until `steps` steps are written; return False if the process ended before."""
    end = time.monotonic() + 120
    while steps_written(run) < steps:
        assert time.monotonic() < end, f"{steps_written(run)} steps of {steps} after two minutes"
        if process.poll() is not None:
            return False
        time.sleep(0.002)
    return True


@pytest.mark.distributed
@pytest.mark.parametrize(("workers", "ranks"), [(0, 1), (2, 1), (0, 2), (2, 2)])
def test_killed_and_resumed_is_bit_identical_to_uninterrupted(workers: int, ranks: int, tmp_path: Path) -> None:
    config = tiny_config(num_workers=workers, epochs=8, checkpoint_every_steps=3)
    if workers:
        config = tiny_config(
            num_workers=workers, epochs=8, checkpoint_every_steps=3, data=str(folder_of_images(tmp_path / "images"))
        )
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    if ranks == 1:
        train(config, output=whole, quiet=True)
    else:
        run_to_end(*flags(config), "--output", whole, ranks=ranks)

    rng = random.Random(f"{workers} {ranks}")
    moments = sorted(rng.sample(range(1, 40), 2))
    kills = 0
    for moment in [0, *moments]:
        arguments = ["--resume", killed] if killed.exists() else [*flags(config), "--output", killed]
        process = start(*arguments, ranks=ranks)
        running = wait_for(process, killed, moment)
        time.sleep(rng.uniform(0, 0.05))
        kill(process)
        process.communicate(timeout=120)
        kills += running
    assert kills >= 2
    run_to_end("--resume", killed, ranks=ranks)
    assert_same_run(whole, killed)


@pytest.mark.distributed
@pytest.mark.parametrize(("signum", "ranks"), [(signal.SIGINT, 1), (signal.SIGTERM, 1), (signal.SIGTERM, 2)])
def test_signal_saves_a_checkpoint_and_stops(signum: int, ranks: int, tmp_path: Path) -> None:
    """The workers that read files receive the signal, too."""
    config, run = tiny_config(epochs=400, checkpoint_every_steps=0), tmp_path / "run"
    if ranks == 1:
        config = replace(config, num_workers=2, data=str(folder_of_images(tmp_path / "images")))
    process = start(*flags(config), "--output", run, ranks=ranks)
    assert wait_for(process, run, 3), process.communicate(timeout=120)[0]
    kill(process, signum)
    output, _ = process.communicate(timeout=120)
    step = steps_written(run)
    assert f"stopped at step {step} of 2000; the last checkpoint is from step {step}. " in output
    assert f". Resume with: manyviews train --resume {run}" in output
    assert "Traceback" not in output.split("torch/distributed")[0]  # torchrun prints one
    assert process.returncode == 128 + signum if ranks == 1 else process.returncode != 0
    assert last_checkpoint(run)["step"] == steps_written(run)


@pytest.mark.distributed
def test_two_ranks_train_as_one(tmp_path: Path) -> None:
    """With 64 bits a full training agrees; with 32 bits rounding errors grow, so only the first steps are compared.

    For some batches they grow by 1e5 in two steps (with 64 bits they stay at 1e-15), so the batches are chosen.
    Without synchronized batch norm, chunks of five instances are the same on one and two ranks.
    """
    for name, config, tolerance in (
        ("double", tiny_config(precision="64", loss="mv-infonce", learn_temperature=True), 1e-8),
        ("single", tiny_config(epochs=1, batch_size=40, seed=2), 1e-5),
        (
            "chunks",
            tiny_config(epochs=1, batch_size=40, grad_cache_chunk=5, sync_batch_norm=False, precision="64"),
            1e-8,
        ),
    ):
        one, two = tmp_path / f"{name}-1", tmp_path / f"{name}-2"
        train(config, output=one, quiet=True)
        run_to_end(*flags(config), "--output", two, ranks=2)
        actual, expected = (tensors(last_checkpoint(run)["model"]) for run in (two, one))
        assert actual.keys() == expected.keys()
        for key, value in expected.items():
            if value.is_floating_point() and not (name == "chunks" and "running" in key):  # local to each rank
                torch.testing.assert_close(
                    actual[key], value, rtol=tolerance, atol=tolerance, msg=lambda m, k=key, n=name: f"{n} {k}: {m}"
                )


@pytest.mark.distributed
def test_devices_starts_the_ranks(tmp_path: Path) -> None:
    output = run_to_end(*flags(tiny_config(epochs=1, devices=2, device="cpu")), "--output", tmp_path / "run")
    assert "2 ranks on cpu" in output
    assert output.count("is finished") == 1
    assert (tmp_path / "run" / "encoder.safetensors").exists()


def children(process: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def wait_until(condition: Callable[[], object], name: str) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, f"two minutes without {name}"
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.distributed
@needs_proc
def test_started_ranks_end_with_rank_zero(tmp_path: Path) -> None:
    process = start(*flags(tiny_config(epochs=400, devices=2, device="cpu")), "--output", tmp_path / "run")
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
from manyviews.training import fabric
from tests.helpers.tiny_run import tiny_config

fabric.RENDEZVOUS_TIMEOUT = datetime.timedelta(seconds=1)
try:
    fabric.create_fabric(tiny_config(devices=2, device="cpu"))
except ConnectionError as error:
    print(error)
"""


@pytest.mark.distributed
def test_rank_without_others_times_out() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        variables = {"LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(unused.getsockname()[1])}
        call = [sys.executable, "-c", ALONE]
        done = subprocess.run(
            call, env=ENVIRONMENT | variables, capture_output=True, text=True, check=False, timeout=120
        )
    assert "the 2 ranks did not connect within 0:00:01" in done.stdout, done.stderr


@pytest.mark.distributed
@needs_proc
def test_dead_rank_ends_the_run_with_an_error(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start(*flags(tiny_config(epochs=4000, devices=2, device="cpu")), "--output", run)
    assert wait_for(process, run, 3), process.communicate(timeout=120)[0]
    os.kill(children(process.pid)[0], signal.SIGKILL)
    output, _ = process.communicate(timeout=120)
    assert process.returncode not in (0, None)
    # Fabric kills the first rank if it sees the death before the first rank does.
    assert process.returncode == -signal.SIGKILL or "has died" in output.splitlines()[-1]
    assert "Traceback" not in output


PATCHED = """
import datetime, sys, time
from manyviews import api
from manyviews.cli import main
from manyviews.loading.modality_reader import ModalityReader
from manyviews.training import fabric
from manyviews.transforms import CenterCrop

fabric.COLLECTIVE_TIMEOUT = datetime.timedelta(seconds=4)
evaluate_model, crop_files = api.evaluate_model, ModalityReader._crop_files

def evaluate_slowly(*args, **kwargs):
    time.sleep(8)
    return evaluate_model(*args, **kwargs)

def crop_slowly(self, row, epoch):
    time.sleep(0.2 if isinstance(self.transforms[0], CenterCrop) else 0)
    return crop_files(self, row, epoch)

if "--devices" in sys.argv:
    api.evaluate_model = evaluate_slowly
ModalityReader._crop_files = crop_slowly
main()
"""
"""A program with a short collective timeout, an evaluation on two ranks that takes longer, and slow image files."""


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


@pytest.mark.distributed
def test_evaluation_may_take_longer_than_the_collective_timeout(tmp_path: Path) -> None:
    config = tiny_config(epochs=1, devices=2, device="cpu", evaluate_at_end=True)
    process = start_patched(tmp_path, "train", *flags(config), "--output", tmp_path / "run")
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    assert output.count("is finished") == 1
    assert load_evaluation(tmp_path / "run") is not None


@needs_proc
def test_signal_during_an_evaluation_is_not_reported_as_a_failure(tmp_path: Path) -> None:
    """The workers receive the signal, too, as from a terminal; a worker that is killed is an error."""
    images, run = folder_of_images(tmp_path / "images"), tmp_path / "run"
    config = tiny_config(
        epochs=1, num_workers=2, evaluate_at_end=True, data=str(images), monitor_size=0, monitor_every=5
    )
    interrupted = "the encoder is saved, but the evaluation was interrupted. Resume with: manyviews train --resume"
    for arguments, signum, code, message in (
        (["train", *flags(config), "--output", run], signal.SIGINT, 130, interrupted),
        (["train", "--resume", run], signal.SIGTERM, 143, interrupted),
        (["evaluate", run], signal.SIGTERM, 143, "manyviews: terminated"),
        (["evaluate", run], signal.SIGKILL, 2, "a data loading worker died"),
    ):
        process = start_patched(tmp_path, *arguments)
        log = run / "log.txt"
        before = log.read_text().count("training finished, evaluating") if log.exists() else 0

        def is_evaluating(process=process, before=before, arguments=arguments, log=log) -> bool:
            assert process.poll() is None, process.communicate()[0]
            started = arguments[0] == "evaluate" or (
                log.exists() and log.read_text().count("training finished, evaluating") > before
            )
            return started and len(children(process.pid)) == 2

        wait_until(is_evaluating, "an evaluation")
        time.sleep(0.2)
        kill(process, signum) if signum != signal.SIGKILL else os.kill(children(process.pid)[0], signum)
        output, _ = process.communicate(timeout=120)
        assert process.returncode == code, output
        assert message in output  # a remaining worker may print more
        assert "Traceback" not in output
        assert "evaluation failed" not in output


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


def test_ctrl_c_during_imports_prints_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTING], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@needs_full
def test_closed_or_full_output_does_not_stop_training(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with Path("/dev/full").open("w") as full:
        for name, out, err, code in (("pipe", writer, writer, 141), ("full", subprocess.DEVNULL, full, 0)):
            arguments = command(*flags(tiny_config(epochs=1)), "--output", tmp_path / name)
            done = subprocess.run(arguments, env=ENVIRONMENT, stdout=out, stderr=err, check=False, timeout=120)
            assert done.returncode == code
            assert Run.open(tmp_path / name).is_finished
    os.close(writer)


def test_wandb_offline(tmp_path: Path) -> None:
    run_to_end(*flags(tiny_config(epochs=1, loggers=("wandb-offline",))), "--output", tmp_path / "run")
    (file,) = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    assert Run.open(tmp_path / "run").run_id in file.name
    assert file.read_bytes().count(b"learning_rate") >= 5


def test_wandb_without_a_login_creates_no_run(tmp_path: Path) -> None:
    variables = {"HOME": str(tmp_path / "home"), "NETRC": str(tmp_path / "netrc")}
    (tmp_path / "home").mkdir()
    environment = {**{name: value for name, value in ENVIRONMENT.items() if not name.startswith("WANDB")}, **variables}
    arguments = command(*flags(tiny_config(loggers=("wandb",))), "--output", tmp_path / "run")
    done = subprocess.run(
        arguments, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 2
    assert "Run `wandb login`, or use --loggers wandb-offline" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.distributed
def test_config_error_on_two_ranks_is_printed_once(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    process = start(*flags(tiny_config()), "--output", tmp_path / "run", ranks=2)
    output, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert output.count("exists: use --resume") == 1


def test_train_command_prints_its_config_and_errors(tmp_path: Path) -> None:
    done = manyviews("train", "--recipe", "cifar100", "--views", "3", "--loss", "pvc", "--print-config")
    config = Config.from_yaml(done.stdout)
    assert (config.views, config.loss, config.data, config.epochs) == (("3",), "pvc", "cifar100", 200)
    for arguments, message in (
        (["--recipe", "cifar"], "no recipe 'cifar': did you mean cifar10 or cifar100"),
        (["--loss", "mvdhel"], "'mvdhel': did you mean mv-dhel"),
        (["--veiws", "3"], "--views"),
        (["--views", "1"], "at least two views are required, got 1: try --views 2"),
        (["--resume", str(tmp_path)], "is not a run directory"),
        (["--resume", str(tmp_path), "--recipe", "cifar10"], "--resume cannot be combined with --recipe"),
    ):
        done = manyviews("train", *arguments)
        assert done.returncode == 2, done.stderr
        assert message in done.stdout + done.stderr
        assert "Traceback" not in done.stdout + done.stderr
