"""A training that takes a second, its data, and ways to start it in processes of its own."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from manyviews.training import Config

SMALL = Config(
    limit=96,
    held_out=16,
    views=3,
    size=16,
    width=0.125,
    epochs=3,
    batch_size=16,
    projection=16,
    learning_rate=0.5,
    warmup=0.1,
    eval_every=4,
    log_every=1,
    save_every=2,
    threads=1,
    workers=0,
    probe=False,
)
"""Five steps an epoch, fifteen in all."""


def small(**changes: object) -> Config:
    return replace(SMALL, **changes)


def folder_of_images(where: Path, count: int = 96, labelled: bool = True) -> Path:
    """PNGs of many sizes, so that they stay on disk until they are asked for."""
    generator = np.random.default_rng(0)
    for number in range(count):
        folder = where / "abc"[number % 3] if labelled else where
        folder.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 256, (20 + number % 5, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:03}.png")
    return where


def flags(config: Config) -> list[str]:
    """The config as the command line writes it."""
    default, out = Config(), []
    for name, value in vars(config).items():
        if value == getattr(default, name):
            continue
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            out.append(flag if value else "--no-" + flag[2:])
        else:
            out += [flag, *(map(str, value) if isinstance(value, tuple) else [str(value)])]
    return out


def command(*arguments: object, ranks: int = 1) -> list[str]:
    launcher = [sys.executable, "-m"]
    if ranks > 1:
        launcher += ["torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "-m"]
    return [*launcher, "manyviews", "train", *map(str, arguments)]


ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def start(*arguments: object, ranks: int = 1, **options: object) -> subprocess.Popen[str]:
    """A training in a session of its own, so that it can be killed with all its ranks and workers."""
    return subprocess.Popen(
        command(*arguments, ranks=ranks),
        env=ENVIRONMENT,
        start_new_session=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        **options,
    )


def finished(*arguments: object, ranks: int = 1, **options: object) -> str:
    """What a training says that ends well."""
    process = start(*arguments, ranks=ranks, **options)
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    return said


def last_checkpoint(run: Path) -> dict:
    (path,) = sorted((run / "checkpoints").glob("*.pt"))[-1:]
    return torch.load(path, weights_only=True)


def tensors(state: object, name: str = "") -> dict[str, object]:
    """Everything in a checkpoint, flat."""
    if isinstance(state, (dict, list, tuple)):
        pairs = state.items() if isinstance(state, dict) else enumerate(state)
        return {k: v for key, value in pairs for k, v in tensors(value, f"{name}.{key}").items()}
    return {name: state}


def assert_same_run(a: Path, b: Path) -> None:
    """The same weights, optimiser state and metrics, bit for bit."""
    assert (a / "metrics.csv").read_bytes() == (b / "metrics.csv").read_bytes()
    assert (a / "encoder.safetensors").read_bytes() == (b / "encoder.safetensors").read_bytes()
    one, other = tensors(last_checkpoint(a)), tensors(last_checkpoint(b))
    assert one.keys() == other.keys()
    assert any(name.startswith(".optimiser.state") for name in one)
    for name, value in one.items():
        same = torch.equal(value, other[name]) if isinstance(value, torch.Tensor) else value == other[name]
        assert same, name
