"""Batches of modalities from a split; modalities are views.

A batch is a list of tensors with instances in the first dimension: one tensor per modality, then the lengths (B, N)
(1 for modalities that are not sequences) and the mask (B, N). Sequences are cut to the longest one in the batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from manyviews.data import Dataset, DatasetError, Images, check_split


@dataclass(frozen=True)
class ModalityLoader:
    """Loads batches of modalities for a `MultimodalEmbedder`.

    Examples:
        >>> from manyviews.data import load_dataset
        >>> loader = ModalityLoader(load_dataset("digits")["train"], ("pixels", "fourier"))
        >>> for views, index in loader(0, [torch.tensor([3, 1, 4])]):
        ...     print([tuple(part.shape) for part in views], index)
        [(3, 64), (3, 40), (3, 2), (3, 2)] tensor([3, 1, 4])
    """

    split: Dataset
    names: tuple[str, ...]
    device: torch.device | None = None

    def __post_init__(self) -> None:
        check_split(self.split)
        for name in self.names:
            column = self.split[name]
            if isinstance(column, Images) and not isinstance(column.values, Tensor):
                raise DatasetError(f"the images of {name} are on disk: multimodal training needs them in memory")

    def __call__(self, _epoch: int, indices: Sequence[Tensor]) -> Iterator[tuple[list[Tensor], Tensor]]:
        """Yield (views, index) for each batch; the views are the same in each epoch."""
        for index in indices:
            yield [part.to(self.device or part.device, non_blocking=True) for part in self.load_batch(index)], index

    def get_mask(self, index: Tensor) -> Tensor:
        """Return the mask (B, N) of the modalities that the instances have."""
        return self.split.get_mask(self.names)[index]

    def load_batch(self, index: Tensor) -> list[Tensor]:
        values, lengths = zip(*(self.split[name].load(index) for name in self.names), strict=True)
        return [*values, torch.stack(lengths, 1), self.get_mask(index)]
