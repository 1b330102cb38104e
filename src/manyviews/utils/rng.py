"""Counter-based random numbers: functions of a key, not of a state.

The key (seed, epoch, instance, view, draw) is hashed with the finalizer of SplitMix64. Views therefore do not depend on
the order, the batch split, the number of workers or ranks, the device, or on resuming.
"""

import math
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

EVAL_EPOCH = 2**31 - 1
"""Reserved epoch key, so that evaluation views are fixed."""
FEISTEL_ROUNDS = 6


_STEP = -7046029254386353131  # 0x9E3779B97F4A7C15, the odd integer nearest 2^64 / golden ratio
_FIRST = -4658895280553007687  # 0xBF58476D1CE4E5B9
_SECOND = -7723592293110705685  # 0x94D049BB133111EB


def _shift_right_logical(x: Tensor, bits: int) -> Tensor:
    """Shift right without sign extension (torch's >> is arithmetic)."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix_splitmix64(x: Tensor) -> Tensor:
    x = (x ^ _shift_right_logical(x, 30)) * _FIRST
    x = (x ^ _shift_right_logical(x, 27)) * _SECOND
    return x ^ _shift_right_logical(x, 31)


def hash_key(*key: int | Tensor) -> Tensor:
    """Return 64 random bits per key; the parts of a key are ints or int64 tensors that broadcast."""
    ints: list[Any] = list(takewhile(lambda part: isinstance(part, int), key))
    state: Any = _hash_ints(*ints)
    for part in key[len(ints) :]:
        state = _mix_splitmix64((state ^ (_wrap(part) if isinstance(part, int) else part)) + _STEP)
    return state if isinstance(state, Tensor) else torch.tensor(state)


def _hash_ints(*key: int) -> int:
    """Hash a key of ints, without the cost of operations on small tensors."""
    state = 0
    for part in key:
        x = ((state ^ part) + _STEP) % 2**64
        x = (x ^ x >> 30) * _FIRST % 2**64
        x = (x ^ x >> 27) * _SECOND % 2**64
        state = x ^ x >> 31
    return _wrap(state)


def _wrap(number: int) -> int:
    """Wrap an integer to the range of int64."""
    return (number + 2**63) % 2**64 - 2**63


def draw_uniform(*key: int | Tensor) -> Tensor:
    """Return a uniform float32 number in [0, 1) per key."""
    return _shift_right_logical(hash_key(*key), 40).to(torch.float32) * 2.0**-24


def draw_normal(*key: int | Tensor) -> Tensor:
    """Return a standard normal float32 number per key, by the method of Box and Muller.

    Examples:
        >>> x = draw_normal(0, torch.arange(100_000))
        >>> round(x.mean().item(), 1), round(x.std().item(), 1)
        (0.0, 1.0)
    """
    bits = hash_key(*key)
    radius = (_shift_right_logical(bits, 40) + 1).to(torch.float32) * 2.0**-24  # in (0, 1]
    angle = (bits & ((1 << 24) - 1)).to(torch.float32) * (2 * math.pi * 2.0**-24)
    return radius.log_().mul_(-2).sqrt_().mul_(angle.cos_())


def draw_permutation(length: int, *key: int) -> Tensor:
    """Return a permutation of 0..length-1 that is a function of the key."""
    return hash_key(*key, torch.arange(length)).argsort(stable=True)


def permute(position: Tensor, length: int, *key: int) -> Tensor:
    """Map positions in 0..length-1 to indices by a permutation that is a function of the key, in constant memory.

    A Feistel network permutes the numbers of an even number of bits; those beyond `length` are permuted again until
    they are below it (cycle walking; less than four times on average).

    Examples:
        >>> permute(torch.arange(5), 5, 0).sort().values
        tensor([0, 1, 2, 3, 4])
    """
    half_bits = max(1, ((length - 1).bit_length() + 1) // 2)
    mask, index = (1 << half_bits) - 1, position.clone()
    pending = torch.ones_like(index, dtype=torch.bool)
    while pending.any():
        left, right = index[pending] >> half_bits, index[pending] & mask
        for round_number in range(FEISTEL_ROUNDS):
            left, right = right, left ^ (hash_key(*key, round_number, right) & mask)
        index[pending] = left << half_bits | right
        pending = index >= length
    return index
