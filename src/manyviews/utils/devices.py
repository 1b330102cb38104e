"""The machine: choice of the device, the precision and the number of CPU threads, and how much memory is left."""

import math
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import torch

from manyviews.utils.untrusted import get_machine_memory

Device = Literal["auto", "cpu", "cuda", "mps"]


def resolve_device(name: Device) -> torch.device:
    """Return the device of this name; "auto" prefers a GPU."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name not in ("auto", *available):
        raise ValueError(f"device must be one of auto, {', '.join(available)}, got {name!r}")
    if name == "auto":
        return torch.device(next(kind for kind, is_available in available.items() if is_available))
    if not available[name]:
        raise ValueError(f"device {name} is not available on this machine: use auto")
    return torch.device(name)


CPU_INFO = Path("/proc/cpuinfo")
NATIVE_BFLOAT16 = {"avx512_bf16", "amx_bf16"}
"""CPU features with which bfloat16 is faster than float32. That of ARM is not one of them: oneDNN computes some
operations of a backward pass there with slow reference code."""


def has_native_bfloat16(device: torch.device) -> bool:
    """Return whether a device, or every GPU if it is one, computes in bfloat16 faster than in float32.

    That torch supports bfloat16 does not say so: it emulates it on other devices, more slowly.
    """
    if device.type == "cuda":
        gpus = range(torch.cuda.device_count())
        return bool(torch.version.hip) or all(torch.cuda.get_device_capability(gpu) >= (8, 0) for gpu in gpus)
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    return not NATIVE_BFLOAT16.isdisjoint(_list_cpu_features())


def _list_cpu_features() -> set[str]:
    """Return the names of the features of this CPU; none if they are unknown (older torch, not on Linux)."""
    if hasattr(torch.cpu, "get_capabilities"):  # not in torch 2.4
        return {name for name, value in torch.cpu.get_capabilities().items() if value is True}
    with suppress(OSError):
        for line in CPU_INFO.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "flags":
                return set(value.split())
    return set()


CGROUP_ROOT = Path("/sys/fs/cgroup")
CGROUP_MEMBERSHIP = Path("/proc/self/cgroup")
MEMORY_INFO = Path("/proc/meminfo")
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def choose_threads(processes: int = 1, *, small: bool = False) -> int:
    """Choose the number of CPU threads of each of several processes that share the CPUs.

    It is 1 for encoders so small that several threads are slower than one, and else at most OMP_NUM_THREADS and
    MKL_NUM_THREADS.
    """
    if small:
        return 1
    values = [os.environ.get(name, "").partition(",")[0].strip() for name in THREAD_VARIABLES]
    limits = [int(value) for value in values if value.isdigit() and int(value)]
    return min([max(1, count_cpus() // processes), *limits])


def describe_machine() -> str:
    """Describe the processor of this machine: its model, architecture and number of cores."""
    lines: list[str] = []
    with suppress(OSError):
        lines = CPU_INFO.read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{models[0] if models else platform.processor()}, {platform.machine()}, {os.cpu_count()} cores"


def count_cpus() -> int:
    """Return the number of CPUs of this process: its affinity, limited by the quota of its cgroups (rounded down)."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min(cpus, read_cpu_quota())))


def read_cpu_quota() -> float:
    """Return the CPU quota of the cgroups (version 1 or 2) of this process and their parents; inf without a quota."""
    quotas, lines = [math.inf], []
    with suppress(OSError):
        lines = CGROUP_MEMBERSHIP.read_text().splitlines()
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = CGROUP_ROOT / "cpu" if controllers else CGROUP_ROOT
        folder = root / path.lstrip("/")
        for parent in (folder, *folder.parents[: len(folder.parts) - len(root.parts)]):
            # In a container the path may be that of the host: a missing folder has no quota, like `max` or -1.
            with suppress(OSError, ValueError, ZeroDivisionError):
                names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
                amount, period = map(int, " ".join((parent / name).read_text() for name in names).split())
                quotas += [amount / period] if amount > 0 else []
    return min(quotas)


def get_available_memory() -> int:
    """Return the bytes of memory that this process can still use, of the machine and of its cgroup."""
    limits = [get_machine_memory()]
    with suppress(OSError, ValueError, StopIteration):
        lines = MEMORY_INFO.read_text().splitlines()
        limits.append(1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")))
    with suppress(OSError, ValueError):  # no such group, or no limit ("max")
        total, used = (int((CGROUP_ROOT / name).read_text()) for name in ("memory.max", "memory.current"))
        limits.append(total - used)
    return max(0, min(limits))


@contextmanager
def limit_threads(count: int) -> Iterator[None]:
    """Set the number of torch threads within the context."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
