"""An encoder for each modality: sequences and vectors -> h (B, N, width) -> z (B, N, out), some of them missing.

What an instance lacks is not encoded at all: its rows cost nothing, and its h and z are zeros.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from manyviews.data import Split
from manyviews.models.embedder import Embedded
from manyviews.models.encoders import get_encoder, representation_dim


class Standardise(nn.Module):
    """Features less their mean, divided by their deviation, as the training split has them; constant ones are left out.

    Example:
        >>> Standardise(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))(torch.tensor([[2.0, 9.0]]))
        tensor([[0., 0.]])
    """

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        if not len(rows):
            raise ValueError("features cannot be standardised to no rows")
        rows = rows.double()
        mean, spread = rows.mean(0), rows.std(0, correction=0)
        scale = torch.where(spread > 1e-6 * mean.abs().clamp_min(1e-6), 1 / spread, 0.0)
        self.register_buffer("mean", mean.float())
        self.register_buffer("scale", scale.float())
        self.mean: Tensor
        self.scale: Tensor

    def forward(self, rows: Tensor) -> Tensor:
        return (rows - self.mean) * self.scale


class SequenceEncoder(nn.Module):
    """A transformer encoder from sequences (B, T, features) and their lengths (B,) to (B, width).

    Input projection, sinusoidal positions, layers that do not see padding, mean over the steps that are there.

    Example:
        >>> encoder = SequenceEncoder(20)
        >>> encoder(torch.randn(4, 9, 20), torch.tensor([9, 1, 3, 5])).shape
        torch.Size([4, 128])
    """

    def __init__(self, features: int, width: int = 128, layers: int = 3, heads: int = 8, dropout: float = 0.1) -> None:
        super().__init__()
        if width % heads or width % 2:
            raise ValueError(f"width must be even and divide among the heads, got {width} and {heads} heads")
        self.dim = width
        self.project = nn.Linear(features, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, rows: Tensor, lengths: Tensor) -> Tensor:
        rows = rows[:, : int(lengths.max())]  # the longest there is, not the longest there might be
        there = torch.arange(rows.shape[1], device=rows.device) < lengths[:, None]
        x = self.project(rows)
        x = self.dropout(x + positions(x.shape[1], self.dim).to(x))
        x = self.layers(x, src_key_padding_mask=~there)
        return (x * there[..., None]).sum(1) / there.sum(1, keepdim=True)


def positions(steps: int, width: int) -> Tensor:
    """Sines and cosines (steps, width) of growing wavelength (Vaswani et al. 2017)."""
    wave = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    angle = torch.arange(steps)[:, None] * wave
    return torch.stack([angle.sin(), angle.cos()], 2).flatten(1)


class VectorEncoder(nn.Sequential):
    """A small MLP from vectors (B, features) to (B, width).

    Example:
        >>> VectorEncoder(20)(torch.randn(4, 20)).shape
        torch.Size([4, 128])
    """

    def __init__(self, features: int, width: int = 128, dropout: float = 0.1) -> None:
        super().__init__(nn.Linear(features, 2 * width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(2 * width, width))
        self.dim = width


class ModalityEmbedder(nn.Module):
    """An encoder, and a projection into the common space, for each modality.

    Called with a batch of `ModalityBatches`, it gives representations h (B, N, width) and embeddings z (B, N, out);
    what is missing is zeros. Fused, a representation is `h.flatten(1)`, late fusion by concatenation.

    Args:
        encoders: for each modality any module from its rows (B, ...), standardised or not, to (B, dim); for sequences
            from rows and lengths. A linear layer brings those of another dim to `width`.
        sequences: which of them are for sequences.
        width: of the representations.
        out: of the embeddings.
        inputs: what is done to the rows of a modality before, such as `Standardise`.
        dims: of encoders that do not tell their `dim`.

    Example:
        >>> encoders = {"text": SequenceEncoder(20), "audio": VectorEncoder(7)}
        >>> embedder = ModalityEmbedder(encoders, sequences={"text"})
        >>> rows = [torch.randn(4, 9, 20), torch.randn(4, 7)]
        >>> lengths, present = torch.tensor([[9, 1]] * 4), torch.ones(4, 2, dtype=torch.bool)
        >>> h, z = embedder([*rows, lengths, present])
        >>> h.shape, z.shape
        (torch.Size([4, 2, 128]), torch.Size([4, 2, 128]))
    """

    def __init__(
        self,
        encoders: Mapping[str, nn.Module],
        *,
        sequences: set[str] | frozenset[str] = frozenset(),
        width: int = 128,
        out: int = 128,
        inputs: Mapping[str, nn.Module] | None = None,
        dims: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__()
        if not encoders:
            raise ValueError("a model of modalities needs at least one encoder")
        self.names, self.sequences, self.width, self.out = tuple(encoders), frozenset(sequences), width, out
        self.inputs = nn.ModuleList([(inputs or {}).get(name, nn.Identity()) for name in self.names])
        for given in (self.sequences, inputs or {}, dims or {}):
            if unknown := [name for name in given if name not in encoders]:
                raise ValueError(f"there is no encoder of {unknown[0]}, only of {', '.join(encoders)}")
        lengths = {name: (dims or {}).get(name) or _dim(name, encoder) for name, encoder in encoders.items()}
        self.encoders = nn.ModuleList(encoders.values())
        self.adapters = nn.ModuleList(
            [nn.Identity() if lengths[name] == width else nn.Linear(lengths[name], width) for name in self.names]
        )
        self.heads = nn.ModuleList(
            [nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, out)) for _ in self.names]
        )

    @classmethod
    def for_split(
        cls,
        split: Split,
        names: Sequence[str],
        *,
        width: int = 128,
        out: int = 128,
        layers: int = 3,
        heads: int = 8,
        dropout: float = 0.1,
        image_encoder: str = "resnet-small",
    ) -> ModalityEmbedder:
        """The paper's model for the modalities of a training split, whose features it is standardised to."""
        sequences: set[str] = set()
        encoders: dict[str, nn.Module] = {}
        inputs: dict[str, nn.Module] = {}
        for name in names:
            if name not in split.modalities:
                raise ValueError(f"there is no modality {name!r}, only {', '.join(split.modalities)}")
            if name in split.present and not split.present[name].any():
                raise ValueError(f"{name} is missing in all instances: leave it out")
            rows: Any = split.modalities[name]
            if rows.dim() == 4:
                encoders[name], inputs[name] = get_encoder(image_encoder), _Unit()
                continue
            inputs[name] = Standardise(known_steps(split, name))
            features = rows.shape[-1]
            if rows.dim() == 3:
                sequences.add(name)
                encoders[name] = SequenceEncoder(features, width, layers, heads, dropout)
            else:
                encoders[name] = VectorEncoder(features, width, dropout)
        return cls(encoders, sequences=sequences, width=width, out=out, inputs=inputs)

    def forward(self, views: Sequence[Tensor]) -> Embedded:
        *rows, lengths, present = views
        self._check(rows, lengths, present)
        like = next(self.heads.parameters())
        h = like.new_zeros(len(present), len(self.names), self.width)
        z = like.new_zeros(len(present), len(self.names), self.out)
        for number, name in enumerate(self.names):
            there = present[:, number]
            if not there.any():
                # On many ranks all parameters must take part, even in nothing.
                parts = (self.encoders[number], self.adapters[number], self.heads[number])
                z[:, number] = sum((p.sum() * 0 for part in parts for p in part.parameters()), like.new_zeros(()))
                continue
            own = self.inputs[number](rows[number][there].to(like))
            steps = (lengths[there, number],) if name in self.sequences else ()
            found = self.adapters[number](self.encoders[number](own, *steps))
            h[there, number] = found.to(h)
            z[there, number] = self.heads[number](found).to(z)
        return Embedded(h, z)

    def _check(self, rows: Sequence[Tensor], lengths: Tensor, present: Tensor) -> None:
        if len(rows) != len(self.names) or lengths.shape != present.shape or lengths.shape[1:] != (len(self.names),):
            raise ValueError(
                f"a batch must hold {', '.join(self.names)}, lengths and presence (B, {len(self.names)}), got "
                f"{len(rows)} modalities, {tuple(lengths.shape)} and {tuple(present.shape)}"
            )
        if present.dtype != torch.bool:
            raise ValueError(f"presence must be bool, got {present.dtype}")
        for number, (name, part, given) in enumerate(zip(self.names, rows, self.inputs, strict=True)):
            if len(part) != len(present):
                raise ValueError(f"{name} has {len(part)} instances, and presence {len(present)}")
            if isinstance(given, Standardise) and part.shape[-1] != len(given.mean):
                raise ValueError(f"{name} must have {len(given.mean)} features, as in training, got {part.shape[-1]}")
            if name in self.sequences:
                own = lengths[present[:, number], number]
                if part.dim() != 3 or (len(own) and not 1 <= own.min() <= own.max() <= part.shape[1]):
                    raise ValueError(f"{name} must be sequences (B, T, d) of 1 to T steps, got {tuple(part.shape)}")


def _dim(name: str, encoder: nn.Module) -> int:
    try:
        return representation_dim(encoder)
    except ValueError as error:
        raise ValueError(f"cannot tell how long the representations of {name} are: give it in dims") from error


class _Unit(nn.Module):
    """Images uint8 in [0, 1]."""

    def forward(self, images: Tensor) -> Tensor:
        return images / 255


def known_steps(split: Split, name: str) -> Tensor:
    """All rows (n, d) of a modality that are there: of sequences the steps that are no padding."""
    rows: Any = split.modalities[name]
    there = split.present.get(name, torch.ones(len(rows), dtype=torch.bool))
    if rows.dim() == 2:
        return rows[there]
    lengths = split.lengths.get(name, torch.full((len(rows),), rows.shape[1]))
    return rows[there][torch.arange(rows.shape[1]) < lengths[there, None]]
