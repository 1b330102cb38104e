"""`EncoderConfig`: how the encoders of a model are built; files of encoders have it in their header."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from manyviews.data import Column, Dataset, DatasetError
from manyviews.models.encoders import ENCODERS, get_encoder
from manyviews.models.feature_encoders import SequenceEncoder, TextEncoder, VectorEncoder
from manyviews.models.hf_encoders import HFAudioEncoder, HFImageEncoder, HFTextEncoder
from manyviews.models.media_encoders import FrameEncoder, SpectrogramEncoder
from manyviews.utils import suggest

CUSTOM = "custom"
"""Name of an encoder that is a module of the user: its weights are saved, but it cannot be built from a file."""
ENCODERS_BY_KIND: dict[str, dict[str, Callable[..., nn.Module]]] = {
    "image": ENCODERS,
    "sequence": {"transformer": SequenceEncoder},
    "vector": {"mlp": VectorEncoder},
    "text": {"transformer": TextEncoder},
    "audio": {"spectrogram": SpectrogramEncoder},
    "video": ENCODERS,
}
"""Encoders by name, for each kind of modality; those of videos encode their frames."""
EXTERNAL_PACKAGES: dict[str, tuple[str, ...]] = {
    "image": ("timm", "torchvision", "hf"), "text": ("hf",), "audio": ("hf",),
    "video": ("timm", "torchvision", "hf"),
}  # fmt: skip
"""Packages with encoders PACKAGE:NAME, for each kind of modality; hf is transformers, whose NAME may be a folder."""
HF_ENCODERS: dict[str, Callable[..., nn.Module]] = {
    "image": HFImageEncoder, "text": HFTextEncoder, "audio": HFAudioEncoder, "video": HFImageEncoder,
}  # fmt: skip
WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {"video": FrameEncoder}
"""Encoders of a kind whose values are several inputs of another encoder."""


@dataclass(frozen=True)
class EncoderSpec:
    """One encoder: its architecture and the kind of its input.

    Image encoders take RGB in [0, 1], not normalized, of `size` x `size` pixels.

    Examples:
        >>> EncoderSpec("sequence", "transformer", {"features": 20, "layers": 2}).kind
        'sequence'
    """

    kind: str
    name: str
    options: dict[str, Any] = field(default_factory=dict)
    size: int = 0
    preprocessing: dict[str, Any] = field(default_factory=dict)
    """What the columns of its modalities need to load its input, such as a tokenizer; see `Column.prepare`."""

    def check_column(self, modality: str, column: Column) -> None:
        """Raise a DatasetError if a column has another kind or number of features than in training."""
        # By kind: new data of a user may have another kind than the data of the training.
        if column.kind != self.kind:
            raise DatasetError(f"{modality} must be of the kind {self.kind}, as in training, got {column.kind}")
        features = self.options.get("features", column.dim)
        if column.dim != features:
            raise DatasetError(f"{modality} must have {features} features, as in training, got {column.dim}")


@dataclass(frozen=True)
class EncoderConfig:
    """The encoders of a `MultiViewEncoder`, and the encoder of each modality.

    Examples:
        >>> specs = {"i": EncoderSpec("image", "resnet-small", size=32), "t": EncoderSpec("text", "transformer")}
        >>> config = EncoderConfig(specs, {"front": "i", "side": "i", "caption": "t"}, dim=128)
        >>> config.list_modalities("image"), config.largest_size
        (['front', 'side'], 32)
    """

    encoders: dict[str, EncoderSpec]
    modalities: dict[str, str]
    dim: int | None = None
    """Dimension of the representations, if a linear layer adapts those of the encoders."""

    @property
    def largest_size(self) -> int:
        """Largest size of the images; 0 without images."""
        return max(spec.size for spec in self.encoders.values())

    def get_spec(self, modality: str) -> EncoderSpec:
        return self.encoders[self.modalities[modality]]

    def prepare_dataset(self, dataset: Dataset) -> Dataset:
        """Return the dataset with columns that load what the encoders of its modalities take."""
        prepared = {
            name: column.prepare(self.get_spec(name).preprocessing) if name in self.modalities else column
            for name, column in dataset.modalities.items()
        }
        return replace(dataset, modalities=prepared)

    def list_modalities(self, kind: str) -> list[str]:
        """List the modalities of a kind."""
        # By kind: a file or a query of a user has a kind, and its modality is chosen by it.
        return [name for name in self.modalities if self.get_spec(name).kind == kind]


def list_encoders(kind: str) -> list[str]:
    """List the names of the encoders of a kind."""
    return [*ENCODERS_BY_KIND[kind], *(f"{package}:NAME" for package in EXTERNAL_PACKAGES.get(kind, ()))]


def is_external(kind: str, name: str) -> bool:
    """Return whether a name is PACKAGE:NAME, of a package with encoders for this kind of modality."""
    return ":" in name and name.partition(":")[0] in EXTERNAL_PACKAGES.get(kind, ())


def check_encoder_name(kind: str, name: str) -> None:
    """Raise a ValueError unless there is an encoder of this name for a kind of modality."""
    if not is_external(kind, name) and name not in [*list_encoders(kind), CUSTOM]:
        raise ValueError(f"no encoder {name!r} for {kind}{suggest(name, list_encoders(kind))}")


def select_options(kind: str, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Select the options that an encoder accepts and that are not None."""
    build = ENCODERS_BY_KIND[kind].get(name)
    accepted = () if build is None else inspect.signature(build).parameters
    return {key: value for key, value in options.items() if key in accepted and value is not None}


def build_encoder(spec: EncoderSpec) -> nn.Module:
    """Build an encoder with random weights.

    Examples:
        >>> build_encoder(EncoderSpec("vector", "mlp", {"features": 20})).dim
        128
    """
    check_encoder_name(spec.kind, spec.name)
    if spec.name == CUSTOM:
        raise ValueError("the encoder is a module of yours: pass it, as in mv.load_encoder(PATH, encoder=MODULE)")
    encoder = _build_inner_encoder(spec)
    wrap = WRAPPERS.get(spec.kind)
    return encoder if wrap is None else wrap(encoder)


def _build_inner_encoder(spec: EncoderSpec) -> nn.Module:
    if not is_external(spec.kind, spec.name):
        return ENCODERS_BY_KIND[spec.kind][spec.name](**spec.options)
    # Encoders of other packages compute buffers when they are built, so the meta device must not apply.
    with torch.device("cpu"):
        if spec.name.startswith("hf:"):
            return HF_ENCODERS[spec.kind](**spec.options)
        return get_encoder(spec.name, **spec.options)
