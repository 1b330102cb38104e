"""`EpochBatches`: the order of an epoch."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from manyviews.utils import permute

INSTANCES_AT_ONCE = 8192
"""Instances whose indices are computed at once: those of one batch take almost as long."""


def count_instances_per_batch(batch_size: int, views: int) -> int:
    """Return the instances per batch for a constant number of views per batch, rounded down (the paper's ablation).

    Examples:
        >>> count_instances_per_batch(256, views=4)
        64
    """
    if views < 2 or batch_size < 2 * views:
        raise ValueError(f"a batch of {batch_size} views is too small for two instances of {views} views")
    return batch_size // views


@dataclass(frozen=True)
class EpochBatches(Sequence[Tensor]):
    """The instance indices of each batch of an epoch; ranks share each batch evenly.

    The order is a function of (seed, epoch), computed for some batches at a time. The last incomplete batch is
    dropped.

    Examples:
        >>> [len(batch) for batch in EpochBatches(10, 4, seed=0, epoch=0)]
        [4, 4]
    """

    instances: int
    size: int
    seed: int
    epoch: int
    rank: int = 0
    ranks: int = 1

    def __post_init__(self) -> None:
        if self.size < 1 or not 0 <= self.rank < self.ranks:
            got = f"size {self.size} and rank {self.rank}"
            raise ValueError(f"expected size >= 1 and 0 <= rank < {self.ranks}, got {got}")
        if self.size > self.instances:
            raise ValueError(f"a batch of {self.size} is larger than the dataset of {self.instances} instances")
        if self.size % self.ranks:
            raise ValueError(f"a batch of {self.size} is not divisible by {self.ranks} ranks")

    def __len__(self) -> int:
        return self.instances // self.size

    def __getitem__(self, i: int) -> Tensor:  # type: ignore[override]
        if not 0 <= i < len(self):
            raise IndexError(f"there are {len(self)} batches, got {i}")
        count = max(1, INSTANCES_AT_ONCE // self.size)
        return _compute_indices(self, i // count * count, count)[i % count].clone()


@lru_cache(maxsize=2)
def _compute_indices(batches: EpochBatches, first: int, count: int) -> Tensor:
    """Return this rank's indices of up to `count` batches (count, size / ranks), from the batch `first` on."""
    share = batches.size // batches.ranks
    starts = torch.arange(first, min(first + count, len(batches))) * batches.size + batches.rank * share
    positions = starts[:, None] + torch.arange(share)
    return permute(positions.flatten(), batches.instances, batches.seed, batches.epoch).view(positions.shape)
