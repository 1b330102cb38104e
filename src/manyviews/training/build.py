"""From a config and its data to views and encoders: the spec, the transforms, the architecture."""

from __future__ import annotations

import dataclasses

from manyviews.data import Dataset, DatasetDict, Features, Images
from manyviews.loading import ViewSpec
from manyviews.models import (
    ENCODERS,
    EncoderConfig,
    EncoderSpec,
    MultiViewEncoder,
    Standardize,
    Stem,
    check_encoder_name,
    select_options,
)
from manyviews.training.config import KIND_FIELDS, Config, ConfigError
from manyviews.transforms import SimCLRTransform, Transform, infer_image_size

LARGE_IMAGE_SIZE = 64
"""Views with longer sides than this use the ImageNet defaults of stem, jitter and blur."""
OPTIMIZER_DEFAULTS = {"sgd": (1.0, 1e-6), "lars": (0.3, 1e-6), "adamw": (1e-3, 1e-2)}
"""Learning rate and weight decay of each optimizer."""


def resolve_views(config: Config, data: DatasetDict) -> Config:
    """Fill in the fields that depend on the data: views, sizes of images, transforms, optimization.

    Raises:
        ConfigError: config and data are incompatible.
    """
    train = data["train"]
    try:
        spec = ViewSpec.parse(config.views).resolve(data, separate_encoders=config.separate_encoders)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if config.supervised and not config.views:
        spec = ViewSpec(tuple(dataclasses.replace(item, count=1) for item in spec.items))
    if config.supervised and spec.num_views > len(spec.modalities):
        raise ConfigError(f"supervised training takes each modality once, got {' '.join(spec.to_texts())}")
    config = dataclasses.replace(config, views=spec.to_texts())
    config.check_num_views()
    for name in spec.modalities:
        if not train[name].get_mask().any():
            raise ConfigError(f"{name} is missing in all training instances: leave it out of the views")
    _check_kinds(config, {train[name].kind for name in spec.modalities}, spec)
    images = [column for name in spec.modalities if isinstance(column := train[name], Images)]
    if images:
        config = _resolve_images(config, spec, images)
    return resolve_optimization(config, is_image_only=len(images) == len(spec.modalities))


def _check_kinds(config: Config, kinds: set[str], spec: ViewSpec) -> None:
    """Raise a ConfigError for a field that no view uses, and for an encoder that does not exist."""
    for needed, names in KIND_FIELDS.items():
        for name in names if not kinds & set(needed) else ():
            if getattr(config, name) != getattr(Config, name):
                raise ConfigError(f"{name} is for {' and '.join(needed)} views, got {' '.join(config.views)}")
    keys = {*kinds, *spec.modalities, "image"}
    for text in config.encoder:
        key = text.partition("=")[0] if "=" in text else "image"
        if key not in keys:
            raise ConfigError(f"--encoder {text}: there is no modality or kind {key!r}, only {', '.join(sorted(keys))}")


def _resolve_images(config: Config, spec: ViewSpec, images: list[Images]) -> Config:
    size = config.image_size
    if size is None:
        inferred = max(infer_image_size(column.values) for column in images)
        size = max((item.size for item in spec.items), default=0) or inferred
    is_large = size > LARGE_IMAGE_SIZE
    return dataclasses.replace(
        config,
        image_size=size,
        jitter_strength=(1.0 if is_large else 0.5) if config.jitter_strength is None else config.jitter_strength,
        blur_prob=(0.5 if is_large else 0.0) if config.blur_prob is None else config.blur_prob,
        stem=_choose_stem(config, spec, is_large),
    )


def _choose_stem(config: Config, spec: ViewSpec, is_large: bool) -> Stem | None:
    """Choose the stem of built-in ResNets; None for that of `resnet-small`, which is for small images."""
    names = {config.get_encoder_name(name, "image") or Images.default_encoder for name in spec.modalities}
    builtin = names & set(ENCODERS)
    if not builtin and (config.stem is not None or config.width_mult is not None):
        raise ConfigError(f"stem and width_mult require a built-in ResNet, got encoder {' '.join(config.encoder)}")
    if config.stem is not None or not builtin or (builtin == {Images.default_encoder} and not is_large):
        return config.stem
    return "imagenet" if is_large else "small"


def resolve_optimization(config: Config, *, is_image_only: bool) -> Config:
    """Fill in the epochs, the optimizer, its learning rate and its weight decay."""
    optimizer = ("sgd" if is_image_only else "adamw") if config.optimizer == "auto" else config.optimizer
    learning_rate, weight_decay = OPTIMIZER_DEFAULTS[optimizer]
    return dataclasses.replace(
        config,
        epochs=config.epochs or (10 if is_image_only else 60),
        optimizer=optimizer,
        learning_rate=learning_rate if config.learning_rate is None else config.learning_rate,
        weight_decay=weight_decay if config.weight_decay is None else config.weight_decay,
    )


def make_spec(config: Config, data: DatasetDict) -> ViewSpec:
    """Make the spec of a resolved config, with the size of every view of images."""
    spec = ViewSpec.parse(config.views).resolve(data, separate_encoders=config.separate_encoders)
    if config.image_size is None:
        return spec
    train = data["train"]
    return ViewSpec(
        tuple(
            dataclasses.replace(item, size=item.size or config.image_size)
            if isinstance(train[item.modality], Images)
            else item
            for item in spec.items
        )
    )


def build_transforms(config: Config, spec: ViewSpec, _train: Dataset) -> list[Transform | None]:
    """Build the transform of each item of a spec."""
    largest = max((item.size for item in spec.items), default=0)
    return [
        SimCLRTransform(
            item.size,
            jitter_strength=config.jitter_strength or 0.0,
            blur_prob=config.blur_prob or 0.0,
            crop_scale=config.crop_scale if item.size == largest else config.small_crop_scale,
        )
        if item.size
        else None
        for item in spec.items
    ]


def build_encoder_config(config: Config, spec: ViewSpec, train: Dataset) -> EncoderConfig:
    """Choose the architecture of each encoder of a spec.

    Raises:
        ConfigError: there is no encoder of a chosen name.
    """
    encoders: dict[str, EncoderSpec] = {}
    for modality, key in spec.encoders.items():
        column = train[modality]
        name = config.get_encoder_name(modality, column.kind) or column.default_encoder
        try:
            check_encoder_name(column.kind, name)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        if key in encoders and encoders[key].name != name:
            names = " and ".join(other for other, shared in spec.encoders.items() if shared == key)
            raise ConfigError(
                f"{names} share an encoder, which cannot be both {encoders[key].name} and {name}: "
                "use --separate-encoders"
            )
        options = {
            "features": column.dim, "dim": config.hidden_dim, "layers": config.transformer_layers,
            "heads": config.transformer_heads, "dropout": config.dropout, "stem": config.stem,
            "width": config.width_mult,
        }  # fmt: skip
        size = max(item.size for item in spec.items if item.encoder == key)
        encoders[key] = EncoderSpec(column.kind, name, select_options(column.kind, name, options), size)
    return EncoderConfig(encoders, spec.encoders, config.hidden_dim if len(encoders) > 1 else None)


def fit_standardization(encoder: MultiViewEncoder, train: Dataset) -> None:
    """Standardize features with the statistics of a training split."""
    for modality, key in encoder.encoder_of_modality.items():
        column = train[modality]
        if isinstance(column, Features):
            standardize = encoder.get_encoder(key).standardize
            assert isinstance(standardize, Standardize)
            standardize.fit(column.collect_valid())
