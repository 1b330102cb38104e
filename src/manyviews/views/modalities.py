"""Modalities are views: batches of them from a split, with what is missing marked.

A batch is a list of tensors with the same instances first: the rows of each modality, then how many steps each has
(B, N) (1 for what is no sequence) and which are there (B, N). Sequences are as long as the longest that is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from manyviews.data import DatasetError, Split
from manyviews.data.dataset import check_split


@dataclass(frozen=True)
class ModalityBatches:
    """The modalities of each batch of instances, as `ModalityEmbedder` takes them.

    Examples:
        >>> from manyviews.data import load_dataset
        >>> batches = ModalityBatches(load_dataset("digits")["train"], ("pixels", "fourier"))
        >>> for views, index in batches(0, [torch.tensor([3, 1, 4])]):
        ...     print([tuple(part.shape) for part in views], index)
        [(3, 64), (3, 40), (3, 2), (3, 2)] tensor([3, 1, 4])
    """

    split: Split
    names: tuple[str, ...]
    device: torch.device | None = None

    def __post_init__(self) -> None:
        check_split(self.split)
        for name in self.names:
            if name not in self.split.modalities:
                raise DatasetError(f"there is no modality {name!r}, only {', '.join(self.split.modalities)}")
            if not isinstance(self.split.modalities[name], Tensor):
                raise DatasetError(f"{name} is on disk: beside other modalities, images must be in memory")

    def __call__(self, _epoch: int, indices: Sequence[Tensor]) -> Iterator[tuple[list[Tensor], Tensor]]:
        """(views, index) for each of the batches' indices; the same in each epoch."""
        for index in indices:
            yield [part.to(self.device or part.device, non_blocking=True) for part in self.of(index)], index

    def present(self, index: Tensor) -> Tensor:
        """Which modalities (B, N) of some instances are there."""
        all_of_them = torch.ones(len(index), dtype=torch.bool)
        known = self.split.present
        return torch.stack([known[name][index] if name in known else all_of_them for name in self.names], 1)

    def of(self, index: Tensor) -> list[Tensor]:
        present = self.present(index)
        lengths = torch.ones(present.shape, dtype=torch.long)
        taken = []
        for number, name in enumerate(self.names):
            rows = self.split.modalities[name]
            assert isinstance(rows, Tensor)
            if rows.dim() != 3:
                taken.append(rows[index])
                continue
            if name in self.split.lengths:
                lengths[:, number] = self.split.lengths[name][index]
            else:
                lengths[:, number] = rows.shape[1]
            # What is missing asks for no room: the longest that is there decides.
            longest = int(lengths[present[:, number], number].amax()) if present[:, number].any() else 1
            taken.append(rows[:, :longest][index])
        return [*taken, lengths, present]
