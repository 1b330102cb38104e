"""Which instances make a batch, and their views: from memory, or from disk through worker processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils import data as torch_data

from manyviews.data import ImageFiles
from manyviews.views.keyed import permutation
from manyviews.views.policy import Images, SimCLRPolicy


def fixed_batch(batch_size: int, views: int) -> int:
    """Instances a batch when instances x views stay constant, as in the paper's ablation.

    Example:
        >>> fixed_batch(256, views=4)
        64
    """
    if views < 2 or batch_size < 2 * views:
        raise ValueError(f"a batch of {batch_size} is too small for two instances of {views} views")
    return batch_size // views


def batches(instances: int, size: int, seed: int, epoch: int, rank: int = 0, ranks: int = 1) -> list[Tensor]:
    """The indices of each batch of an epoch, on one of several ranks that share each batch evenly.

    The order is a function of (seed, epoch); what does not fill a batch is left out.

    Example:
        >>> [len(batch) for batch in batches(10, 4, seed=0, epoch=0)]
        [4, 4]
    """
    if size > instances:
        raise ValueError(f"a batch of {size} is larger than the data set of {instances} instances")
    if size % ranks:
        raise ValueError(f"a batch of {size} does not divide among {ranks} ranks")
    order = permutation(instances, seed, epoch)
    whole = order[: instances // size * size].view(-1, ranks, size // ranks)
    return list(whole[:, rank])


@dataclass(frozen=True)
class ViewBatches:
    """Views (B, N, C, size, size) of each batch of an epoch, with the indices of their instances.

    Images in memory are a uint8 tensor and need no workers. Images on disk are decoded and cropped N times in
    `workers` processes; colours are changed here, in batches. Views do not depend on the number of workers. A file
    that turns out broken is named and fails, as strict loading would have; load the folder again to leave it out.
    """

    images: Tensor | ImageFiles
    policy: SimCLRPolicy
    views: int
    seed: int = 0
    workers: int = 0

    def __call__(self, epoch: int, indices: list[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        key = {"seed": self.seed, "epoch": epoch}
        if isinstance(self.images, Tensor):
            for index in indices:
                place = index.to(self.images.device)
                yield self.policy(self.images[place], views=self.views, index=place, **key), index
            return
        loader = torch_data.DataLoader(
            _Crops(self.images, self.policy, self.views, self.seed, epoch),
            sampler=torch.cat(indices).tolist() if indices else [],
            batch_size=None,
            num_workers=self.workers,
            prefetch_factor=8 if self.workers else None,
            worker_init_fn=_one_thread,
        )
        crops = iter(loader)
        for index in indices:
            batch = torch.stack([next(crops) for _ in index])
            yield self.policy.coloured(batch, index=index, **key), index


@dataclass(frozen=True)
class _Crops(torch_data.Dataset[Tensor]):
    images: ImageFiles
    policy: SimCLRPolicy
    views: int
    seed: int
    epoch: int

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, number: int) -> Tensor:
        index = torch.tensor([number])
        images: Images = [self.images[number]]
        key = {"views": self.views, "seed": self.seed, "epoch": self.epoch}
        return self.policy.crops(images, index=index, **key)[0]


def _one_thread(_: int) -> None:
    torch.set_num_threads(1)
