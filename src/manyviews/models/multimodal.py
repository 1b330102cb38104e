"""Multimodal models: an encoder per modality, h (B, N, dim), and heads into a shared space, z (B, N, out_dim).

Modalities are views. Missing entries are not encoded: they cost no compute, and their h and z are zeros.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from manyviews.data import Dataset, Features, check_split
from manyviews.models.embedder import EmbedderOutput
from manyviews.models.encoders import ENCODERS, get_encoder, get_representation_dim, switch_to_eval
from manyviews.models.feature_encoders import SequenceEncoder, Standardize, VectorEncoder
from manyviews.utils import describe_type

ModalityKind = Literal["sequence", "vector", "image"]


@dataclass(frozen=True)
class MultimodalConfig:
    """Architecture of a `MultimodalEncoder`."""

    modalities: dict[str, tuple[ModalityKind, int]]
    """Kind and number of features (0 for images) of each modality."""
    hidden_dim: int = 128
    transformer_layers: int = 3
    transformer_heads: int = 8
    dropout: float = 0.1
    image_encoder: str = "resnet-small"


class MultimodalEncoder(nn.Module):
    """One encoder per modality.

    Maps a batch of `ModalityLoader` to representations h (B, N, dim); missing entries are zeros.

    Args:
        encoders: a module for each modality, from its features (B, ...), and lengths for sequences, to (B, n). A linear
            layer maps n to `dim` where they differ.
        sequences: names of the modalities that are sequences.
        dim: dimension of the representations.
        preprocessors: modules that are applied before the encoders, such as `Standardize`.
        encoder_dims: output dimension n of encoders without an attribute `dim`.

    Examples:
        >>> encoder = MultimodalEncoder({"text": SequenceEncoder(20), "audio": VectorEncoder(7)}, sequences={"text"})
        >>> features = [torch.randn(4, 9, 20), torch.randn(4, 7)]
        >>> lengths, mask = torch.tensor([[9, 1]] * 4), torch.ones(4, 2, dtype=torch.bool)
        >>> encoder([*features, lengths, mask]).shape
        torch.Size([4, 2, 128])
    """

    config: MultimodalConfig | None = None
    """The config of an encoder built by `from_config`, else None."""

    def __init__(
        self,
        encoders: Mapping[str, nn.Module],
        *,
        sequences: set[str] | frozenset[str] = frozenset(),
        dim: int = 128,
        preprocessors: Mapping[str, nn.Module] = MappingProxyType({}),
        encoder_dims: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        if not encoders:
            raise ValueError("MultimodalEncoder needs at least one encoder")
        self.names, self.sequences, self.dim = tuple(encoders), frozenset(sequences), dim
        for argument in (self.sequences, preprocessors, encoder_dims):
            if unknown := [name for name in argument if name not in encoders]:
                raise ValueError(f"no encoder for {unknown[0]!r}: there are encoders for {', '.join(encoders)}")
        self.preprocessors = nn.ModuleList([preprocessors.get(name, nn.Identity()) for name in self.names])
        self.encoders = nn.ModuleList(encoders.values())
        dims = [encoder_dims.get(name) or _get_feature_dim(name, encoder) for name, encoder in encoders.items()]
        self.adapters = nn.ModuleList([nn.Identity() if n == dim else nn.Linear(n, dim) for n in dims])
        self.register_buffer("mean_representation", torch.zeros(len(self.names), dim))
        self.mean_representation: Tensor
        """Mean representation (N, dim) of the training split; `fuse` uses it for missing entries."""

    @classmethod
    def from_config(cls, config: MultimodalConfig) -> "MultimodalEncoder":
        """Build the paper's encoders: a transformer per sequence, an MLP per vector, a ResNet for images."""
        encoders: dict[str, nn.Module] = {}
        preprocessors: dict[str, nn.Module] = {}
        transformer = config.transformer_layers, config.transformer_heads, config.dropout
        for name, (kind, features) in config.modalities.items():
            preprocessors[name] = _ToFloatRGB() if kind == "image" else Standardize(features)
            if kind == "image":
                # Encoders of other packages compute buffers when they are built, so the meta device must not apply.
                with nullcontext() if config.image_encoder in ENCODERS else torch.device("cpu"):
                    encoders[name] = get_encoder(config.image_encoder)
            elif kind == "sequence":
                encoders[name] = SequenceEncoder(features, config.hidden_dim, *transformer)
            else:
                encoders[name] = VectorEncoder(features, config.hidden_dim, config.dropout)
        sequences = {name for name, (kind, _) in config.modalities.items() if kind == "sequence"}
        encoder = cls(encoders, sequences=sequences, dim=config.hidden_dim, preprocessors=preprocessors)
        encoder.config = config
        return encoder

    @classmethod
    def from_dataset(cls, split: Dataset, names: Sequence[str], **options: Any) -> "MultimodalEncoder":
        """Build encoders for modalities of a training split, and standardize features with its statistics.

        `options` are fields of `MultimodalConfig`, such as hidden_dim.
        """
        check_split(split)
        for name in names:
            if not split[name].get_mask().any():
                raise ValueError(f"{name} is missing in all training instances: leave it out of the modalities")
        kinds = {name: (cast("ModalityKind", split[name].kind), split[name].dim) for name in names}
        encoder = cls.from_config(MultimodalConfig(kinds, **options))
        for name, module in zip(encoder.names, encoder.preprocessors, strict=True):
            column = split[name]
            if isinstance(module, Standardize) and isinstance(column, Features):
                module.fit(column.collect_valid())
        return encoder

    def forward(self, views: Sequence[Tensor]) -> Tensor:
        is_list = isinstance(views, (list, tuple))
        if not is_list or len(views) != len(self.names) + 2 or not all(isinstance(part, Tensor) for part in views):
            got = f"[{', '.join(type(part).__name__ for part in views)}]" if is_list else describe_type(views)
            shape = f"(B, {len(self.names)})"
            parts = f"the features of {', '.join(self.names)}, lengths {shape} and mask {shape}"
            hint = "use ModalityLoader(split, encoder.names).load_batch(index)"
            raise ValueError(f"a batch must be a list of {parts}, got {got}: {hint}")
        *features, lengths, mask = views
        self._check_batch(features, lengths, mask)
        reference = next(self.parameters(), self.mean_representation)
        h = reference.new_zeros(len(mask), len(self.names), self.dim)
        for i, name in enumerate(self.names):
            valid = mask[:, i]
            if not valid.any():
                h[:, i] = _make_zero_from_parameters(self.encoders[i], self.adapters[i], like=reference)
                continue
            inputs = self.preprocessors[i](features[i][valid].to(reference))
            steps = (lengths[valid, i],) if name in self.sequences else ()
            # A single instance has no batch statistics, so batch norm uses its running statistics.
            with switch_to_eval(self.encoders[i], _BatchNorm) if len(inputs) == 1 else nullcontext():
                h[valid, i] = self.adapters[i](self.encoders[i](inputs, *steps)).to(h)
        return h

    def fuse(self, h: Tensor, mask: Tensor) -> Tensor:
        """Concatenate representations (B, N * dim); the training mean replaces missing ones (late fusion)."""
        return torch.where(mask[..., None], h, self.mean_representation.to(h)).flatten(1)

    def _check_batch(self, features: Sequence[Tensor], lengths: Tensor, mask: Tensor) -> None:
        if lengths.shape != mask.shape or lengths.shape[1:] != (len(self.names),):
            got = f"{tuple(lengths.shape)} and {tuple(mask.shape)}"
            raise ValueError(f"lengths and mask of a batch must be (B, {len(self.names)}), got {got}")
        if mask.dtype != torch.bool:
            raise ValueError(f"mask must be bool, got {mask.dtype}")
        for i, (name, part, module) in enumerate(zip(self.names, features, self.preprocessors, strict=True)):
            if len(part) != len(mask):
                raise ValueError(f"{name} has {len(part)} instances, the mask has {len(mask)}")
            is_sequence, is_image = name in self.sequences, isinstance(module, _ToFloatRGB)
            kind, dim = ("sequences", 3) if is_sequence else ("images", 4) if is_image else ("vectors", 2)
            if isinstance(module, (Standardize, _ToFloatRGB)) and part.dim() != dim:
                raise ValueError(f"{name} must be {kind}, as in training, got {tuple(part.shape)}")
            if isinstance(module, Standardize) and part.shape[-1] != len(module.mean):
                raise ValueError(f"{name} must have {len(module.mean)} features, as in training, got {part.shape[-1]}")
            valid = lengths[mask[:, i], i]
            if is_sequence and (part.dim() != 3 or not bool(((valid >= 1) & (valid <= part.shape[1])).all())):
                raise ValueError(f"{name} must be sequences (B, T, d) of 1 to T steps, got {tuple(part.shape)}")


class PerModalityHeads(nn.Module):
    """One head per view, from representations h (B, N, dim) and mask (B, N) to embeddings z (B, N, out_dim).

    Examples:
        >>> PerModalityHeads(3, 128, out_dim=16)(torch.randn(4, 3, 128), torch.ones(4, 3, dtype=torch.bool)).shape
        torch.Size([4, 3, 16])
    """

    def __init__(self, views: int, in_dim: int, out_dim: int = 128) -> None:
        super().__init__()
        self.out_dim = out_dim
        heads = [(nn.Linear(in_dim, in_dim), nn.ReLU(), nn.Linear(in_dim, out_dim)) for _ in range(views)]
        self.heads = nn.ModuleList([nn.Sequential(*layers) for layers in heads])

    def forward(self, h: Tensor, mask: Tensor) -> Tensor:
        z = h.new_zeros(*h.shape[:2], self.out_dim)
        for i, head in enumerate(self.heads):
            valid = mask[:, i]
            z[valid, i] = head(h[valid, i]).to(z)
        return z


class LateFusionHead(nn.Module):
    """A linear layer from the concatenated representations h (B, N, dim) to predictions (B, out_dim).

    Examples:
        >>> LateFusionHead(3, 128, out_dim=7)(torch.randn(4, 3, 128), torch.ones(4, 3, dtype=torch.bool)).shape
        torch.Size([4, 7])
    """

    def __init__(self, views: int, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(views * in_dim, out_dim)
        # Median and scale of regression targets, so that the layer predicts standardized values.
        self.register_buffer("target_median", torch.zeros(()))
        self.register_buffer("target_scale", torch.ones(()))
        self.target_median: Tensor
        self.target_scale: Tensor

    def forward(self, h: Tensor, _mask: Tensor) -> Tensor:
        return self.target_median + self.target_scale * self.linear(h.flatten(1))


class MultimodalEmbedder(nn.Module):
    """A multimodal encoder and a head: maps batches of `ModalityLoader` to h (B, N, dim) and z (B, N, out_dim).

    Examples:
        >>> from manyviews.data import load_dataset
        >>> from manyviews.loading import ModalityLoader
        >>> digits, names = load_dataset("digits")["train"], ("pixels", "fourier")
        >>> embedder = MultimodalEmbedder(MultimodalEncoder.from_dataset(digits, names))
        >>> h, z = embedder(ModalityLoader(digits, names).load_batch(torch.arange(5)))
        >>> h.shape, z.shape
        (torch.Size([5, 2, 128]), torch.Size([5, 2, 128]))
    """

    def __init__(self, encoder: MultimodalEncoder, head: nn.Module | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = PerModalityHeads(len(encoder.names), encoder.dim) if head is None else head

    def forward(self, views: Sequence[Tensor]) -> EmbedderOutput:
        h = self.encoder(views)
        return EmbedderOutput(h, self.head(h, views[-1]))


def _make_zero_from_parameters(*modules: nn.Module, like: Tensor) -> Tensor:
    """Return a zero that depends on all parameters, so that DDP finds a gradient for each."""
    return sum((p.sum() * 0 for module in modules for p in module.parameters()), like.new_zeros(()))


def _get_feature_dim(name: str, encoder: nn.Module) -> int:
    try:
        return get_representation_dim(encoder)
    except ValueError as error:
        hint = f"pass encoder_dims={{{name!r}: ...}}"
        raise ValueError(f"cannot infer the dimension of the representations of {name}: {hint}") from error


class _ToFloatRGB(nn.Module):
    """Converts uint8 images, gray or RGB, to RGB in [0, 1]."""

    def forward(self, images: Tensor) -> Tensor:
        return images.expand(-1, 3, -1, -1) / 255
