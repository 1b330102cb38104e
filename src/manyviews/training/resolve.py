"""Resolve a config: fill in the fields that depend on the data, and make its task and loss."""

import dataclasses
import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from manyviews.data import DatasetDict, resolve_source
from manyviews.loading import ViewSpec
from manyviews.losses import RELEASED_CODE_KWARGS, SupervisedLoss, get_loss
from manyviews.training.build import resolve_views
from manyviews.training.config import CUSTOM_DATA, DEFAULT_BATCH_SIZE, Config, ConfigError
from manyviews.training.custom_objects import CustomObjects
from manyviews.training.initial_weights import is_pretrained
from manyviews.training.task import TrainingTask, choose_monitor_size
from manyviews.utils import choose_threads, has_native_bfloat16, limit_threads

AUTO_FIELDS: dict[str, Any] = {"views": (), "epochs": 0, "optimizer": "auto", "precision": "auto"} | dict.fromkeys(
    (
        "image_size", "jitter_strength", "blur_prob", "stem", "learning_rate", "weight_decay", "monitor_size",
        "batch_size", "hidden_dim", "transformer_layers", "temperature", "encoder_lr_scale",
    )
)  # fmt: skip
"""Fields that default to a value from the data or the device, and the value that means "not set"."""
CPU = torch.device("cpu")


def resolve_task(
    config: Config,
    data: DatasetDict,
    ranks: int,
    device: torch.device = CPU,
    objects: CustomObjects | None = None,
) -> TrainingTask:
    """Fill in the fields that depend on data, loss and device, and make the task of the resulting config.

    Raises:
        ConfigError: config and data are incompatible.
    """
    train, objects = data["train"], objects or CustomObjects()
    objects.check(config.loss, config.encoder)
    if config.loss == "supcon" and train.class_labels is None:
        raise ConfigError(f"supcon requires class labels, {data.name} has none: try ntxent")
    if config.supervised and train.labels is None:
        raise ConfigError(f"supervised training requires labels, {data.name} has none")
    config = resolve_precision(resolve_views(config, data, objects).with_loss_defaults(), device)
    if config.monitor_size is None:
        config = dataclasses.replace(config, monitor_size=choose_monitor_size(len(train)))
    task = TrainingTask(config, data, device, objects)
    task.check_loss()
    task.config = _resolve_batch_size(task, ranks)
    task.config = _resolve_epochs(task)
    if ranks > 1 and config.sync_batch_norm:
        # By kind: batch norm is in the heads of some kinds only, and a rank may have none of their views.
        normalized = [train[name] for name in task.spec.modalities if train[name].uses_batch_norm]
        if any(column.mask is not None or config.missing_rate for column in normalized):
            raise ConfigError("batch norm cannot be synchronized if images are missing: use --no-sync-batch-norm")
    return task


def resolve_precision(config: Config, device: torch.device) -> Config:
    """Set precision if it is auto, by the device."""
    if config.precision != "auto":
        return config
    return dataclasses.replace(config, precision="bf16-mixed" if has_native_bfloat16(device) else "32")


def _resolve_batch_size(task: TrainingTask, ranks: int) -> Config:
    """Set batch_size if it is None, or check that the data and the ranks allow it."""
    config, count, total = task.config, len(task.train_indices), len(task.split)
    monitor_size = config.monitor_size or 0
    max_size, multiplier = count // ranks * ranks, config.num_views if config.batch_counts_views else 1
    reasons = [f"{monitor_size} of {total} are only monitored"] if monitor_size else []
    reasons += [f"{total - monitor_size - count} have too few views"] if 0 < count < total - monitor_size else []
    available = f"{count} training instances of {task.data.name}" + (f" ({', '.join(reasons)})" if reasons else "")
    if max_size < 2 * ranks:
        remedy = "a smaller --monitor-size" if monitor_size else "more data"
        raise ConfigError(f"there are only {available}, a batch needs {2 * ranks}: use {remedy}")
    if config.batch_size is None:
        default = max(DEFAULT_BATCH_SIZE // multiplier // ranks, 1) * ranks
        return dataclasses.replace(config, batch_size=multiplier * min(default, max_size))
    size = config.instances_per_batch
    if size > count:
        raise ConfigError(f"a batch of {size} is larger than the {available}: try --batch-size {multiplier * max_size}")
    if size % ranks:
        raise ConfigError(f"a batch of {size} instances cannot be split evenly over {ranks} ranks")
    return config


def _resolve_epochs(task: TrainingTask) -> Config:
    """Set epochs if it is 0: so many for features and texts that small data have enough steps."""
    config = task.config
    if config.epochs:
        return config
    columns = [task.split[name] for name in task.spec.modalities]
    steps_per_epoch = max(1, len(task.train_indices) // config.instances_per_batch)
    min_epochs = -(-max(column.min_steps for column in columns) // steps_per_epoch)
    return dataclasses.replace(config, epochs=max(min_epochs, *(column.default_epochs for column in columns)))


def build_loss(config: Config) -> nn.Module:
    """Build the loss of a config."""
    if config.supervised:
        return SupervisedLoss()
    kwargs = {"temperature": config.temperature, "learn_temperature": config.learn_temperature}
    kwargs = {name: value for name, value in kwargs.items() if value is not None}
    if config.learn_temperature is False and config.temperature is None:
        del kwargs["learn_temperature"]  # the loss has no temperature, or the parts of a sum have different ones
    variant = RELEASED_CODE_KWARGS.get(config.loss, {}) if config.released_variant else {}
    return get_loss(config.loss, **{**variant, **config.parse_loss_options()}, **kwargs)


def with_absolute_paths(config: Config) -> Config:
    """Make paths absolute, so that a run can be resumed from another directory."""
    return dataclasses.replace(
        config,
        data=config.data if config.data == CUSTOM_DATA else resolve_source(config.data),
        encoder=tuple(_with_absolute_path(text, "hf:") for text in config.encoder),
        weights=tuple(_with_absolute_path(text) for text in config.weights),
        class_list=None if config.class_list is None else config.class_list.expanduser().resolve(),
        init=None if config.init is None else config.init.expanduser().resolve(),
    )


def _with_absolute_path(text: str, prefix: str = "") -> str:
    """Make the path in `[KEY=][PREFIX]PATH` absolute, if it exists."""
    key, equals, value = text.partition("=") if "=" in text else ("", "", text)
    path = Path(value.removeprefix(prefix)).expanduser()
    return f"{key}{equals}{prefix}{path.resolve()}" if value.startswith(prefix) and path.exists() else text


def limit_cpu_threads(config: Config, data: DatasetDict) -> AbstractContextManager[None]:
    """Limit the CPU threads of this process to `cpu_threads`, or its part of the CPUs; one for encoders of features."""
    local = int(os.environ.get("LOCAL_WORLD_SIZE", config.devices))
    return limit_threads(config.cpu_threads or choose_threads(local, small=has_small_modalities(config, data)))


def has_small_modalities(config: Config, data: DatasetDict) -> bool:
    """Return whether all views are vectors, texts or short sequences, with small encoders."""
    names = ViewSpec.parse(config.views).resolve(data).modalities
    columns = {name: data["train"][name] for name in names}
    return all(column.is_small and not is_pretrained(config, name, column.kind) for name, column in columns.items())
