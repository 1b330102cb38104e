"""Robust measurements on a noisy machine: interleaved calls, ratios of medians, quartiles of the ratios per round."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import torch

Name = TypeVar("Name", bound=Hashable)
Result = TypeVar("Result")

PAGE_MB = 4 / 1024


@dataclass(frozen=True)
class Row:
    """A workload of manyviews and its baseline. The ratio is cost / baseline_cost: lower is better."""

    suite: str
    workload: str
    baseline: str
    threads: int
    unit: str
    cost: float
    baseline_cost: float
    ratio: float
    ratio_q1: float | None = None
    """First quartile of the ratios per round; None for memory, which is measured once."""
    ratio_q3: float | None = None
    max_ratio: float | None = None
    """Upper bound of the ratio; None if there is no bound."""

    @property
    def exceeds_max_ratio(self) -> bool:
        return self.max_ratio is not None and self.ratio > self.max_ratio


def make_time_row(
    suite: str,
    workload: str,
    baseline: str,
    seconds: list[float],
    baseline_seconds: list[float],
    *,
    repeats: tuple[float, float] = (1.0, 1.0),
    max_ratio: float | None = None,
) -> Row:
    """Make a row from the seconds per round of both.

    `repeats` are factors from the measured part to the full workload, for manyviews and for the baseline.
    """
    costs, baseline_costs = (
        [value * 1e3 * factor for value in values]
        for values, factor in zip((seconds, baseline_seconds), repeats, strict=True)
    )
    ratios = [a / b for a, b in zip(costs, baseline_costs, strict=True)]
    q1, _, q3 = statistics.quantiles(ratios, n=4)
    cost, baseline_cost = statistics.median(costs), statistics.median(baseline_costs)
    ratio = cost / baseline_cost
    return Row(suite, workload, baseline, torch.get_num_threads(), "ms", cost, baseline_cost, ratio, q1, q3, max_ratio)


def make_memory_row(
    suite: str,
    workload: str,
    baseline: str,
    megabytes: float,
    baseline_megabytes: float,
    *,
    max_ratio: float | None = None,
) -> Row:
    """Make a row from two increases of peak memory, each at least one page, so that the ratio is defined."""
    cost, baseline_cost = max(megabytes, PAGE_MB), max(baseline_megabytes, PAGE_MB)
    ratio = cost / baseline_cost
    return Row(
        suite, workload, baseline, torch.get_num_threads(), "MB", cost, baseline_cost, ratio, max_ratio=max_ratio
    )


def time_interleaved(
    functions: Mapping[Name, Callable[[], object]], seconds: float, min_rounds: int = 5
) -> dict[Name, list[float]]:
    """Call the functions in turns for about `seconds`, after one warm-up each; return the seconds of every call."""
    times: dict[Name, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        function()
    end, done = time.perf_counter() + seconds, 0
    while done < min_rounds or (time.perf_counter() < end and done < 200):
        done += 1
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - start)
    return times


def read_peak_memory() -> float:
    """Return the peak resident memory of this process in MB (`resource` would include the parent's)."""
    return int(re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[0]) / 1024


def run_in_new_process(function: Callable[..., Result], *arguments: object) -> Result:
    """Call a function in a new process, whose peak memory is not affected by earlier work."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)
