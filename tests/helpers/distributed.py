"""Run a function on several ranks of a gloo group, each in a process."""

import os
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed as dist
from torch import multiprocessing


def on_ranks(world: int, work: Callable[..., object], folder: Path, *args: object) -> list:
    """Return the result of `work(rank, world, *args)` of each rank."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_run_rank, args=(r, world, work, folder, args)) for r in range(world)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0, f"a rank exited with {process.exitcode}"
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(world)]


def _run_rank(rank: int, world: int, work: Callable[..., object], folder: Path, args: tuple) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", f"file://{folder}/rendezvous", timedelta(seconds=60), world_size=world, rank=rank)
    torch.save(work(rank, world, *args), folder / f"{rank}.pt")
    dist.destroy_process_group()
