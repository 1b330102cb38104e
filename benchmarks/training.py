"""Cost of training in addition to the encoder: time of a step, gradient caching, two ranks.

A step is everything the loop does for one batch: making views, embedding, loss, optimizer, logging. Its baseline is
only the encoder's forward and backward pass on the same tensor.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.queues import Queue
from pathlib import Path

import torch
from torch import distributed as dist

from benchmarks.losses import D, make_embeddings, make_gradient_function
from benchmarks.measure import (
    Row,
    make_memory_row,
    make_time_row,
    read_peak_memory,
    run_in_new_process,
    time_interleaved,
)
from manyviews.data import load_dataset
from manyviews.losses import get_loss
from manyviews.runs import Run
from manyviews.training import RECIPES, Config, Precision, Trainer, build_loss, create_fabric, resolve_task
from manyviews.training.step_progress import StepProgress
from manyviews.utils import keep_freed_memory

BASE = Config(
    batch_size=128,
    views=4,
    epochs=1000,
    monitor_size=0,
    monitor_every=10**9,
    checkpoint_every_minutes=0.0,
    evaluate_at_end=False,
    precision="32",
)


PRECISIONS: tuple[Precision, ...] = ("32", "bf16-mixed")
MAX_STEP_RATIOS: dict[Precision, float] = {"32": 1.08, "bf16-mixed": 1.10}
"""What views, head, loss and optimizer may add; they compute in 32 bits also where the encoder does not."""


def measure(quick: bool) -> Iterator[Row]:
    for precision in PRECISIONS:
        yield measure_step_time(16 if quick else 128, precision, seconds=0.1 if quick else 20.0)
    yield from measure_precision(16 if quick else 128, seconds=0.1 if quick else 20.0)
    yield measure_grad_cache_time(16 if quick else 128, seconds=0.1 if quick else 15.0)
    yield measure_monitor_time(seconds=0.1 if quick else 30.0)
    for instances in (32,) if quick else (256, 512):
        chunk = instances // 2 if quick else 32
        cached, full = (run_in_new_process(measure_step_memory, size, instances) for size in (chunk, None))
        workload = f"memory of a step, `--grad-cache-chunk {chunk}`, {instances} instances"
        yield make_memory_row("training", workload, "the full batch at once", cached, full)
    yield from measure_two_ranks(64 if quick else 2048, seconds=0.1 if quick else 15.0)


def build_trainer(config: Config, folder: str) -> Trainer:
    task = resolve_task(config, load_dataset("photos"), 1)
    run = Run.create(Path(folder) / "run", task.config, overwrite=True)
    return Trainer(run, task, task.build_model(), build_loss(task.config), create_fabric(config))


def make_step_function(trainer: Trainer) -> Callable[[], None]:
    """A function that does one step of the training loop at each call."""

    def iterate_steps() -> Iterator[None]:
        for epoch in range(trainer.config.epochs):
            for batch in trainer.iterate_batches(epoch):
                metrics = trainer.step(batch)
                trainer.step_number += 1
                trainer.after_step({"step": trainer.step_number, "epoch": epoch, **metrics})
                yield

    trainer.progress = StepProgress(trainer.total_steps, 0)
    steps = iterate_steps()
    return lambda: next(steps)


def make_encoder_function(trainer: Trainer) -> Callable[[], None]:
    """A function that does only the encoder's forward and backward pass at each call."""
    encoder = trainer.task.build_model().encoder.get_encoder("image")
    (group,) = next(trainer.iterate_batches(0)).groups

    def step() -> None:
        with trainer.fabric.autocast():
            h = encoder(group.values)
        h.sum().backward()
        encoder.zero_grad()

    return step


@contextmanager
def make_trainers(*configs: Config) -> Iterator[list[Trainer]]:
    with ExitStack() as stack:
        stack.enter_context(keep_freed_memory())  # as in a training
        yield [build_trainer(config, stack.enter_context(tempfile.TemporaryDirectory())) for config in configs]


def describe_views(instances: int) -> str:
    return f"{instances} instances, 4 views at 32"


def measure_step_time(instances: int, precision: Precision, seconds: float) -> Row:
    with make_trainers(replace(BASE, batch_size=instances, precision=precision)) as (trainer,):
        functions = {"encoder": make_encoder_function(trainer), "full": make_step_function(trainer)}
        times = time_interleaved(functions, seconds)
    workload, baseline = (
        f"a full step, precision {precision}, {describe_views(instances)}",
        "encoder's bare forward and backward",
    )
    bar = MAX_STEP_RATIOS[precision]
    return make_time_row("training", workload, baseline, times["full"], times["encoder"], max_ratio=bar)


def measure_precision(instances: int, seconds: float) -> Iterator[Row]:
    """Compare steps in bfloat16 and in 32 bits; how much faster they are depends on the device."""
    base = replace(BASE, batch_size=instances)
    large = replace(BASE, batch_size=max(2, instances // 4), encoder=("resnet18",), stem="small")
    for config in (base, large):
        with make_trainers(*(replace(config, precision=precision) for precision in PRECISIONS)) as trainers:
            functions = dict(zip(PRECISIONS, map(make_step_function, trainers), strict=True))
            times = time_interleaved(functions, seconds)
        assert config.batch_size is not None
        workload = f"a full step of {config.encoder[0]}, precision {PRECISIONS[1]}, {describe_views(config.batch_size)}"
        yield make_time_row("training", workload, "precision 32", times[PRECISIONS[1]], times[PRECISIONS[0]])


def measure_grad_cache_time(instances: int, seconds: float) -> Row:
    chunk, full = instances // 4, replace(BASE, batch_size=instances)
    with make_trainers(full, replace(full, grad_cache_chunk=chunk)) as trainers:
        functions = dict(zip(("full", "cached"), map(make_step_function, trainers), strict=True))
        times = time_interleaved(functions, seconds)
    workload = f"a step with `--grad-cache-chunk {chunk}`"
    return make_time_row("training", workload, "a step without", times["cached"], times["full"])


def measure_monitor_time(seconds: float) -> Row:
    """Compare a run of the demo with the same run without monitoring, from the time of one of each."""
    settings = {name: getattr(BASE, name) for name in ("checkpoint_every_minutes", "evaluate_at_end", "precision")}
    config = replace(RECIPES["demo"], **settings)
    with make_trainers(config) as (trainer,):
        steps, interval = trainer.total_steps, trainer.choose_monitor_interval(trainer.total_steps)
        count = math.ceil(steps / interval)
        functions = {
            "step": lambda: trainer.step(next(trainer.iterate_batches(0))),
            "monitor": lambda: trainer.task.monitor(trainer.model),
        }
        times = time_interleaved(functions, seconds)
    without = [steps * step for step in times["step"]]
    monitored = [seconds + count * monitor for seconds, monitor in zip(without, times["monitor"], strict=True)]
    workload = f"a run of {steps} steps that is monitored {count} times, the demo"
    return make_time_row("training", workload, "the run without monitoring", monitored, without, max_ratio=1.03)


def measure_step_memory(grad_cache_chunk: int | None, batch_size: int) -> float:
    """MB that one step adds to the peak memory of this process."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        config = replace(BASE, batch_size=batch_size, grad_cache_chunk=grad_cache_chunk)
        trainer = build_trainer(config, folder)
        batch = next(trainer.iterate_batches(0))
        before = read_peak_memory()
        trainer.step(batch)
        return read_peak_memory() - before


def measure_two_ranks(instances: int, seconds: float) -> Iterator[Row]:
    """Compare the loss of a batch shared by two ranks with one rank that computes all of it; one thread per rank."""
    context = get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        results: Queue[dict[str, dict[str, list[float]]]] = context.Queue()
        ranks = [context.Process(target=run_rank, args=(r, folder, instances, seconds, results)) for r in (0, 1)]
        for process in ranks:
            process.start()
        times = results.get(timeout=120 + 3 * seconds)
        for process in ranks:
            process.join()
    for name, seconds_by_mode in times.items():
        workload, baseline = f"`{name}`, {instances:,} x 4 on two ranks", "the full batch on one rank"
        row = make_time_row("training", workload, baseline, seconds_by_mode["shared"], seconds_by_mode["alone"])
        yield replace(row, threads=1)


def run_rank(rank: int, folder: str, instances: int, seconds: float, results: Queue[object]) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", f"file://{folder}/rendezvous", timedelta(seconds=60), world_size=2, rank=rank)
    times = {}
    for name in ("mv-infonce", "mv-dhel"):
        full, half = make_embeddings(instances, 4), torch.randn(instances // 2, 4, D, requires_grad=True)
        functions = {
            "alone": make_gradient_function(get_loss(name, gather_distributed=False), full),
            "shared": make_gradient_function(get_loss(name), half),
        }
        # A fixed number of rounds, because the ranks wait for each other.
        times[name] = time_interleaved(functions, 0.0, min_rounds=max(5, int(seconds)))
    if rank == 0:
        results.put(times)
    dist.destroy_process_group()
