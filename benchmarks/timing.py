"""Fair times on a noisy machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)


def interleaved(work: dict[Name, Callable[[], object]], seconds: float) -> dict[Name, float]:
    """Median seconds of each function, called in turns for about so long, at least five times."""
    times: dict[Name, list[float]] = {name: [] for name in work}
    for function in work.values():
        function()
    end, rounds = time.perf_counter() + seconds, 0
    while rounds < 5 or (time.perf_counter() < end and rounds < 200):
        rounds += 1
        for name, function in work.items():
            start = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(taken) for name, taken in times.items()}
