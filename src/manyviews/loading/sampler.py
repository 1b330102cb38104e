"""`EpochBatches`: the order of an epoch."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from manyviews.utils import permute


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

    The order is a function of (seed, epoch), computed batch by batch. The last incomplete batch is dropped.

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
        share = self.size // self.ranks
        first = i * self.size + self.rank * share
        return permute(torch.arange(first, first + share), self.instances, self.seed, self.epoch)
