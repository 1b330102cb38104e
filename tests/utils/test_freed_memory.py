"""Memory that a training frees stays in the process until the training ends."""

import re
import sys
from pathlib import Path

import pytest
import torch

from manyviews.utils import keep_freed_memory
from manyviews.utils.freed_memory import _load_glibc


def read_resident_megabytes() -> int:
    return int(re.findall(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())[0]) // 1024


@pytest.mark.skipif(sys.platform != "linux" or _load_glibc() is None, reason="for glibc")
def test_freed_memory_stays_within_the_context_only() -> None:
    with keep_freed_memory():
        torch.ones(1000)  # what earlier tests have freed is returned at the end of the context
    before = read_resident_megabytes()
    with keep_freed_memory():
        tensors = [torch.ones(4 << 20) for _ in range(12)]  # 16 MB each
        del tensors
        inside = read_resident_megabytes()
    after = read_resident_megabytes()
    assert inside > before + 150
    assert after < before + 50
