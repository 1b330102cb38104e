"""Real processes: killed at random moments and resumed, stopped by signals, on one rank and on two."""

import os
import random
import signal
import subprocess
import time
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
    config, run = small(epochs=400, save_every=0), tmp_path / "run"
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

    Without synchronised batch norm, pieces of five instances are the same pieces on one rank and on two.
    """
    for name, config, tolerance in (
        ("double", small(precision="64", objective="mv-infonce", learnable=True), 1e-8),
        ("single", small(epochs=1, batch_size=40), 1e-5),
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
