"""Run functions on several ranks of a gloo group, each in a process."""

import os
import tempfile
import warnings
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch import distributed as dist
from torch import multiprocessing


class RankPool:
    """A group of `world` processes that run one function after another; use it as a context."""

    def __init__(self, world: int) -> None:
        self.world = world

    def __enter__(self) -> "RankPool":
        self.folder = tempfile.TemporaryDirectory()
        context = multiprocessing.get_context("spawn")
        pipes = [context.Pipe() for _ in range(self.world)]
        self.pipes = [ours for ours, _ in pipes]
        self.processes = [
            context.Process(target=_serve, args=(rank, self.world, theirs, Path(self.folder.name)), daemon=True)
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for process, (_, theirs) in zip(self.processes, pipes, strict=True):
            process.start()
            theirs.close()
        return self

    def run(self, work: Callable[[int, int], object]) -> list:
        """Return the result of `work(rank, world)` of each rank."""
        for pipe in self.pipes:
            pipe.send(work)
        for rank, pipe in enumerate(self.pipes):
            assert pipe.poll(120), f"rank {rank} has not answered for two minutes"
            try:
                pipe.recv()
            except EOFError:
                self.processes[rank].join(10)
                raise AssertionError(f"rank {rank} exited with {self.processes[rank].exitcode}") from None
        return [torch.load(f"{self.folder.name}/{rank}.pt", weights_only=False) for rank in range(self.world)]

    def __exit__(self, *_: object) -> None:
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.join(30)
            process.kill()
        self.folder.cleanup()


def _serve(rank: int, world: int, pipe: Connection, folder: Path) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", f"file://{folder}/rendezvous", timedelta(seconds=60), world_size=world, rank=rank)
    while True:
        try:
            work = pipe.recv()
        except EOFError:
            break
        torch.save(work(rank, world), folder / f"{rank}.pt")
        pipe.send(None)
    dist.destroy_process_group()
