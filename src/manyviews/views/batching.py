"""Which instances make a batch, and their views: from memory, or from disk through worker processes."""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType

import torch
from torch import Tensor
from torch.utils import data as torch_data

from manyviews.data import ImageFiles
from manyviews.views.keyed import permutation
from manyviews.views.policy import MultiCrop, SimCLRPolicy


def fixed_batch(batch_size: int, views: int) -> int:
    """Instances a batch when instances x views stay constant, as near as whole instances allow (the paper's ablation).

    Examples:
        >>> fixed_batch(256, views=4)
        64
    """
    if views < 2 or batch_size < 2 * views:
        raise ValueError(f"a batch of {batch_size} is too small for two instances of {views} views")
    return batch_size // views


def batches(instances: int, size: int, seed: int, epoch: int, rank: int = 0, ranks: int = 1) -> list[Tensor]:
    """The indices of each batch of an epoch, on one of several ranks that share each batch evenly.

    The order is a function of (seed, epoch); what does not fill a batch is left out.

    Examples:
        >>> [len(batch) for batch in batches(10, 4, seed=0, epoch=0)]
        [4, 4]
    """
    if size < 1 or not 0 <= rank < ranks:
        raise ValueError(f"a batch needs an instance and a rank one of {ranks}, got size {size} and rank {rank}")
    if size > instances:
        raise ValueError(f"a batch of {size} is larger than the data set of {instances} instances")
    if size % ranks:
        raise ValueError(f"a batch of {size} does not divide among {ranks} ranks")
    order = permutation(instances, seed, epoch)
    whole = order[: instances // size * size].view(-1, ranks, size // ranks)
    return list(whole[:, rank])


@dataclass(frozen=True)
class ViewBatches:
    """Views of each batch of an epoch, as the policy gives them, with the indices of their instances.

    Images in memory are a uint8 tensor and need no workers. Images on disk are decoded and cropped in `workers`
    processes; colours are changed here, in batches. Views do not depend on the number of workers. A file that turns out
    broken is named, and the next whole one takes its place (a strict data set makes it an error).

    Examples:
        >>> images = torch.randint(256, (8, 3, 32, 32), dtype=torch.uint8)
        >>> for views, index in ViewBatches(images, SimCLRPolicy(32), views=3)(0, batches(8, 4, seed=0, epoch=0)):
        ...     print(tuple(views.shape), len(index))
        (4, 3, 3, 32, 32) 4
        (4, 3, 3, 32, 32) 4
    """

    images: Tensor | ImageFiles
    policy: SimCLRPolicy | MultiCrop
    views: int | None = None
    """Of each instance; a `MultiCrop` knows its own."""
    seed: int = 0
    workers: int = 0
    device: torch.device | None = None
    """Where the views shall be; where the images are if not given."""

    def __post_init__(self) -> None:
        if isinstance(self.policy, MultiCrop) != (self.views is None):
            raise ValueError("views is for a SimCLRPolicy, and needed there; a MultiCrop has its own")

    @property
    def crops(self) -> MultiCrop:
        return self.policy if isinstance(self.policy, MultiCrop) else MultiCrop([(self.policy, self.views or 0)])

    def __call__(self, epoch: int, indices: list[Tensor]) -> Iterator[tuple[Tensor | list[Tensor], Tensor]]:
        """(views, index) for each of the batches' indices."""
        for cropped, index in self._cropped(epoch, indices):
            groups = [group.to(self.device or group.device, non_blocking=True) for group in cropped]
            coloured = self.crops.coloured(groups, seed=self.seed, epoch=epoch, index=index.to(groups[0].device))
            yield coloured if isinstance(self.policy, MultiCrop) else coloured[0], index

    def _cropped(self, epoch: int, indices: list[Tensor]) -> Iterator[tuple[list[Tensor], Tensor]]:
        if isinstance(self.images, Tensor):
            for index in indices:
                place = index.to(self.images.device)
                yield self.crops.crops(self.images[place], seed=self.seed, epoch=epoch, index=place), index
            return
        loader = torch_data.DataLoader(
            _Cropped(self.images, self.crops, self.seed, epoch),
            sampler=torch.cat(indices).tolist() if indices else [],
            batch_size=None,
            num_workers=self.workers,
            prefetch_factor=8 if self.workers else None,
            worker_init_fn=init_worker,
        )
        instances = iter(loader)
        broken: set[str] = set()
        for index in indices:
            batch = [next(instances) for _ in index]
            new = sorted({line for _, _, lines in batch for line in lines} - broken)
            broken.update(new)
            for line in new:
                warnings.warn(f"{line}; the next image takes its place ({len(broken)} so far)", stacklevel=3)
            groups = zip(*(crops for crops, _, _ in batch), strict=True)
            yield [torch.stack(group) for group in groups], torch.tensor([number for _, number, _ in batch])


@dataclass(frozen=True)
class _Cropped(torch_data.Dataset[tuple[list[Tensor], int, list[str]]]):
    """Crops of an instance, which instance it is, and what could not be read on the way to it."""

    images: ImageFiles
    crops: MultiCrop
    seed: int
    epoch: int

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, number: int) -> tuple[list[Tensor], int, list[str]]:
        image, taken, broken = self.images.whole(number)
        groups = self.crops.crops([image], seed=self.seed, epoch=self.epoch, index=torch.tensor([taken]))
        return [group[0] for group in groups], taken, broken


def init_worker(_: int) -> None:
    """Give a worker one thread, and let only its parent stop it.

    A signal to the whole group (Ctrl-C, a scheduler's SIGTERM) must not take the data from a parent that is to save.
    """
    torch.set_num_threads(1)
    sys.excepthook = _report_unless_abandoned
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    if hasattr(signal, "sigwaitinfo"):  # not on macOS
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_obey_parent, daemon=True).start()


def _report_unless_abandoned(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Report an exception of a worker's thread, unless the parent has stopped receiving, as it does when it ends.

    Errors of the data set do not come here: they are sent to the parent.
    """
    if not issubclass(kind, ConnectionError | EOFError):
        sys.__excepthook__(kind, error, traceback)


def _obey_parent() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)
