"""The memory budget of every reader of untrusted files.

A small file can ask for any amount of memory: by compression, by lists that hold the same list many times, by a header
that claims a large shape. A reader counts what it is about to hold, as often as it is held, and stops before it takes
more than the budget.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from pathlib import Path

MAX_MEMORY_SHARE = 0.5
"""Largest share of the memory that one file may take."""
MAX_EXPANSION = 200
"""Largest ratio of memory to the size of the file."""
MIN_BUDGET_BYTES = 2**28
"""Memory that any file may take, however small it is."""
UNKNOWN_MEMORY_BYTES = 2**33
"""Assumed where the system does not report its memory."""


class BudgetError(ValueError):
    """A file would take more memory than its budget."""


@cache
def memory_bytes() -> int:
    """Memory of the machine, or the limit of the control group or of the address space if that is smaller."""
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
    """The most bytes that any file may take on this machine."""
    return int(MAX_MEMORY_SHARE * memory_bytes())


class Budget:
    """Counts the memory that reading one file of `size` bytes takes.

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
        """Count bytes that are about to be held.

        Raises:
            BudgetError: the file would exceed its budget.
        """
        self.left -= count
        if self.left < 0:
            raise BudgetError(
                f"{self.name}, of {self.size:,} bytes, would take more than {self.bytes:,} bytes of memory (at most "
                f"{MAX_MEMORY_SHARE:.0%} of the machine's, and {MAX_EXPANSION} times the file): if you trust it, save "
                "it in parts and without compression"
            )
