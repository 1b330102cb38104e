"""Vectors of features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from manyviews.data.column import Features, standardize
from manyviews.data.errors import DatasetError


@dataclass(frozen=True, eq=False, repr=False)
class Vectors(Features):
    """Vectors (n, d) of float32.

    Examples:
        >>> Vectors(torch.randn(5, 40)).describe()
        'vectors of 40'
    """

    kind = "vector"
    default_encoder = "mlp"
    legend = "A line is a vector of standardized features."

    @property
    def is_small(self) -> bool:
        return True

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", to_float_features("vectors", self.values, 2))

    def select(self, index: Tensor) -> Vectors:
        return Vectors(self.values[index], mask=self._select_mask(index))

    def describe(self) -> str:
        return f"vectors of {self.dim}"

    def list_content(self) -> list[Tensor | bytes]:
        return [self.values, self.get_mask()]

    def load(self, index: Tensor) -> tuple[Tensor, None]:
        return self.values[index], None

    def make_raw_features(self, reference: Vectors, summary: str = "") -> Tensor:  # noqa: ARG002 (for sequences)
        features = standardize(self.values, reference.collect_valid())
        return torch.where(self.get_mask()[:, None], features, 0)

    @classmethod
    def from_values(cls, values: Any) -> Vectors:
        return cls(torch.as_tensor(values))

    def get_item(self, i: int) -> Tensor:
        return self.values[i]

    def collect_valid(self) -> Tensor:
        return self.values if self.mask is None else self.values[self.mask]


def to_float_features(name: str, values: Tensor, dim: int) -> Tensor:
    """Convert features to float32; raise a DatasetError unless they are floats with `dim` dimensions."""
    if not isinstance(values, Tensor) or values.dim() != dim or not values.is_floating_point() or 0 in values.shape:
        got = f"{values.dtype} {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        raise DatasetError(f"{name} must be floats {'(n, d)' if dim == 2 else '(n, T, d)'}, got {got}")
    return values.float()
