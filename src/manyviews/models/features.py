"""Encoders of features: a transformer for sequences, a small MLP for vectors, and what is done to features before."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Standardise(nn.Module):
    """Features less their mean, divided by their deviation, as the training split has them; constant ones are left out.

    Examples:
        >>> Standardise(2).fit(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))(torch.tensor([[2.0, 9.0]]))
        tensor([[0., 0.]])
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("scale", torch.ones(features))
        self.mean: Tensor
        self.scale: Tensor

    def fit(self, rows: Tensor) -> Standardise:
        """To rows (n, features)."""
        if not len(rows):
            raise ValueError("features cannot be standardised to no rows")
        # Feature by feature: a copy of all rows in float64 would be the largest thing of a training.
        for number, column in enumerate(rows.unbind(1)):
            spread, mean = torch.std_mean(column.double(), correction=0)
            self.mean[number] = mean
            self.scale[number] = 1 / spread if spread > 1e-6 * mean.abs().clamp_min(1e-6) else 0.0
        return self

    def forward(self, rows: Tensor) -> Tensor:
        return (rows - self.mean) * self.scale


class SequenceEncoder(nn.Module):
    """A transformer encoder from sequences (B, T, features) and their lengths (B,) to (B, dim).

    Input projection, sinusoidal positions, layers that do not see padding, mean over the steps that are there.

    Examples:
        >>> encoder = SequenceEncoder(20)
        >>> encoder(torch.randn(4, 9, 20), torch.tensor([9, 1, 3, 5])).shape
        torch.Size([4, 128])
    """

    def __init__(self, features: int, dim: int = 128, layers: int = 3, heads: int = 8, dropout: float = 0.1) -> None:
        super().__init__()
        if dim % heads or dim % 2:
            raise ValueError(f"dim must be even and divide among the heads, got {dim} and {heads} heads")
        self.dim = dim
        self.project = nn.Linear(features, dim)
        layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, dropout, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, rows: Tensor, lengths: Tensor) -> Tensor:
        rows = rows[:, : int(lengths.max())]  # the longest there is, not the longest there might be
        there = torch.arange(rows.shape[1], device=rows.device) < lengths[:, None]
        x = self.project(rows)
        x = self.dropout(x + positions(x.shape[1], self.dim, x.device).to(x))
        x = self.layers(x, src_key_padding_mask=~there)
        return (x * there[..., None]).sum(1) / there.sum(1, keepdim=True)


def positions(steps: int, width: int, device: torch.device | None = None) -> Tensor:
    """Sines and cosines (steps, width) of growing wavelength (Vaswani et al. 2017)."""
    wave = torch.exp(torch.arange(0, width, 2, device=device) * (-math.log(10000.0) / width))
    angle = torch.arange(steps, device=device)[:, None] * wave
    return torch.stack([angle.sin(), angle.cos()], 2).flatten(1)


class VectorEncoder(nn.Sequential):
    """A small MLP from vectors (B, features) to (B, dim).

    Examples:
        >>> VectorEncoder(20)(torch.randn(4, 20)).shape
        torch.Size([4, 128])
    """

    def __init__(self, features: int, dim: int = 128, dropout: float = 0.1) -> None:
        super().__init__(nn.Linear(features, 2 * dim), nn.ReLU(), nn.Dropout(dropout), nn.Linear(2 * dim, dim))
        self.dim = dim
