"""What training costs beyond the encoder: time of a step, memory of a batch, images a second on ranks.

    python -m benchmarks.training

A step is everything the loop does for one batch (drawing views, embedding, objective, optimiser, writing), divided by
the encoder's bare forward and backward on the same tensor; medians of calls interleaved in one process. Memory is the
growth of a new process's peak.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.timing import interleaved
from manyviews.data import load_dataset
from manyviews.training import Config, Run
from manyviews.training.journal import Journal
from manyviews.training.loop import Training
from manyviews.training.setup import built, fitted, launched

BAR = 1.15
BASE = Config(batch_size=128, views=4, epochs=1000, held_out=0, eval_every=10**9, save_minutes=0.0, probe=False)
console = Console(width=110)


def training_of(config: Config, folder: str) -> Training:
    photos = load_dataset("photos")
    config = fitted(config, photos, 1)
    run = Run.create(Path(folder) / "run", config, overwrite=True)
    return Training(
        run, photos, *built(config, photos), launched(config), Journal(run.path / "log.txt", silent=False, quiet=True)
    )


def whole_step(training: Training) -> Callable[[], None]:
    """One round of the loop at each call."""

    def stream() -> Iterator[None]:
        for epoch in range(training.config.epochs):
            for views, index in training.batches(epoch):
                row = training.step(views, index)
                training.step_number += 1
                training.write({"step": training.step_number, "epoch": epoch, **row})
                yield

    training.journal.begin(training.steps, 0)
    steps = stream()
    return lambda: next(steps)


def bare_step(training: Training) -> Callable[[], None]:
    encoder = built(training.config, training.data)[0].encoder
    tensor = next(training.batches(0))[0].flatten(0, 1)

    def step() -> None:
        encoder(tensor).sum().backward()
        encoder.zero_grad()

    return step


def time_of_a_step() -> list[str]:
    table = Table(title="a whole step / the encoder's bare forward and backward (128 instances, 4 views at 32)")
    for column in ("encoder", "threads", "bare ms", "whole ms", "ratio", "bar"):
        table.add_column(column, justify="left" if column == "encoder" else "right")
    missed = []
    for encoder, seconds, all_threads in (("resnet-small", 40.0, (1, 2)), ("resnet18", 1.0, (2,))):
        for threads in all_threads:
            torch.set_num_threads(threads)
            with tempfile.TemporaryDirectory() as folder:
                training = training_of(replace(BASE, encoder=encoder), folder)
                took = interleaved({"bare": bare_step(training), "whole": whole_step(training)}, seconds)
            ratio = took["whole"] / took["bare"]
            cells = (f"{took['bare'] * 1e3:.0f}", f"{took['whole'] * 1e3:.0f}", f"{ratio:.3f}", f"{BAR}")
            table.add_row(encoder, str(threads), *cells)
            if ratio > BAR:
                missed.append(f"{encoder}, {threads} threads: {ratio:.3f}")
    console.print(table)
    return missed


def _peak(micro_batch: int | None, batch_size: int) -> float:
    """Megabytes that one step adds to the peak of this process."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        training = training_of(replace(BASE, batch_size=batch_size, micro_batch=micro_batch), folder)
        views, index = next(training.batches(0))
        before = _high_water()
        training.step(views, index)
        return (_high_water() - before) / 1024


def _high_water() -> int:
    """Kilobytes; `resource` would tell the parent's peak too."""
    return int(re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[0])


def memory() -> None:
    table = Table(title="memory of a step beyond the views, resnet-small, 4 views at 32, MB")
    table.add_column("instances")
    pieces = (16, 32, 64, None)
    for piece in pieces:
        table.add_column("whole batch" if piece is None else f"--micro-batch {piece}", justify="right")
    for size in (128, 256, 512):
        cells = []
        for piece in pieces:
            with get_context("spawn").Pool(1) as pool:
                cells.append(f"{pool.apply(_peak, (piece, size)):.0f}")
        table.add_row(str(size), *cells)
    console.print(table)


def ranks() -> None:
    table = Table(title="images a second, the default recipe (each image is 4 views)")
    table.add_column("ranks x threads")
    table.add_column("instances/s", justify="right")
    for count, threads in ((1, 1), (1, 2), (2, 1)):
        with tempfile.TemporaryDirectory() as folder:
            many = f"torch.distributed.run --standalone --nproc-per-node {count} -m".split() if count > 1 else []
            flags = f"--epochs 3 --no-probe --threads {threads} --eval-every 1000 -o {folder}/run".split()
            command = [sys.executable, "-m", *many, "manyviews", "train", *flags]
            subprocess.run(command, check=True, capture_output=True)
            rates = re.findall(r"([\d,]+) instances/s", (Path(folder) / "run" / "log.txt").read_text())
        table.add_row(f"{count} x {threads}", rates[-1])
    console.print(table)


def main() -> None:
    missed = time_of_a_step()
    memory()
    ranks()
    console.print("\n".join(["bars missed:", *missed]) if missed else "all bars met")


if __name__ == "__main__":
    main()
