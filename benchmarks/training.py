"""What training costs beyond the encoder: time of a step, gradient caching, two ranks.

A step is everything the loop does for one batch (drawing views, embedding, objective, optimiser, writing), beside the
encoder's bare forward and backward on the same tensor.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.queues import Queue
from pathlib import Path

import torch
from torch import distributed as dist

from benchmarks.losses import D, embeddings, gradient
from benchmarks.measure import Row, high_water, in_new_process, interleaved, timed, weighed
from manyviews.data import load_dataset
from manyviews.losses import get_loss
from manyviews.runs import Run
from manyviews.training import Config, Trainer, build_loss, create_fabric, resolve_task
from manyviews.training.step_progress import StepProgress

BASE = Config(
    batch_size=128,
    views=4,
    epochs=1000,
    monitor_size=0,
    monitor_every=10**9,
    checkpoint_every_minutes=0.0,
    evaluate_at_end=False,
)


def measure(quick: bool) -> Iterator[Row]:
    size = 16 if quick else 128
    yield from time_of_a_step(size, seconds=0.1 if quick else 30.0)
    for instances in (32,) if quick else (256, 512):
        piece = instances // 2 if quick else 32
        ours, whole = (in_new_process(step_memory, part, instances) for part in (piece, None))
        work = f"memory of a step, `--grad-cache-chunk {piece}`, {instances} instances"
        yield weighed("training", work, "the whole batch at once", ours, whole)
    yield from two_ranks(64 if quick else 2048, seconds=0.1 if quick else 15.0)


def training_of(config: Config, folder: str) -> Trainer:
    photos = load_dataset("photos")
    task = resolve_task(config, photos, 1)
    run = Run.create(Path(folder) / "run", task.config, overwrite=True)
    return Trainer(run, task, task.build_model(), build_loss(task.config), create_fabric(config))


def whole_step(training: Trainer) -> Callable[[], None]:
    """One round of the loop at each call."""

    def stream() -> Iterator[None]:
        for epoch in range(training.config.epochs):
            for views, index in training.iterate_batches(epoch):
                row = training.step(views, index)
                training.step_number += 1
                training.after_step({"step": training.step_number, "epoch": epoch, **row})
                yield

    training.progress = StepProgress(training.total_steps, 0)
    steps = stream()
    return lambda: next(steps)


def bare_step(training: Trainer) -> Callable[[], None]:
    encoder = training.task.build_model().encoder
    tensor = next(training.iterate_batches(0))[0].flatten(0, 1)

    def step() -> None:
        encoder(tensor).sum().backward()
        encoder.zero_grad()

    return step


def time_of_a_step(size: int, seconds: float) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as plain, tempfile.TemporaryDirectory() as cached:
        training = training_of(replace(BASE, batch_size=size), plain)
        pieces = training_of(replace(BASE, batch_size=size, grad_cache_chunk=size // 4), cached)
        work = {"bare": bare_step(training), "whole": whole_step(training), "cached": whole_step(pieces)}
        took = interleaved(work, seconds)
    name = f"a whole step, {size} instances, 4 views at 32"
    yield timed("training", name, "encoder's bare forward and backward", took["whole"], took["bare"], bar=1.15)
    name = f"a step with `--grad-cache-chunk {size // 4}`"
    yield timed("training", name, "a step without", took["cached"], took["whole"])


def step_memory(micro_batch: int | None, batch_size: int) -> float:
    """Megabytes that one step adds to the peak of this process."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        training = training_of(replace(BASE, batch_size=batch_size, grad_cache_chunk=micro_batch), folder)
        views, index = next(training.iterate_batches(0))
        before = high_water()
        training.step(views, index)
        return high_water() - before


def two_ranks(instances: int, seconds: float) -> Iterator[Row]:
    """An objective of the whole batch, shared by two ranks, beside one rank that does all of it; a thread each."""
    context = get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        answers: Queue[dict[str, dict[str, list[float]]]] = context.Queue()
        ranks = [context.Process(target=rank, args=(r, folder, instances, seconds, answers)) for r in (0, 1)]
        for process in ranks:
            process.start()
        took = answers.get(timeout=120 + 3 * seconds)
        for process in ranks:
            process.join()
    for name, times in took.items():
        work = f"`{name}`, {instances:,} x 4 on two ranks"
        row = timed("training", work, "one rank, all of it", times["shared"], times["alone"])
        yield replace(row, threads=1)


def rank(number: int, folder: str, instances: int, seconds: float, answers: Queue[object]) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", f"file://{folder}/meet", timedelta(seconds=60), world_size=2, rank=number)
    took = {}
    for name in ("mv-infonce", "mv-dhel"):
        whole, half = embeddings(instances, 4), torch.randn(instances // 2, 4, D, requires_grad=True)
        alone = gradient(get_loss(name, gather_distributed=False), whole)
        # As many rounds on both ranks: they wait for each other.
        work = {"alone": alone, "shared": gradient(get_loss(name), half)}
        took[name] = interleaved(work, 0.0, rounds=max(5, int(seconds)))
    if number == 0:
        answers.put(took)
    dist.destroy_process_group()
