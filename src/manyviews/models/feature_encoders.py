"""Encoders of features and texts: transformers for sequences and bytes, a small MLP for vectors."""

import math

import torch
from torch import Tensor, nn

from manyviews.data import compute_statistics


class Standardize(nn.Module):
    """Standardizes features with the mean and standard deviation of the training split; constant features become 0.

    Examples:
        >>> Standardize(2).fit(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))(torch.tensor([[2.0, 9.0]]))
        tensor([[0., 0.]])
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("scale", torch.ones(features))
        self.mean: Tensor
        self.scale: Tensor

    def fit(self, features: Tensor) -> "Standardize":
        """Estimate mean and standard deviation from features (n, d)."""
        if not len(features):
            raise ValueError("cannot fit Standardize to zero instances")
        mean, scale = compute_statistics(features)
        self.mean.copy_(mean)
        self.scale.copy_(scale)
        return self

    def forward(self, features: Tensor) -> Tensor:
        return (features - self.mean) * self.scale


class TransformerEncoder(nn.Module):
    """Sinusoidal positions, layers with a padding mask, mean over the valid steps."""

    def __init__(self, project: nn.Module, dim: int, layers: int, heads: int, dropout: float) -> None:
        super().__init__()
        if dim % heads or dim % 2:
            raise ValueError(f"dim must be even and divisible by the number of heads, got {dim} and {heads} heads")
        self.dim, self.project = dim, project
        layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, dropout, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, steps: Tensor, lengths: Tensor) -> Tensor:
        shortest, longest = torch.stack(lengths.aminmax()).tolist()
        if not 1 <= shortest <= longest <= steps.shape[1]:
            raise ValueError(f"lengths must be from 1 to {steps.shape[1]}, got {shortest} to {longest}")
        steps = steps[:, :longest]
        valid = torch.arange(steps.shape[1], device=steps.device) < lengths[:, None]
        x = self.project(steps)
        x = self.dropout(x + make_sinusoidal_positions(x.shape[1], self.dim, x.device).to(x))
        x = self.layers(x, src_key_padding_mask=~valid)
        return (x * valid[..., None]).sum(1) / valid.sum(1, keepdim=True)


class SequenceEncoder(TransformerEncoder):
    """A transformer from sequences (B, T, features) and their lengths (B,) to (B, dim).

    `standardize` comes first: fit it to the training split.

    Examples:
        >>> encoder = SequenceEncoder(20)
        >>> encoder(torch.randn(4, 9, 20), torch.tensor([9, 1, 3, 5])).shape
        torch.Size([4, 128])
    """

    def __init__(self, features: int, dim: int = 128, layers: int = 3, heads: int = 8, dropout: float = 0.1) -> None:
        super().__init__(nn.Linear(features, dim), dim, layers, heads, dropout)
        self.standardize = Standardize(features)

    def forward(self, steps: Tensor, lengths: Tensor) -> Tensor:
        _check_shape("sequences", steps, 3, len(self.standardize.mean))
        return super().forward(self.standardize(steps), lengths)


class TextEncoder(TransformerEncoder):
    """A transformer from the UTF-8 bytes (B, T) of texts and their lengths (B,) to (B, dim).

    Examples:
        >>> TextEncoder()(torch.tensor([[104, 105]], dtype=torch.uint8), torch.tensor([2])).shape
        torch.Size([1, 128])
    """

    def __init__(self, dim: int = 128, layers: int = 3, heads: int = 8, dropout: float = 0.1) -> None:
        super().__init__(nn.Embedding(256, dim), dim, layers, heads, dropout)

    def forward(self, steps: Tensor, lengths: Tensor) -> Tensor:
        return super().forward(steps.int(), lengths)


def make_sinusoidal_positions(steps: int, width: int, device: torch.device | None = None) -> Tensor:
    """Return sines and cosines (steps, width) of increasing wavelength (Vaswani et al. 2017)."""
    wave = torch.exp(torch.arange(0, width, 2, device=device) * (-math.log(10000.0) / width))
    angle = torch.arange(steps, device=device)[:, None] * wave
    return torch.stack([angle.sin(), angle.cos()], 2).flatten(1)


class VectorEncoder(nn.Module):
    """A small MLP from vectors (B, features) to (B, dim).

    `standardize` comes first: fit it to the training split.

    Examples:
        >>> VectorEncoder(20)(torch.randn(4, 20)).shape
        torch.Size([4, 128])
    """

    def __init__(self, features: int, dim: int = 128, dropout: float = 0.1) -> None:
        super().__init__()
        self.dim, self.standardize = dim, Standardize(features)
        layers = (nn.Linear(features, 2 * dim), nn.ReLU(), nn.Dropout(dropout), nn.Linear(2 * dim, dim))
        self.layers = nn.Sequential(*layers)

    def forward(self, vectors: Tensor) -> Tensor:
        _check_shape("vectors", vectors, 2, len(self.standardize.mean))
        h: Tensor = self.layers(self.standardize(vectors))
        return h


def _check_shape(name: str, values: Tensor, dim: int, features: int) -> None:
    if values.dim() != dim or values.shape[-1] != features:
        raise ValueError(f"{name} must have {features} features, as in training, got {tuple(values.shape)}")
