"""`Column`: one modality of n instances. Everything that is particular to a kind of modality is in its class."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True, eq=False, kw_only=True)
class Column(ABC):
    """One modality of n instances: values of one kind.

    Examples:
        >>> from manyviews.data import Vectors
        >>> column = Vectors(torch.randn(3, 40)).drop(torch.tensor([False, True, False]))
        >>> column.get_mask()
        tensor([ True, False,  True])
    """

    kind: ClassVar[str]
    default_encoder: ClassVar[str]
    """Name of the encoder that is used if none is chosen."""
    has_lengths: ClassVar[bool] = False
    """Whether values are sequences of different lengths."""
    uses_batch_norm: ClassVar[bool] = False
    """Whether the projection head of the encoder has batch norm, as in the paper's recipes."""
    dim: ClassVar[int] = 0
    """Number of features; 0 if values are not features."""
    mask: Tensor | None = field(default=None, repr=False)
    """bool (n,), false for instances without the modality, whose values are never read; None if all have it."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def select(self, index: Tensor) -> Self:
        """Select instances by their indices."""

    @abstractmethod
    def describe(self) -> str:
        """Describe the values, such as "vectors of 64"; all splits of a dataset must have the same description."""

    def describe_lengths(self) -> str:
        """Describe the lengths of sequences, else return an empty text."""
        return ""

    @abstractmethod
    def list_content(self) -> list[Tensor | bytes]:
        """List what identifies the values, for a fingerprint."""

    @abstractmethod
    def load(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Load a batch: values (B, ...) and lengths (B,), which are 1 unless the values are sequences."""

    @abstractmethod
    def summarize(self, summary: str, steps: int) -> Tensor:
        """Return features (n, d) without an encoder; `summary` and `steps` are for sequences."""

    @abstractmethod
    def show(self, i: int) -> Tensor | str:
        """Return what is shown of an instance: an image (C, H, W), a text, or standardized features (T, d) or (d,)."""

    def show_view(self, view: Tensor) -> Tensor | str:
        """Return what is shown of a view, which has no padding."""
        return view

    @property
    def reads_files(self) -> bool:
        """Whether values are read from files when they are needed."""
        return False

    @property
    def is_small(self) -> bool:
        """Whether encoders of the values do not gain from more than one thread."""
        return False

    def get_mask(self) -> Tensor:
        """Return the mask (n,)."""
        return torch.ones(len(self), dtype=torch.bool) if self.mask is None else self.mask

    def drop(self, missing: Tensor) -> Self:
        """Mark instances as missing, by a mask (n,)."""
        return replace(self, mask=self.get_mask() & ~missing)

    def _select_mask(self, index: Tensor) -> Tensor | None:
        return None if self.mask is None else self.mask[index]


@dataclass(frozen=True, eq=False)
class Features(Column):
    """Features in memory, with d numbers for each instance or step."""

    values: Tensor = field(repr=False)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def dim(self) -> int:  # type: ignore[override]
        return self.values.shape[-1]

    @abstractmethod
    def get_item(self, i: int) -> Tensor:
        """Return the features of one instance, without padding."""

    def show(self, i: int) -> Tensor:
        return self.show_view(self.get_item(i))

    def show_view(self, view: Tensor) -> Tensor:
        mean, scale = self._statistics
        return (view - mean) * scale

    @cached_property
    def _statistics(self) -> tuple[Tensor, Tensor]:
        """Mean (d,) and reciprocal standard deviation (d,), 0 for a constant feature."""
        deviation, mean = torch.std_mean(self.collect_valid(), 0, correction=0)
        return mean, torch.where(deviation > 0, 1 / deviation, 0)

    @abstractmethod
    def collect_valid(self) -> Tensor:
        """Return all features (m, d) of instances that are not missing, without padding."""
