"""Encoders that start from pretrained weights: which they are, and how they are loaded."""

from __future__ import annotations

from pathlib import Path

from manyviews.data import Column, Dataset
from manyviews.loading import ViewLoader
from manyviews.models import (
    CUSTOM,
    EncoderError,
    EncoderSpec,
    MultiViewEncoder,
    describe_pretrained,
    freeze_unused_parameters,
    is_external,
    load_pretrained,
    load_weights_file,
)
from manyviews.training.config import Config, ConfigError


def is_pretrained(config: Config, modality: str, kind: str) -> bool:
    """Return whether the encoder of a modality starts from pretrained weights."""
    return _uses_pretrained_weights(config, modality, kind) or config.get_weights_file(modality, kind) is not None


def find_pretrained(config: Config, modality: str, column: Column) -> EncoderSpec | None:
    """Describe the encoder of a modality if it starts from the weights of another library; None for others.

    Raises:
        ConfigError: there is no such model, or it does not encode data of this kind.
    """
    name = config.get_encoder_name(modality, column.kind)
    if name is None or not is_external(column.kind, name) or not is_pretrained(config, modality, column.kind):
        return None
    try:
        return describe_pretrained(column.kind, name)
    except ValueError as error:
        folder = Path(name.partition(":")[2])
        # The config of a run has the absolute path.
        is_moved = folder.is_absolute() and not folder.exists()
        hint = (
            ". A run that is resumed needs the folder, or a link to it, where it was at the start" if is_moved else ""
        )
        raise ConfigError(f"{error}{hint}") from error


def load_initial_weights(config: Config, encoder: MultiViewEncoder, split: Dataset, loader: ViewLoader) -> None:
    """Load the pretrained weights of encoders; the first two instances of `loader` show which parameters are used.

    Raises:
        ConfigError: weights cannot be loaded, or do not fit the encoder.
    """
    shared = {key: modality for modality, key in encoder.encoder_of_modality.items()}
    pretrained = {
        key: modality for key, modality in shared.items() if is_pretrained(config, modality, split[modality].kind)
    }
    for key, modality in pretrained.items():
        kind, module = split[modality].kind, encoder.get_encoder(key)
        name, path = config.get_encoder_name(modality, kind), config.get_weights_file(modality, kind)
        if name is not None and name == CUSTOM:
            raise ConfigError("weights: the encoder is a module of yours: load its weights before you pass it")
        try:
            if path is not None:
                load_weights_file(module, kind, path)
            elif name is not None:
                load_pretrained(module, kind, name)
        except (ValueError, EncoderError) as error:
            raise ConfigError(str(error)) from error
    if pretrained:
        index = split.get_mask(list(shared.values())).all(1).nonzero().squeeze(1)[:2]
        for group in loader.load(index).groups if len(index) else ():
            if group.encoder in pretrained:
                inputs = (group.values,) if group.lengths is None else (group.values, group.lengths)
                freeze_unused_parameters(encoder.get_encoder(group.encoder), *inputs)


def check_pretrained(config: Config) -> None:
    """Raise a ConfigError for options about pretrained weights that no encoder uses."""
    names = [text.partition("=")[2] or text for text in config.encoder]
    if config.pretrained and not any(name.startswith(("timm:", "torchvision:")) for name in names):
        raise ConfigError(
            "pretrained is for encoders timm:NAME and torchvision:NAME (hf:NAME is always pretrained), got encoder "
            + " ".join(config.encoder)
        )
    for text in config.weights:
        path = Path(text.partition("=")[2] or text).expanduser()
        if not path.is_file():
            raise ConfigError(f"weights: there is no file {path}")


def _uses_pretrained_weights(config: Config, modality: str, kind: str) -> bool:
    name = config.get_encoder_name(modality, kind) or ""
    return is_external(kind, name) and (config.pretrained or name.startswith("hf:"))
