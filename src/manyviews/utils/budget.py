"""Memory budget for readers of untrusted files.

A small file can request any amount of memory: by compression, by nested references to the same list, or by a header
with a large shape. A reader counts every allocation before it is made, and stops before it exceeds the budget.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from pathlib import Path

MAX_MEMORY_SHARE = 0.5
"""Max fraction of the memory of the machine for one file."""
MAX_EXPANSION = 200
"""Max ratio of memory to file size."""
MIN_BUDGET_BYTES = 2**28
"""Memory that is allowed for any file, regardless of its size."""
UNKNOWN_MEMORY_BYTES = 2**33
"""Assumed memory where the system does not report it."""


class BudgetError(ValueError):
    """A file would take more memory than its budget."""


@cache
def memory_bytes() -> int:
    """Return the memory of the machine, or the limit of the cgroup or address space if it is smaller."""
    limits = []
    if hasattr(os, "sysconf"):
        import resource

        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        if (limit := resource.getrlimit(resource.RLIMIT_AS)[0]) != resource.RLIM_INFINITY:
            limits.append(limit)
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # no such group, or no limit ("max")
            limits.append(int((Path("/sys/fs/cgroup") / name).read_text()))
    return min(limits, default=UNKNOWN_MEMORY_BYTES)


def memory_share() -> int:
    """Return the max number of bytes for one file on this machine."""
    return int(MAX_MEMORY_SHARE * memory_bytes())


class Budget:
    """Counts the memory used to read one file of `size` bytes.

    Examples:
        >>> budget = Budget("features.npz", size=10_000)
        >>> budget.take(10**6)
        >>> budget.left == budget.bytes - 10**6
        True
    """

    def __init__(self, name: object, size: int) -> None:
        self.name, self.size = name, size
        self.bytes = min(memory_share(), max(MIN_BUDGET_BYTES, MAX_EXPANSION * size))
        self.left = self.bytes

    def take(self, count: int) -> None:
        """Count bytes before they are allocated.

        Raises:
            BudgetError: the file would exceed its budget.
        """
        self.left -= count
        if self.left < 0:
            raise BudgetError(
                f"{self.name}, of {self.size:,} bytes, would take more than {self.bytes:,} bytes of memory (at most "
                f"{MAX_MEMORY_SHARE:.0%} of the machine, and {MAX_EXPANSION} times the file size): if you trust the "
                "file, split it and save it without compression"
            )
