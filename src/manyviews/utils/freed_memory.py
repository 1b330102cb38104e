"""`keep_freed_memory`: a training allocates and frees the same large tensors at each step."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

# Parameters of mallopt in glibc.
TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4
UNLIMITED = -1
LARGEST_THRESHOLD = 32 << 20
"""The threshold that glibc's own adaptation ends at in a process with large tensors."""
DEFAULT_MMAP_MAX = 65536


@contextmanager
def keep_freed_memory() -> Iterator[None]:
    """Within this context, memory that tensors on the CPU free stays in the process, for the next ones.

    The C library of Linux returns large blocks to the system at once, and the system must zero them before the next
    step. Peak memory does not change. Other systems, and other allocators, are left as they are.

    Examples:
        >>> import torch
        >>> with keep_freed_memory():
        ...     total = sum(torch.ones(1_000_000).sum().item() for _ in range(3))
        >>> total
        3000000.0
    """
    libc = _load_glibc()
    if libc is None:
        yield
        return
    libc.mallopt(MMAP_MAX, 0)
    libc.mallopt(TRIM_THRESHOLD, UNLIMITED)
    try:
        yield
    finally:
        libc.mallopt(MMAP_MAX, DEFAULT_MMAP_MAX)
        libc.mallopt(MMAP_THRESHOLD, LARGEST_THRESHOLD)
        libc.mallopt(TRIM_THRESHOLD, 2 * LARGEST_THRESHOLD)
        libc.malloc_trim(0)


@cache
def _load_glibc() -> Any:
    """Load the C library, or return None if it is not glibc."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return libc if all(hasattr(libc, name) for name in ("gnu_get_libc_version", "mallopt", "malloc_trim")) else None
