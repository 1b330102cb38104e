"""Random numbers that are functions of their key, not of when or where they are drawn.

A counter-based hash (the finaliser of SplitMix64) of (seed, epoch, instance, view, draw): the same views come
out for any order, batch split, number of workers or ranks, and device, and after a resumption.
"""

from __future__ import annotations

import torch
from torch import Tensor

_STEP = -7046029254386353131  # 0x9E3779B97F4A7C15, the odd integer nearest 2^64 / golden ratio
_FIRST = -4658895280553007687  # 0xBF58476D1CE4E5B9
_SECOND = -7723592293110705685  # 0x94D049BB133111EB


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Logical shift to the right (torch's keeps the sign)."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mixed(x: Tensor) -> Tensor:
    x = (x ^ _shifted(x, 30)) * _FIRST
    x = (x ^ _shifted(x, 27)) * _SECOND
    return x ^ _shifted(x, 31)


def hashed(*key: int | Tensor) -> Tensor:
    """64 bits for each key; the parts of a key are integers or int64 tensors that broadcast."""
    device = next((part.device for part in key if isinstance(part, Tensor)), None)
    state = torch.zeros((), dtype=torch.int64, device=device)
    for part in key:
        bits = (part + 2**63) % 2**64 - 2**63 if isinstance(part, int) else part  # 64 of them, with a sign
        state = _mixed((state ^ bits) + _STEP)
    return state


def uniform(*key: int | Tensor) -> Tensor:
    """Numbers in [0, 1), float32, for each key."""
    return _shifted(hashed(*key), 40).to(torch.float32) * 2.0**-24


def permutation(length: int, *key: int) -> Tensor:
    """An order of 0..length-1 that is a function of the key."""
    return hashed(*key, torch.arange(length)).argsort(stable=True)
