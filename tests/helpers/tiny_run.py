"""A config that trains in a second, its data, and functions that train in subprocesses."""

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
    max_instances=96,
    monitor_size=16,
    views=3,
    image_size=16,
    width_mult=0.125,
    epochs=3,
    batch_size=16,
    embed_dim=16,
    learning_rate=0.5,
    warmup_fraction=0.1,
    monitor_every=4,
    log_every=1,
    checkpoint_every_steps=2,
    cpu_threads=1,
    num_workers=0,
    evaluate_at_end=False,
    precision="32",
)
"""Five steps per epoch, fifteen in total; the same bits on CPUs with and without bfloat16."""


def tiny_config(**changes: object) -> Config:
    return replace(SMALL, **changes)


def folder_of_images(where: Path, count: int = 96, labelled: bool = True) -> Path:
    """Write PNGs of different sizes, which are therefore loaded lazily."""
    generator = np.random.default_rng(0)
    for i in range(count):
        folder = where / "abc"[i % 3] if labelled else where
        folder.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 256, (20 + i % 5, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i:03}.png")
    return where


def flags(config: Config) -> list[str]:
    """Return the command-line flags of a config."""
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
    """Start a training in a new session, so that it can be killed with all its ranks and workers."""
    return subprocess.Popen(
        command(*arguments, ranks=ranks),
        env=ENVIRONMENT,
        start_new_session=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        **options,
    )


def run_to_end(*arguments: object, ranks: int = 1, **options: object) -> str:
    """Run a training, assert that it succeeds, and return its output."""
    process = start(*arguments, ranks=ranks, **options)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return output


def last_checkpoint(run: Path) -> dict:
    (path,) = sorted((run / "checkpoints").glob("*.pt"))[-1:]
    return torch.load(path, weights_only=True)


def tensors(state: object, name: str = "") -> dict[str, object]:
    """Flatten a checkpoint into a dict."""
    if isinstance(state, (dict, list, tuple)):
        pairs = state.items() if isinstance(state, dict) else enumerate(state)
        return {k: v for key, value in pairs for k, v in tensors(value, f"{name}.{key}").items()}
    return {name: state}


def assert_same_run(a: Path, b: Path) -> None:
    """Assert that weights, optimizer state and metrics are equal, bit for bit."""
    assert (a / "metrics.csv").read_bytes() == (b / "metrics.csv").read_bytes()
    assert (a / "encoder.safetensors").read_bytes() == (b / "encoder.safetensors").read_bytes()
    one, other = tensors(last_checkpoint(a)), tensors(last_checkpoint(b))
    assert one.keys() == other.keys()
    assert any(name.startswith(".optimizer.state") for name in one)
    for name, value in one.items():
        same = torch.equal(value, other[name]) if isinstance(value, torch.Tensor) else value == other[name]
        assert same, name
