"""Batch indices of an epoch."""

from torch import Tensor

from manyviews.utils import draw_permutation


def count_instances_per_batch(batch_size: int, views: int) -> int:
    """Return the instances per batch for a constant number of views per batch, rounded down (the paper's ablation).

    Examples:
        >>> count_instances_per_batch(256, views=4)
        64
    """
    if views < 2 or batch_size < 2 * views:
        raise ValueError(f"a batch of {batch_size} views is too small for two instances of {views} views")
    return batch_size // views


def list_epoch_batches(instances: int, size: int, seed: int, epoch: int, rank: int = 0, ranks: int = 1) -> list[Tensor]:
    """Return the instance indices of each batch of an epoch; ranks share each batch evenly.

    The order is a function of (seed, epoch). The last incomplete batch is dropped.

    Examples:
        >>> [len(batch) for batch in list_epoch_batches(10, 4, seed=0, epoch=0)]
        [4, 4]
    """
    if size < 1 or not 0 <= rank < ranks:
        raise ValueError(f"expected size >= 1 and 0 <= rank < {ranks}, got size {size} and rank {rank}")
    if size > instances:
        raise ValueError(f"a batch of {size} is larger than the dataset of {instances} instances")
    if size % ranks:
        raise ValueError(f"a batch of {size} is not divisible by {ranks} ranks")
    order = draw_permutation(instances, seed, epoch)
    batches = order[: instances // size * size].view(-1, ranks, size // ranks)
    return list(batches[:, rank])
