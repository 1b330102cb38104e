"""Fair numbers on a noisy machine: calls in turns, ratios of medians, quartiles of the rounds' ratios."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import torch

Name = TypeVar("Name", bound=Hashable)
Result = TypeVar("Result")


@dataclass(frozen=True)
class Row:
    """Some work of ours and what it is beside. The ratio is ours / theirs: the less, the better."""

    room: str
    work: str
    beside: str
    threads: int
    unit: str
    ours: float
    theirs: float
    ratio: float
    low: float | None = None
    """First quartile of the ratios of single rounds; None for memory, which is measured once."""
    high: float | None = None
    bar: float | None = None
    """What the ratio must not pass."""

    @property
    def missed(self) -> bool:
        return self.bar is not None and self.ratio > self.bar


def timed(
    room: str,
    work: str,
    beside: str,
    ours: list[float],
    theirs: list[float],
    *,
    times: tuple[float, float] = (1.0, 1.0),
    bar: float | None = None,
) -> Row:
    """A row from the seconds of two kinds of work, round by round, each done so many `times` in the real task."""
    ours, theirs = ([second * count for second in taken] for taken, count in zip((ours, theirs), times, strict=True))
    rounds = [a / b for a, b in zip(ours, theirs, strict=True)]
    low, _, high = statistics.quantiles(rounds, n=4)
    a, b = statistics.median(ours), statistics.median(theirs)
    return Row(room, work, beside, torch.get_num_threads(), "ms", a * 1e3, b * 1e3, a / b, low, high, bar)


def weighed(room: str, work: str, beside: str, ours: float, theirs: float, *, bar: float | None = None) -> Row:
    """A row from megabytes by which the peak grew; a page at least, so that there is a ratio."""
    ours, theirs = (max(amount, 4 / 1024) for amount in (ours, theirs))
    return Row(room, work, beside, torch.get_num_threads(), "MB", ours, theirs, ours / theirs, bar=bar)


def interleaved(work: dict[Name, Callable[[], object]], seconds: float, rounds: int = 5) -> dict[Name, list[float]]:
    """Seconds of each function, called in turns for about so long, at least so many times."""
    times: dict[Name, list[float]] = {name: [] for name in work}
    for function in work.values():
        function()
    end, done = time.perf_counter() + seconds, 0
    while done < rounds or (time.perf_counter() < end and done < 200):
        done += 1
        for name, function in work.items():
            start = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - start)
    return times


def high_water() -> float:
    """Largest resident memory of this process so far, MB (`resource` would tell the parent's too)."""
    return int(re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[0]) / 1024


def in_new_process(function: Callable[..., Result], *arguments: object) -> Result:
    """What the function returns in a process that has done nothing else."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)
