"""Sequences of features."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from manyviews.data.column import Features, standardize
from manyviews.data.errors import DatasetError
from manyviews.data.vectors import to_float_features

MAX_SHORT_STEPS = 64
"""Encoders of sequences up to this length do not gain from more than one thread."""
SUMMARIES = ("mean", "mean and deviation", "min and max", "flattened")
"""Summaries of a sequence over its steps, the simplest first."""
MAX_STEPS, MAX_FLATTENED_DIM = 32, 2048
"""Limits of a flattened sequence: a probe on more dimensions would take longer than the rest of an evaluation."""
CHUNK_INSTANCES = 256


@dataclass(frozen=True, eq=False, repr=False)
class Sequences(Features):
    """Sequences (n, T, d) of float32; the steps after the length of a sequence are padding.

    Examples:
        >>> Sequences(torch.randn(5, 7, 20), torch.tensor([7, 3, 1, 4, 5])).describe_lengths()
        '1 to 7, median 4'
    """

    kind = "sequence"
    default_encoder = "transformer"
    is_augmented_alone = True
    max_small_count = 2000
    summaries = SUMMARIES
    legend = "A gray image is a sequence of standardized features, with its steps from left to right."
    lengths: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long), repr=False)
    """Number of steps (n,); default: T for all."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", to_float_features("sequences", self.values, 3))
        if not len(self.lengths):
            object.__setattr__(self, "lengths", torch.full((len(self),), self.values.shape[1]))
        if self.lengths.shape != (len(self),):
            raise DatasetError(f"lengths must be ({len(self)},), got {tuple(self.lengths.shape)}")

    @property
    def is_small(self) -> bool:
        return self.values.shape[1] <= MAX_SHORT_STEPS

    def select(self, index: Tensor) -> Sequences:
        return Sequences(self.values[index], self.lengths[index], mask=self._select_mask(index))

    def describe(self) -> str:
        return f"sequences of {self.dim}"

    def describe_lengths(self) -> str:
        lengths = self.lengths[self.get_mask()]
        if not len(lengths):
            return ""
        return f"{int(lengths.min())} to {int(lengths.max())}, median {int(lengths.median())}"

    def list_content(self) -> list[Tensor | bytes]:
        return [self.values, self.lengths, self.get_mask()]

    def load(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Load sequences (B, T, d), cut to the longest one that is not missing, and their lengths (B,)."""
        lengths, mask = self.lengths[index], self.get_mask()[index]
        longest = int(lengths[mask].amax()) if mask.any() else 1
        return self.values[:, :longest][index], lengths

    def get_item(self, i: int) -> Tensor:
        return self.values[i, : max(1, int(self.lengths[i]))]

    def collect_valid(self) -> Tensor:
        mask = self.get_mask()
        return self.values[mask][torch.arange(self.values.shape[1]) < self.lengths[mask, None]]

    def count_flattened_steps(self) -> int:
        """Count the evenly spaced steps kept of a flattened sequence: all of them if the result is small enough."""
        return max(1, min(self.values.shape[1], MAX_STEPS, MAX_FLATTENED_DIM // self.dim))

    def describe_summary(self, summary: str) -> str:
        return f"flattened at {self.count_flattened_steps()} steps" if summary == "flattened" else summary

    def make_raw_features(self, reference: Sequences, summary: str = "") -> Tensor:
        """Summarize each sequence over its steps, without padding, by one of SUMMARIES, and standardize the result."""
        summary, steps = summary or SUMMARIES[0], reference.count_flattened_steps()
        fitted = reference.summarize(summary, steps)[reference.get_mask()]
        return torch.where(self.get_mask()[:, None], standardize(self.summarize(summary, steps), fitted), 0)

    @classmethod
    def from_values(cls, values: Any) -> Sequences:
        """Make a column of (n, T, d), or of n sequences (T, d) of any lengths."""
        if isinstance(values, Tensor):
            return cls(values)
        parts = [torch.as_tensor(part) for part in values]
        if any(part.dim() != 2 or part.shape[1] != parts[0].shape[1] for part in parts):
            shapes = ", ".join(str(tuple(part.shape)) for part in parts[:3])
            raise DatasetError(f"expected (T, d) with one d, got {shapes}")
        return cls(pad_sequence(parts, batch_first=True), torch.tensor([len(part) for part in parts]))

    def summarize(self, summary: str, steps: int) -> Tensor:
        """Summarize each sequence over its steps, without padding, by one of SUMMARIES."""
        chunks = zip(self.values.split(CHUNK_INSTANCES), self.lengths.split(CHUNK_INSTANCES), strict=True)
        return torch.cat([_summarize(*chunk, summary, steps) for chunk in chunks])


def _summarize(x: Tensor, lengths: Tensor, summary: str, steps: int) -> Tensor:
    """Summarize sequences (n, T, d) with `lengths` (n,) valid steps to (n, d), (n, 2 d) or (n, steps * d)."""
    if summary == "flattened":
        # The middle of each of `steps` equal parts.
        middles = (2 * torch.arange(steps) + 1) * lengths[:, None] // (2 * steps)
        return x.take_along_dim(middles[..., None], 1).flatten(1)
    mask = (torch.arange(x.shape[1]) < lengths[:, None])[..., None]
    if summary == "min and max":
        low, high = x.masked_fill(~mask, torch.inf).amin(1), x.masked_fill(~mask, -torch.inf).amax(1)
        return torch.cat([low, high], 1)
    mean = (x * mask).sum(1) / lengths[:, None]
    if summary == "mean":
        return mean
    variance = ((x - mean[:, None]) * mask).square().sum(1) / lengths[:, None]
    return torch.cat([mean, variance.sqrt()], 1)
