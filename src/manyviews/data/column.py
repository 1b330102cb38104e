"""`Column`: one modality of n instances. Everything that is particular to a kind of modality is in its class."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
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
    min_size: ClassVar[int] = 0
    """Minimum height and width of views; 0 if they have none."""
    uses_batch_norm: ClassVar[bool] = False
    """Whether the projection head of the encoder has batch norm, as in the paper's recipes."""
    is_augmented_alone: ClassVar[bool] = False
    """Whether views are augmented also if an instance has only one of the modality."""
    default_optimizer: ClassVar[Literal["sgd", "adamw"]] = "adamw"
    default_epochs: ClassVar[int] = 60
    min_steps: ClassVar[int] = 600
    """Minimum number of steps of a training whose number of epochs is not set."""
    max_small_count: ClassVar[int] = 0
    """Up to this many training instances, data of this kind alone have smaller encoders and other defaults;
    docs/modalities.md explains it."""
    summaries: ClassVar[tuple[str, ...]] = ()
    """Ways to make raw features of a value, the simplest first; empty if there is one way."""
    legend: ClassVar[str] = ""
    """A sentence that explains what `show` returns, for a report; empty if no explanation is needed."""
    dim: ClassVar[int] = 0
    """Number of features; 0 if values are not features."""
    mask: Tensor | None = field(default=None, repr=False)
    """bool (n,), false for instances without the modality, whose values are never read; None if all have it."""

    @abstractmethod
    def __len__(self) -> int: ...

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self):,} instances)"

    @abstractmethod
    def select(self, index: Tensor) -> Self:
        """Select instances by their indices."""

    def prepare(self, preprocessing: Mapping[str, Any]) -> Self:  # noqa: ARG002 (for texts)
        """Return the column that loads what an encoder takes, by the preprocessing of its `EncoderSpec`."""
        return self

    @abstractmethod
    def describe(self) -> str:
        """Describe the values, such as "vectors of 64"; all splits of a dataset must have the same description."""

    def describe_lengths(self) -> str:
        """Describe the lengths of sequences, else return an empty text."""
        return ""

    @abstractmethod
    def list_content(self) -> list[Tensor | bytes]:
        """List what identifies the values, for a fingerprint."""

    def describe_summary(self, summary: str) -> str:
        """Describe raw features that are made by one of `summaries`."""
        return summary

    @classmethod
    def make_example(cls, size: int) -> Tensor | None:  # noqa: ARG003 (for images)
        """Make an input (1, ...) of encoders of views of `size`; None if its shape depends on the data."""
        return None

    def choose_size(self, size: int, default: int) -> int:  # noqa: ARG002 (for images)
        """Return the height and width of views: the one that is set, or the default if it is 0; 0 if they have none."""
        return 0

    def is_augmented(self, augment_features: str, num_views: int) -> bool:
        """Return whether `num_views` views of an instance are augmented, with the option `augment_features`."""
        if augment_features == "auto":
            return self.is_augmented_alone or num_views > 1
        return augment_features == "all"

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


@dataclass(frozen=True, eq=False, repr=False)
class BatchColumn(Column):
    """A column whose values become a batch as they are. Images are not: their views are cropped while they are read."""

    @abstractmethod
    def load(self, index: Tensor) -> tuple[Tensor, Tensor | None]:
        """Load a batch: values (B, ...), and the lengths (B,) of sequences and texts."""

    @abstractmethod
    def make_raw_features(self, reference: Self, summary: str = "") -> Tensor:
        """Make features (n, d) without an encoder, as a baseline; missing values are zero.

        Features are standardized with the statistics of `reference`, the training instances. `summary` is one of
        `summaries`.
        """

    @classmethod
    @abstractmethod
    def from_values(cls, values: Any) -> Self:
        """Make a column of values as a user has them."""


@dataclass(frozen=True, eq=False, repr=False)
class Features(BatchColumn):
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
        return compute_statistics(self.collect_valid())

    def find_nonfinite(self) -> int | None:
        """Return the index of the first instance with a value that is NaN or infinite, or None."""
        if not len(self) or all(bound.isfinite() for bound in self.values.aminmax()):
            return None
        invalid = ~self.values.isfinite().flatten(1).all(1) & self.get_mask()
        return int(invalid.nonzero()[0]) if invalid.any() else None

    @abstractmethod
    def collect_valid(self) -> Tensor:
        """Return all features (m, d) of instances that are not missing, without padding."""


def compute_statistics(features: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean (d,) and the reciprocal standard deviation (d,) of features (n, d); 0 for constant ones."""
    mean, scale = torch.zeros(2, features.shape[1])
    # Column by column: a float64 copy of all features would take too much memory.
    for i, column in enumerate(features.unbind(1)):
        spread, center = torch.std_mean(column.double(), correction=0)
        mean[i] = center
        scale[i] = 1 / spread if spread > 1e-6 * center.abs().clamp_min(1e-6) else 0.0
    return mean, scale


def standardize(features: Tensor, reference: Tensor) -> Tensor:
    """Standardize features (n, d) with the statistics of others (m, d)."""
    mean, scale = compute_statistics(reference)
    return (features - mean) * scale
