"""Resolve a config: fill in the fields that depend on the data, and build its model and loss."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from manyviews.data import IMAGE_MODALITY, DatasetDict, as_path
from manyviews.losses import RELEASED_CODE_KWARGS, SupervisedLoss, get_loss
from manyviews.training.config import DEFAULT_BATCH_SIZE, Config, ConfigError
from manyviews.training.image_task import ImageTask
from manyviews.training.multimodal_task import MultimodalTask
from manyviews.training.task import AnyLoss, AnyModel, TrainingTask, choose_monitor_size
from manyviews.utils import choose_threads, limit_threads

AUTO_FIELDS: dict[str, Any] = {
    "image_size": None,
    "jitter_strength": None,
    "blur_prob": None,
    "stem": None,
    "views": 0,
    "modalities": (),
    "monitor_size": None,
    "batch_size": None,
}
"""Fields that default to a value from the data, and the value that means "not set"."""
MAX_SHORT_STEPS = 64
"""Encoders of sequences up to this length do not gain from more than one thread."""


def limit_cpu_threads(config: Config, data: DatasetDict) -> AbstractContextManager[None]:
    """Limit the CPU threads of this process to `cpu_threads`, or its part of the CPUs; one for encoders of features."""
    local = int(os.environ.get("LOCAL_WORLD_SIZE", config.devices))
    names = config.modalities if config.task == "multimodal" else (IMAGE_MODALITY,)
    return limit_threads(config.cpu_threads or choose_threads(local, small=has_small_modalities(data, names)))


def with_absolute_paths(config: Config) -> Config:
    """Make paths absolute, so that a run can be resumed from another directory."""
    path = as_path(config.data)
    return dataclasses.replace(
        config,
        data=str(path.resolve()) if path and path.exists() else config.data,
        class_list=None if config.class_list is None else config.class_list.expanduser().resolve(),
        init=None if config.init is None else config.init.expanduser().resolve(),
    )


def get_task(config: Config) -> type[TrainingTask]:
    """Return the task class of a config."""
    return MultimodalTask if config.task == "multimodal" else ImageTask


def resolve_config(config: Config, data: DatasetDict, ranks: int) -> Config:
    """Fill in the fields that depend on data and loss; raise a ConfigError if config and data are incompatible."""
    names = data["train"].modalities
    if config.task == "images" and IMAGE_MODALITY not in names:
        raise ConfigError(f"{data.name} has no images, only {', '.join(names)}: use --recipe multimodal")
    config = get_task(config).resolve_config(config.with_loss_defaults(), data)
    config = resolve_batch_size(config, data, ranks)
    if config.instances_per_batch % ranks:
        raise ConfigError(
            f"a batch of {config.instances_per_batch} instances cannot be split evenly over {ranks} ranks"
        )
    if ranks > 1 and config.sync_batch_norm and any(is_image(data, name) for name in config.modalities):
        missing = [name for name in config.modalities if is_image(data, name) and name in data["train"].masks]
        if missing or config.missing_rate:
            raise ConfigError("batch norm cannot be synchronized if images are missing: use --no-sync-batch-norm")
    if config.loss == "supcon" and data["train"].class_labels is None:
        raise ConfigError(f"supcon requires class labels, {data.name} has none: try ntxent")
    return config


def resolve_batch_size(config: Config, data: DatasetDict, ranks: int) -> Config:
    """Set monitor_size and batch_size where they are None; explicit values are never changed."""
    total = len(data["train"])
    monitor_size = choose_monitor_size(total) if config.monitor_size is None else config.monitor_size
    config = dataclasses.replace(config, monitor_size=monitor_size)
    count = get_task(config).count_train_instances(config, data)
    max_size, multiplier = count // ranks * ranks, config.views if config.batch_counts_views else 1
    reasons = [f"{monitor_size} of {total} are only monitored"] if monitor_size else []
    reasons += [f"{total - monitor_size - count} have too few modalities"] if 0 < count < total - monitor_size else []
    available = f"{count} training instances of {data.name}" + (f" ({', '.join(reasons)})" if reasons else "")
    if max_size < 2 * ranks:
        remedy = "a smaller --monitor-size" if monitor_size else "more data"
        raise ConfigError(f"there are only {available}, a batch needs {2 * ranks}: use {remedy}")
    if config.batch_size is None:
        default = max(DEFAULT_BATCH_SIZE // multiplier // ranks, 1) * ranks
        return dataclasses.replace(config, batch_size=multiplier * min(default, max_size))
    if config.instances_per_batch > count:
        raise ConfigError(
            f"a batch of {config.instances_per_batch} is larger than the {available}: try --batch-size "
            f"{multiplier * max_size}"
        )
    return config


def is_image(data: DatasetDict, name: str) -> bool:
    return getattr(data["train"].modalities[name], "ndim", 4) == 4


def has_small_modalities(data: DatasetDict, names: Iterable[str]) -> bool:
    """Return whether these modalities are all vectors or short sequences."""
    modalities = [data["train"].modalities.get(name) for name in names]
    return all(
        isinstance(x, Tensor) and (x.ndim == 2 or (x.ndim == 3 and x.shape[1] <= MAX_SHORT_STEPS)) for x in modalities
    )


def build_model_and_loss(config: Config, data: DatasetDict) -> tuple[AnyModel, AnyLoss]:
    """Build the untrained model and the loss; they depend on config and seed only."""
    with torch.random.fork_rng([]):
        torch.manual_seed(config.seed)
        model = get_task(config).build_model(config, data)
        if config.supervised:
            return model, SupervisedLoss()
        kwargs = {"temperature": config.temperature, "learn_temperature": config.learn_temperature}
        kwargs = {name: value for name, value in kwargs.items() if value is not None}
        variant = RELEASED_CODE_KWARGS.get(config.loss, {}) if config.released_variant else {}
        loss = get_loss(config.loss, **kwargs, **variant)
    return model, loss
