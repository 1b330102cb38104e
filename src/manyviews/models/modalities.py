"""Modalities are views: an encoder for each, h (B, N, dim), and heads into a common space, z (B, N, out).

What an instance lacks is not encoded at all: its rows cost nothing, and its h and z are zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from manyviews.data import Split
from manyviews.data.dataset import check_split
from manyviews.models.embedder import Embedded
from manyviews.models.encoders import ENCODERS, get_encoder, representation_dim
from manyviews.models.features import SequenceEncoder, Standardise, VectorEncoder
from manyviews.utils.text import describe_type

Kind = Literal["sequence", "vector", "image"]


@dataclass(frozen=True)
class ModalityDescription:
    """How to build the encoders of modalities."""

    modalities: dict[str, tuple[Kind, int]]
    """The kind of each, and how many features it has (0 for images)."""
    dim: int = 128
    layers: int = 3
    heads: int = 8
    dropout: float = 0.1
    image_encoder: str = "resnet-small"


class ModalityEncoder(nn.Module):
    """An encoder for each modality.

    Called with a batch of `ModalityBatches`, it gives representations h (B, N, dim); what is missing is zeros.

    Args:
        encoders: for each modality any module from its rows (B, ...) to (B, n); for sequences from rows and lengths. A
            linear layer brings those of another n to `dim`.
        sequences: which of them are for sequences.
        dim: of the representations.
        inputs: what is done to the rows of a modality before, such as `Standardise`.
        dims: the n of encoders that do not tell their `dim`.

    Examples:
        >>> encoder = ModalityEncoder({"text": SequenceEncoder(20), "audio": VectorEncoder(7)}, sequences={"text"})
        >>> rows = [torch.randn(4, 9, 20), torch.randn(4, 7)]
        >>> lengths, present = torch.tensor([[9, 1]] * 4), torch.ones(4, 2, dtype=torch.bool)
        >>> encoder([*rows, lengths, present]).shape
        torch.Size([4, 2, 128])
    """

    about: ModalityDescription | None = None
    """Of encoders that `described` has built."""

    def __init__(
        self,
        encoders: Mapping[str, nn.Module],
        *,
        sequences: set[str] | frozenset[str] = frozenset(),
        dim: int = 128,
        inputs: Mapping[str, nn.Module] | None = None,
        dims: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__()
        if not encoders:
            raise ValueError("a model of modalities needs at least one encoder")
        self.names, self.sequences, self.dim = tuple(encoders), frozenset(sequences), dim
        for given in (self.sequences, inputs or {}, dims or {}):
            if unknown := [name for name in given if name not in encoders]:
                raise ValueError(f"there is no encoder of {unknown[0]}, only of {', '.join(encoders)}")
        self.inputs = nn.ModuleList([(inputs or {}).get(name, nn.Identity()) for name in self.names])
        self.encoders = nn.ModuleList(encoders.values())
        lengths = [(dims or {}).get(name) or _dim(name, encoder) for name, encoder in encoders.items()]
        self.adapters = nn.ModuleList([nn.Identity() if n == dim else nn.Linear(n, dim) for n in lengths])
        self.register_buffer("centre", torch.zeros(len(self.names), dim))
        self.centre: Tensor
        """The mean representation (N, dim) of the training split: stands for what is missing in `fused`."""

    @classmethod
    def described(cls, about: ModalityDescription) -> ModalityEncoder:
        """The paper's: a transformer for each kind of sequence; for vectors an MLP, for images a ResNet."""
        encoders: dict[str, nn.Module] = {}
        inputs: dict[str, nn.Module] = {}
        for name, (kind, features) in about.modalities.items():
            inputs[name] = _Unit() if kind == "image" else Standardise(features)
            if kind == "image":
                # Another package's keeps what it makes of itself, also where ours are built without memory.
                with nullcontext() if about.image_encoder in ENCODERS else torch.device("cpu"):
                    encoders[name] = get_encoder(about.image_encoder)
            elif kind == "sequence":
                encoders[name] = SequenceEncoder(features, about.dim, about.layers, about.heads, about.dropout)
            else:
                encoders[name] = VectorEncoder(features, about.dim, about.dropout)
        sequences = {name for name, (kind, _) in about.modalities.items() if kind == "sequence"}
        made = cls(encoders, sequences=sequences, dim=about.dim, inputs=inputs)
        made.about = about
        return made

    @classmethod
    def for_split(cls, split: Split, names: Sequence[str], **options: Any) -> ModalityEncoder:
        """For the modalities of a training split, whose features it is standardised to.

        `options` are those of `ModalityDescription`: dim, layers, heads, dropout, image_encoder.
        """
        check_split(split)
        kinds: dict[str, tuple[Kind, int]] = {}
        for name in names:
            if name not in split.modalities:
                raise ValueError(f"there is no modality {name!r}, only {', '.join(split.modalities)}")
            if name in split.present and not split.present[name].any():
                raise ValueError(f"{name} is missing in all training instances: leave it out of the modalities")
            rows = split.modalities[name]
            if not isinstance(rows, Tensor) or rows.dim() == 4:
                kinds[name] = ("image", 0)
            else:
                kinds[name] = ("sequence" if rows.dim() == 3 else "vector", rows.shape[-1])
        made = cls.described(ModalityDescription(kinds, **options))
        for name, given in zip(made.names, made.inputs, strict=True):
            if isinstance(given, Standardise):
                given.fit(known_steps(split, name))
        return made

    def forward(self, views: Sequence[Tensor]) -> Tensor:
        listed = isinstance(views, (list, tuple))
        if not listed or len(views) != len(self.names) + 2 or not all(isinstance(part, Tensor) for part in views):
            given = f"[{', '.join(type(part).__name__ for part in views)}]" if listed else describe_type(views)
            shape = f"(B, {len(self.names)})"
            raise ValueError(
                f"a batch must be a list of the rows of {', '.join(self.names)}, their lengths {shape} and presence "
                f"{shape}, got {given}: ModalityBatches(split, encoder.names).of(index) makes it"
            )
        *rows, lengths, present = views
        self._check(rows, lengths, present)
        like = next(self.parameters(), self.centre)
        h = like.new_zeros(len(present), len(self.names), self.dim)
        for number, name in enumerate(self.names):
            there = present[:, number]
            if not there.any():
                h[:, number] = _nothing_of(self.encoders[number], self.adapters[number], like=like)
                continue
            own = self.inputs[number](rows[number][there].to(like))
            steps = (lengths[there, number],) if name in self.sequences else ()
            with _running_statistics(self.encoders[number]) if len(own) == 1 else nullcontext():
                h[there, number] = self.adapters[number](self.encoders[number](own, *steps)).to(h)
        return h

    def fused(self, h: Tensor, present: Tensor) -> Tensor:
        """Late fusion (B, N dim): the representations one after another, the training split's mean for missing ones."""
        return torch.where(present[..., None], h, self.centre.to(h)).flatten(1)

    def _check(self, rows: Sequence[Tensor], lengths: Tensor, present: Tensor) -> None:
        if lengths.shape != present.shape or lengths.shape[1:] != (len(self.names),):
            raise ValueError(
                f"lengths and presence of a batch must be (B, {len(self.names)}), got "
                f"{tuple(lengths.shape)} and {tuple(present.shape)}"
            )
        if present.dtype != torch.bool:
            raise ValueError(f"presence must be bool, got {present.dtype}")
        for number, (name, part, given) in enumerate(zip(self.names, rows, self.inputs, strict=True)):
            if len(part) != len(present):
                raise ValueError(f"{name} has {len(part)} instances, and presence {len(present)}")
            kind, dim = ("images", 4) if isinstance(given, _Unit) else ("vectors", 2)
            kind, dim = ("sequences", 3) if name in self.sequences else (kind, dim)
            if isinstance(given, (Standardise, _Unit)) and part.dim() != dim:
                raise ValueError(f"{name} must be {kind}, as in training, got {tuple(part.shape)}")
            if isinstance(given, Standardise) and part.shape[-1] != len(given.mean):
                raise ValueError(f"{name} must have {len(given.mean)} features, as in training, got {part.shape[-1]}")
            if name in self.sequences:
                own = lengths[present[:, number], number]
                if part.dim() != 3 or (len(own) and not 1 <= own.min() <= own.max() <= part.shape[1]):
                    raise ValueError(f"{name} must be sequences (B, T, d) of 1 to T steps, got {tuple(part.shape)}")


class ModalityHeads(nn.Module):
    """From representations h (B, N, dim) and which are there (B, N) to embeddings z (B, N, out), a head for each view.

    Examples:
        >>> ModalityHeads(3, 128, out=16)(torch.randn(4, 3, 128), torch.ones(4, 3, dtype=torch.bool)).shape
        torch.Size([4, 3, 16])
    """

    def __init__(self, views: int, dim: int, out: int = 128) -> None:
        super().__init__()
        self.out = out
        self.heads = nn.ModuleList(
            [nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, out)) for _ in range(views)]
        )

    def forward(self, h: Tensor, present: Tensor) -> Tensor:
        z = h.new_zeros(*h.shape[:2], self.out)
        for number, head in enumerate(self.heads):
            there = present[:, number]
            z[there, number] = head(h[there, number]).to(z)
        return z


class FusedHead(nn.Module):
    """From representations h (B, N, dim) to predictions (B, outputs): one linear layer on all of them together.

    Examples:
        >>> FusedHead(3, 128, outputs=7)(torch.randn(4, 3, 128), torch.ones(4, 3, dtype=torch.bool)).shape
        torch.Size([4, 7])
    """

    def __init__(self, views: int, dim: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(views * dim, outputs)
        # Of labels that are quantities, so that the layer itself need not grow to them.
        self.register_buffer("middle", torch.zeros(()))
        self.register_buffer("spread", torch.ones(()))
        self.middle: Tensor
        self.spread: Tensor

    def forward(self, h: Tensor, _present: Tensor) -> Tensor:
        return self.middle + self.spread * self.linear(h.flatten(1))


class ModalityEmbedder(nn.Module):
    """Encoders of modalities and a head: batches of `ModalityBatches` become h (B, N, dim) and z (B, N, out).

    Examples:
        >>> from manyviews.data import load_dataset
        >>> from manyviews.views import ModalityBatches
        >>> digits, names = load_dataset("digits")["train"], ("pixels", "fourier")
        >>> embedder = ModalityEmbedder(ModalityEncoder.for_split(digits, names))
        >>> h, z = embedder(ModalityBatches(digits, names).of(torch.arange(5)))
        >>> h.shape, z.shape
        (torch.Size([5, 2, 128]), torch.Size([5, 2, 128]))
    """

    def __init__(self, encoder: ModalityEncoder, head: nn.Module | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = ModalityHeads(len(encoder.names), encoder.dim) if head is None else head

    def forward(self, views: Sequence[Tensor]) -> Embedded:
        h = self.encoder(views)
        return Embedded(h, self.head(h, views[-1]))


@contextmanager
def _running_statistics(encoder: nn.Module) -> Iterator[None]:
    """Batch norm as in evaluation: a single row has no statistics of its own."""
    norms = [module for module in encoder.modules() if isinstance(module, _BatchNorm) and module.training]
    for norm in norms:
        norm.eval()
    try:
        yield
    finally:
        for norm in norms:
            norm.train()


def _nothing_of(*modules: nn.Module, like: Tensor) -> Tensor:
    """Zero, in which all parameters take part: ranks that exchange gradients wait for each of them."""
    return sum((p.sum() * 0 for module in modules for p in module.parameters()), like.new_zeros(()))


def _dim(name: str, encoder: nn.Module) -> int:
    try:
        return representation_dim(encoder)
    except ValueError as error:
        raise ValueError(f"cannot tell how long the representations of {name} are: give it in dims") from error


class _Unit(nn.Module):
    """Images of bytes, grey or RGB, as RGB in [0, 1]."""

    def forward(self, images: Tensor) -> Tensor:
        return images.expand(-1, 3, -1, -1) / 255


def known_steps(split: Split, name: str) -> Tensor:
    """All rows (n, d) of a modality that are there: of sequences the steps that are no padding."""
    rows: Any = split.modalities[name]
    there = split.present.get(name, torch.ones(len(rows), dtype=torch.bool))
    if rows.dim() == 2:
        return rows[there]
    lengths = split.lengths.get(name, torch.full((len(rows),), rows.shape[1]))
    return rows[there][torch.arange(rows.shape[1]) < lengths[there, None]]
