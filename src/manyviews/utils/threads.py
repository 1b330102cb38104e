"""How many CPU threads a process takes: no more than it may use, and one where more would be slower."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def choose_threads(processes: int = 1, *, small: bool = False) -> int:
    """CPU threads for each of some processes on this machine.

    Args:
        processes: how many share the CPUs.
        small: the encoders are so small that threads wait for each other longer than they compute.

    Returns:
        one for small encoders; else the CPUs divided among the processes, at most OMP_NUM_THREADS and MKL_NUM_THREADS,
        which count for each process.
    """
    if small:
        return 1
    values = [os.environ.get(name, "").partition(",")[0].strip() for name in VARIABLES]
    limits = [int(value) for value in values if value.isdigit() and int(value)]
    return min([max(1, count_cpus() // processes), *limits])


def count_cpus() -> int:
    """CPUs that this process may use: those of its affinity, at most the quota of its cgroups (rounded down)."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min(cpus, read_cpu_quota())))


def read_cpu_quota() -> float:
    """CPUs that the cgroups of this process and those above them grant (version 1 or 2); infinite without a quota."""
    try:
        lines = MEMBERSHIP.read_text().splitlines()
    except OSError:
        return math.inf
    quota = math.inf
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = CGROUPS / "cpu" if controllers else CGROUPS
        folder = root / path.lstrip("/")
        # A container may see its own cgroup as the root, and its path from outside: what is not there grants all.
        for place in (folder, *folder.parents):
            quota = min(quota, _read_quota(place, version=1 if controllers else 2))
            if place == root:
                break
    return quota


def _read_quota(folder: Path, version: int) -> float:
    try:
        if version == 2:
            amount, period = (folder / "cpu.max").read_text().split()
        else:
            amount, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        # `max` in version 2 and -1 in version 1 stand for no quota.
        return int(amount) / int(period) if int(amount) > 0 else math.inf
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf


@contextmanager
def limit_threads(count: int) -> Iterator[None]:
    """Let torch use so many threads in here."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
