"""From a config and its data to views and encoders: the spec, the transforms, the architecture."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable

from torch import Tensor

from manyviews.data import Column, Dataset, DatasetDict
from manyviews.loading import ViewSpec
from manyviews.models import (
    CUSTOM,
    EncoderConfig,
    EncoderSpec,
    MultiViewEncoder,
    check_encoder_name,
    select_options,
)
from manyviews.training.config import DEFAULT_ENCODER_KIND, Config, ConfigError, OptimizerName
from manyviews.training.custom_objects import CustomObjects
from manyviews.training.initial_weights import check_pretrained, find_pretrained, is_pretrained
from manyviews.training.kinds import TRAINING_BY_KIND, KindViews
from manyviews.transforms import Transform

SMALL_DATA_LEARNING_RATE, SMALL_DATA_TEMPERATURE = 3e-3, 0.2
PRETRAINED_LR_SCALE = 0.05
"""With AdamW's default, pretrained weights have the usual learning rate of fine-tuning, 5e-5 for a batch of 256."""
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
    columns: dict[str, dict[str, Column]] = {}
    for name in spec.modalities:
        columns.setdefault(train[name].kind, {})[name] = train[name]
    _check_fields(config, columns)
    _check_encoder_keys(config, {*columns, *spec.modalities})
    check_pretrained(config)
    for name in spec.modalities:
        choose_encoder(config, name, train[name], objects)
    modalities = [train[name] for name in spec.modalities]
    is_small = len(train) <= min(column.max_small_count for column in modalities)
    all_columns = {name: train[name] for name in spec.modalities}
    for kind, part in columns.items():
        config = TRAINING_BY_KIND[kind].resolve(config, KindViews(part, all_columns, spec, objects, is_small))
    config = dataclasses.replace(config, hidden_dim=config.hidden_dim or (64 if is_small else 128))
    has_pretrained = any(is_pretrained(config, name, train[name].kind) for name in spec.modalities)
    if config.encoder_lr_scale is None:
        config = dataclasses.replace(config, encoder_lr_scale=PRETRAINED_LR_SCALE if has_pretrained else 1.0)
    default_optimizer = "adamw" if has_pretrained else choose_optimizer(modalities)
    return resolve_optimization(config, default_optimizer, is_small=is_small)


def _check_fields(config: Config, kinds: Collection[str]) -> None:
    """Raise a ConfigError for a field that views of these kinds do not use."""
    used = {name for kind in kinds for name in TRAINING_BY_KIND[kind].fields}
    for name in (name for training in TRAINING_BY_KIND.values() for name in training.fields):
        if name not in used and getattr(config, name) != getattr(Config, name):
            needed = " or ".join(kind for kind, training in TRAINING_BY_KIND.items() if name in training.fields)
            raise ConfigError(f"{name} is for {needed} views, got {' '.join(config.views)}")


def _check_encoder_keys(config: Config, keys: set[str]) -> None:
    """Raise a ConfigError for an encoder, or weights, of a modality or kind that does not exist."""
    unnamed = [name for name in config.encoder if "=" not in name and name not in (*Config.encoder, CUSTOM)]
    if unnamed and DEFAULT_ENCODER_KIND not in keys:
        raise ConfigError(
            f"--encoder {unnamed[-1]} is for {DEFAULT_ENCODER_KIND} views, and there are none: name the modality or "
            f"kind, as {min(keys)}=NAME"
        )
    for field, texts, allowed in (
        ("encoder", config.encoder, {*keys, DEFAULT_ENCODER_KIND}),
        ("weights", config.weights, keys),
    ):
        for text in texts:
            key = text.partition("=")[0] if "=" in text else DEFAULT_ENCODER_KIND
            if key not in allowed:
                raise ConfigError(
                    f"--{field} {text}: there is no modality or kind {key!r}, only {', '.join(sorted(allowed))}"
                )


def choose_encoder(config: Config, modality: str, column: Column, objects: CustomObjects) -> str:
    """Choose the encoder of a modality by its name; raise a ConfigError if there is none of this name."""
    name = config.get_encoder_name(modality, column.kind) or column.default_encoder
    name = name if objects.find_encoder_name(modality, column.kind) is None else CUSTOM
    try:
        check_encoder_name(column.kind, name)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return name


def choose_optimizer(columns: Iterable[Column]) -> OptimizerName:
    """Choose the optimizer of modalities: their default, or that of most kinds if their defaults differ."""
    names = {column.default_optimizer for column in columns}
    return names.pop() if len(names) == 1 else Column.default_optimizer


def resolve_optimization(config: Config, default_optimizer: OptimizerName, *, is_small: bool = False) -> Config:
    """Choose optimizer, learning rate, weight decay and temperature; docs/modalities.md explains `is_small`."""
    optimizer = default_optimizer if config.optimizer == "auto" else config.optimizer
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
    train, default = data["train"], config.image_size or 0
    sizes = (train[item.modality].choose_size(item.size, default) for item in spec.items)
    return ViewSpec(tuple(dataclasses.replace(item, size=size) for item, size in zip(spec.items, sizes, strict=True)))


def build_transforms(
    config: Config, spec: ViewSpec, train: Dataset, index: Tensor, objects: CustomObjects
) -> list[Transform | None]:
    """Build the transform of each item of a spec; statistics of features are those of the instances in `index`."""
    objects.check_transforms(spec.modalities)
    transforms, num_custom = [], 0
    for item in spec.items:
        column, num_views = train[item.modality], len(spec.list_modality_views(item.modality))
        training = TRAINING_BY_KIND[column.kind]
        transform = training.find_transform(item.modality, column, objects)
        num_custom += transform is not None
        if transform is None and column.is_augmented(config.augment_features, num_views):
            largest = spec.get_size(item.modality)
            transform = training.build_transform(config, column, index, size=item.size, largest=largest)
        elif transform is None:
            transform = training.build_plain_transform(config)
        transforms.append(transform)
    if objects.transforms and not num_custom:
        hint = f"transform={{{spec.modalities[0]!r}: TRANSFORM}}"
        raise ConfigError(
            f"transform: one transform is for images, and no view is one: use a dict by modality, as {hint}"
        )
    return transforms


def build_encoder_config(config: Config, spec: ViewSpec, train: Dataset, objects: CustomObjects) -> EncoderConfig:
    """Choose the architecture of each encoder of a spec.

    Raises:
        ConfigError: there is no encoder of a chosen name.
    """
    encoders: dict[str, EncoderSpec] = {}
    names: dict[str, str] = {}
    for modality, key in spec.encoders.items():
        column = train[modality]
        name = choose_encoder(config, modality, column, objects)
        if names.setdefault(key, name) != name:
            sharing = " and ".join(other for other, shared in spec.encoders.items() if shared == key)
            raise ConfigError(
                f"{sharing} share an encoder, which cannot be both {names[key]} and {name}: use --separate-encoders"
            )
        preprocessing = TRAINING_BY_KIND[column.kind].make_preprocessing(config)
        options = {
            "features": column.dim, "dim": config.hidden_dim, "layers": config.transformer_layers,
            "heads": config.transformer_heads, "dropout": config.dropout, "stem": config.stem,
            "width": config.width_mult, **preprocessing,
        }  # fmt: skip
        size = max(item.size for item in spec.items if item.encoder == key)
        pretrained = find_pretrained(config, modality, column)
        if pretrained is not None:
            preprocessing |= pretrained.preprocessing
            encoders[key] = dataclasses.replace(pretrained, size=size, preprocessing=preprocessing)
        else:
            selected = select_options(column.kind, name, options)
            encoders[key] = EncoderSpec(column.kind, name, selected, size, preprocessing)
    # Pretrained representations of one dimension stay as they are, without a linear layer.
    is_adapted = len(encoders) > 1 and not all(is_pretrained(config, name, train[name].kind) for name in spec.encoders)
    return EncoderConfig(encoders, spec.encoders, config.hidden_dim if is_adapted else None)


def fit_encoders(encoder: MultiViewEncoder, train: Dataset, index: Tensor) -> None:
    """Fit the statistics of encoders, such as those that standardize features, to the instances in `index`."""
    for modality, key in encoder.encoder_of_modality.items():
        column = train[modality]
        TRAINING_BY_KIND[column.kind].fit_encoder(encoder.get_encoder(key), column, index)
