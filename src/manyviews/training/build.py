"""From a config and its data to views and encoders: the spec, the transforms, the architecture."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from manyviews.data import Column, Dataset, DatasetDict, Features, Images, compute_statistics
from manyviews.loading import ViewSpec
from manyviews.models import (
    CUSTOM,
    ENCODERS,
    EncoderConfig,
    EncoderSpec,
    MultiViewEncoder,
    SequenceEncoder,
    Stem,
    VectorEncoder,
    check_encoder_name,
    select_options,
)
from manyviews.training.config import KIND_FIELDS, Config, ConfigError
from manyviews.training.custom_objects import CustomObjects
from manyviews.transforms import (
    FeatureTransform,
    ImageTransform,
    SequenceTransform,
    SimCLRTransform,
    Transform,
    VectorTransform,
    make_custom_transform,
)
from manyviews.utils import describe_type

LARGE_IMAGE_SIZE = 64
"""Views with longer sides than this use the ImageNet defaults of stem, jitter and blur."""
SMALL_DATA = 2000
"""Up to this many training instances of sequences alone, other defaults hold."""
SMALL_DATA_LEARNING_RATE, SMALL_DATA_TEMPERATURE = 3e-3, 0.2
OPTIMIZER_DEFAULTS = {"sgd": (1.0, 1e-6), "lars": (0.3, 1e-6), "adamw": (1e-3, 1e-2)}
"""Learning rate and weight decay of each optimizer."""


def resolve_views(config: Config, data: DatasetDict, objects: CustomObjects) -> Config:
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
    columns = [train[name] for name in spec.modalities]
    if any(column.has_size for column in columns):
        config = _resolve_images(_set_custom_size(config, spec, train, objects), spec, columns)
    is_small = len(train) <= SMALL_DATA and all(column.uses_small_encoders for column in columns)
    is_image_only = all(column.has_size for column in columns)
    config = resolve_optimization(config, is_image_only=is_image_only, is_small=is_small)
    return _resolve_feature_encoders(config, {column.kind for column in columns}, is_small)


def _check_kinds(config: Config, kinds: set[str], spec: ViewSpec) -> None:
    """Raise a ConfigError for a field that no view uses, and for an encoder that does not exist."""
    for needed, names in KIND_FIELDS.items():
        for name in names if not kinds & set(needed) else ():
            if getattr(config, name) != getattr(Config, name):
                raise ConfigError(f"{name} is for {' or '.join(needed)} views, got {' '.join(config.views)}")
    keys = {*kinds, *spec.modalities, "image"}
    for text in config.encoder:
        key = text.partition("=")[0] if "=" in text else "image"
        if key not in keys:
            raise ConfigError(f"--encoder {text}: there is no modality or kind {key!r}, only {', '.join(sorted(keys))}")


def _set_custom_size(config: Config, spec: ViewSpec, train: Dataset, objects: CustomObjects) -> Config:
    """Set the size of images to that of the user's transforms."""
    transforms = (_find_transform(item.modality, train, objects) for item in spec.items)
    sizes = {transform.size for transform in transforms if isinstance(transform, ImageTransform)}
    requested = {item.size for item in spec.items if item.size} | ({config.image_size} if config.image_size else set())
    if sizes and (len(sizes) > 1 or not requested <= sizes):
        got = ", ".join(map(str, sorted(sizes | requested)))
        raise ConfigError(f"your transforms make views of one size, which must be that of the config, got {got}")
    return dataclasses.replace(config, image_size=sizes.pop()) if sizes else config


def _find_transform(modality: str, train: Dataset, objects: CustomObjects) -> Transform | None:
    """Return the user's transform of a modality, or None."""
    column = train[modality]
    transform = objects.find_transform(modality, column.has_size)
    if transform is None or isinstance(transform, ImageTransform | FeatureTransform):
        return transform
    example = column.show(int(column.get_mask().nonzero()[0]))
    if not column.has_size or isinstance(example, str):
        raise ConfigError(f"the transform of {modality} must be a FeatureTransform, got {describe_type(transform)}")
    try:
        return make_custom_transform(transform, example)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _resolve_images(config: Config, spec: ViewSpec, columns: list[Column]) -> Config:
    size = config.image_size
    if size is None:
        inferred = max(column.infer_size() for column in columns)
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


def _resolve_feature_encoders(config: Config, kinds: set[str], is_small: bool) -> Config:
    """Choose the size of encoders; `is_small` for small data of sequences alone."""
    layers = (2 if is_small else 3) if kinds & {"sequence", "text"} else None
    return dataclasses.replace(
        config,
        hidden_dim=config.hidden_dim or (64 if is_small else 128),
        transformer_layers=config.transformer_layers or layers,
    )


def resolve_optimization(config: Config, *, is_image_only: bool, is_small: bool = False) -> Config:
    """Choose optimizer, learning rate, weight decay and temperature; docs/modalities.md explains `is_small`."""
    optimizer = ("sgd" if is_image_only else "adamw") if config.optimizer == "auto" else config.optimizer
    learning_rate, weight_decay = OPTIMIZER_DEFAULTS[optimizer]
    if is_small and optimizer == "adamw":
        learning_rate = SMALL_DATA_LEARNING_RATE
    temperature = config.temperature
    if temperature is None and is_small and config.loss != CUSTOM:
        default = config.with_loss_defaults().temperature
        temperature = None if default is None else min(SMALL_DATA_TEMPERATURE, default)
    return dataclasses.replace(
        config,
        optimizer=optimizer,
        learning_rate=learning_rate if config.learning_rate is None else config.learning_rate,
        weight_decay=weight_decay if config.weight_decay is None else config.weight_decay,
        temperature=temperature,
    )


def make_spec(config: Config, data: DatasetDict) -> ViewSpec:
    """Make the spec of a resolved config, with the size of every view of images."""
    spec = ViewSpec.parse(config.views).resolve(data, separate_encoders=config.separate_encoders)
    if config.image_size is None:
        return spec
    train = data["train"]
    return ViewSpec(
        tuple(
            dataclasses.replace(item, size=item.size or config.image_size) if train[item.modality].has_size else item
            for item in spec.items
        )
    )


def build_transforms(
    config: Config, spec: ViewSpec, train: Dataset, index: Tensor, objects: CustomObjects
) -> list[Transform | None]:
    """Build the transform of each item of a spec; statistics of features are those of the instances in `index`."""
    largest = max((item.size for item in spec.items), default=0)
    transforms: list[Transform | None] = []
    for item in spec.items:
        column, custom = train[item.modality], _find_transform(item.modality, train, objects)
        build = TRANSFORM_BUILDERS.get(column.kind)
        if custom is not None or build is None or not is_augmented(config, spec, item.modality, column):
            transforms.append(custom)
        else:
            transforms.append(build(config, column.select(index), item.size, item.size == largest))
    return transforms


def is_augmented(config: Config, spec: ViewSpec, modality: str, column: Column) -> bool:
    """Return whether the views of a modality are augmented: images always, features as `augment_features` says."""
    if config.augment_features == "auto":
        return column.is_augmented_alone or len(spec.list_modality_views(modality)) > 1
    return column.has_size or config.augment_features == "all"


def _build_image_transform(config: Config, _column: Column, size: int, is_largest: bool) -> ImageTransform:
    return SimCLRTransform(
        size,
        jitter_strength=config.jitter_strength or 0.0,
        blur_prob=config.blur_prob or 0.0,
        crop_scale=config.crop_scale if is_largest else config.small_crop_scale,
    )


def _build_vector_transform(config: Config, column: Features, *_: Any) -> FeatureTransform:
    return VectorTransform(*_compute_mean_std(column), config.feature_noise, config.feature_mask)


def _compute_mean_std(column: Features) -> tuple[Tensor, Tensor]:
    mean, scale = compute_statistics(column.collect_valid())
    return mean, torch.where(scale > 0, 1 / scale, 0.0)  # constant features have the scale 0


def _build_sequence_transform(config: Config, column: Features, *_: Any) -> FeatureTransform:
    return SequenceTransform(
        *_compute_mean_std(column),
        min_crop=config.time_crop,
        scaling=config.feature_scaling,
        noise=config.feature_noise,
        feature_mask=config.feature_mask,
        time_mask=config.time_mask,
    )


TRANSFORM_BUILDERS: dict[str, Callable[..., Transform]] = {
    "image": _build_image_transform,
    "sequence": _build_sequence_transform,
    "vector": _build_vector_transform,
}
"""Default transforms by kind of modality; other kinds have none."""


def build_encoder_config(config: Config, spec: ViewSpec, train: Dataset, objects: CustomObjects) -> EncoderConfig:
    """Choose the architecture of each encoder of a spec.

    Raises:
        ConfigError: there is no encoder of a chosen name.
    """
    encoders: dict[str, EncoderSpec] = {}
    for modality, key in spec.encoders.items():
        column = train[modality]
        name = config.get_encoder_name(modality, column.kind) or column.default_encoder
        name = name if objects.find_encoder_name(modality, column.kind) is None else CUSTOM
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
        column, module = train[modality], encoder.get_encoder(key)
        if isinstance(module, SequenceEncoder | VectorEncoder):
            module.standardize.fit(cast("Features", column).collect_valid())
