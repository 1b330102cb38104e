"""Which encoders keep their initial weights, up to which submodule, and which start from trained weights."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import Tensor, nn

from manyviews.data import Column
from manyviews.models import CUSTOM, EncoderConfig, MultiViewEncoder
from manyviews.training.config import DEFAULT_ENCODER_KIND, Config, ConfigError
from manyviews.training.initial_weights import is_pretrained
from manyviews.utils import logger, suggest

ALL = "all"
"""Name of all modalities in `Config.freeze`."""
MAX_LISTED = 8
"""Maximum number of submodules in an error message."""


def find_frozen(config: Config, columns: Mapping[str, Column], encoders: Mapping[str, str]) -> dict[str, str]:
    """Find the frozen encoders, each with the submodule from which on it is trained; "" if no part of it is.

    `encoders` has the name of the encoder of each modality of `columns`.

    Raises:
        ConfigError: there is no modality or kind of a name, or an encoder is only frozen for some of its modalities.
    """
    names: dict[str, set[str]] = {ALL: set(columns)}
    for modality, column in columns.items():
        names.setdefault(column.kind, set()).add(modality)
    names |= {modality: {modality} for modality in columns}

    def find_encoders(option: str, chosen: Collection[str]) -> list[str]:
        for name in chosen:
            if name not in names:
                raise ConfigError(f"{option}: there is no modality or kind {name!r}{suggest(name, names)}")
        modalities = {modality for name in chosen for modality in names[name]}
        keys = {encoders[modality] for modality in modalities}
        for other, key in encoders.items():
            if key in keys and other not in modalities:
                raise ConfigError(
                    f"{option} {' '.join(chosen)}: {other} has the same encoder; add it, or use --separate-encoders"
                )
        return [key for key in dict.fromkeys(encoders.values()) if key in keys]  # in the same order on all ranks

    frozen = dict.fromkeys(find_encoders("freeze", config.freeze), "")
    for text in config.freeze_until:
        name, _, submodule = text.rpartition("=")
        if not submodule:
            raise ConfigError(f"freeze_until must be NAME, MODALITY=NAME or KIND=NAME, got {text!r}")
        default = ALL if len(set(encoders.values())) == 1 else DEFAULT_ENCODER_KIND
        keys = find_encoders("freeze_until", [name or default])
        if twice := [key for key in keys if key in frozen]:
            raise ConfigError(f"freeze_until {text}: the encoder of {twice[0]} is frozen twice")
        frozen |= dict.fromkeys(keys, submodule)
    return frozen


def freeze_encoders(encoder: MultiViewEncoder, frozen: Mapping[str, str]) -> None:
    """Exclude the weights of frozen encoders, or of their first parts, from training."""
    for key, until in frozen.items():
        module = encoder.get_encoder(key)
        parameters = [weight for part in list_frozen_parts(module, until, key) for weight in part.parameters()]
        for parent in _list_parents(_find_submodule(module, until, key)):
            parameters += module.get_submodule(parent).parameters(recurse=False)
        if until and not parameters:
            raise ConfigError(f"freeze_until: no weights of the encoder of {key} are before {until}")
        for parameter in parameters:
            parameter.requires_grad_(False)


def list_frozen_parts(encoder: nn.Module, until: str, key: str = "") -> list[nn.Module]:
    """List the submodules of an encoder that come before `until`, in the order of `named_modules`."""
    if not until:
        return [encoder]
    until, parts = _find_submodule(encoder, until, key), []
    for name, module in encoder.named_modules():
        if name == until:
            break
        if name and not until.startswith(f"{name}."):
            parts.append(module)
    return parts


def _find_submodule(encoder: nn.Module, name: str, key: str) -> str:
    """Return the full name of a submodule: `name`, or the only one that ends with it."""
    names = [full for full, _ in encoder.named_modules() if full]
    matches = [full for full in names if full.endswith(f".{name}")]
    if not name or name in names:
        return name
    if len(matches) == 1:
        return matches[0]
    hint = suggest(name, names)
    if "did you mean" not in hint:
        children = [child for child, _ in encoder.named_children()]
        hint = (
            f", only {', '.join(children[:MAX_LISTED])}{', ...' if len(children) > MAX_LISTED else ''} and their parts"
        )
    raise ConfigError(f"freeze_until: the encoder of {key} has no submodule {name!r}{hint}")


def _list_parents(name: str) -> list[str]:
    """List the modules that contain a submodule; the outermost has the name "".

    Examples:
        >>> _list_parents("encoder.layer.8")
        ['', 'encoder', 'encoder.layer']
    """
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(len(parts))] if name else []


def list_trained_encoders(config: Config, encoders: EncoderConfig) -> list[str]:
    """List the encoders whose initial weights are not random: pretrained, of another run, or modules of the user."""
    return [
        key
        for modality, key in encoders.modalities.items()
        if config.init is not None
        or encoders.encoders[key].name == CUSTOM
        or is_pretrained(config, modality, encoders.encoders[key].kind)
    ]


def make_lr_scales(config: Config, encoder: MultiViewEncoder, trained: Collection[str]) -> dict[Tensor, float]:
    """Return the multipliers of learning rates by weight: `encoder_lr_scale` for encoders that start from trained ones.

    Raises:
        ConfigError: the config sets it, and there are no such weights.
    """
    scale = 1.0 if config.encoder_lr_scale is None else config.encoder_lr_scale
    if scale == 1:
        return {}
    if not trained:
        raise ConfigError(
            "encoder_lr_scale is for encoders that start from trained weights, there are none: use --learning-rate for "
            "all weights"
        )
    weights = [weight for key in trained for weight in encoder.get_encoder(key).parameters() if weight.requires_grad]
    return dict.fromkeys(weights, scale)


def warn_random_frozen(frozen: Mapping[str, str], trained: Collection[str]) -> None:
    """Warn about frozen encoders with random weights."""
    if random := [key for key in frozen if key not in trained]:
        logger.warning(
            f"frozen weights of the encoder of {', '.join(random)} are random: what is trained uses random features. "
            "--init and --weights load trained weights"
        )
