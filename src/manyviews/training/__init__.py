"""Config, recipes, the training loop and its parts: optimizers, checkpoints, gradient cache, loggers."""

from manyviews.training.checkpoints import list_checkpoints
from manyviews.training.config import Config, ConfigError, coerce_field
from manyviews.training.fabric import create_fabric, run_on_rank_zero
from manyviews.training.grad_cache import grad_cache_backward
from manyviews.training.image_task import LARGE_IMAGE_SIZE, ImageTask, build_transform
from manyviews.training.loggers import check_loggers, check_wandb_login, read_metrics
from manyviews.training.multimodal_task import MultimodalTask
from manyviews.training.optim import LARS, build_parameter_groups, warmup_cosine_lr
from manyviews.training.recipes import RECIPES, get_default_recipe, get_recipe
from manyviews.training.resolve import (
    AUTO_FIELDS,
    build_loss,
    has_small_modalities,
    limit_cpu_threads,
    make_task,
    resolve_task,
    with_absolute_paths,
)
from manyviews.training.run_directory import (
    CONFIG_FILE,
    EVALUATION_FILE,
    HEAD_FILE,
    METRICS_FILE,
    RunDirectory,
    check_output,
)
from manyviews.training.run_logger import RunLogger, capture_warnings
from manyviews.training.signals import SignalCatcher, TrainingInterrupted
from manyviews.training.sync_batch_norm import CPUSyncBatchNorm, convert_sync_batch_norm
from manyviews.training.task import AnyModel, load_data
from manyviews.training.trainer import DivergedError, Trainer

__all__ = [
    "AUTO_FIELDS",
    "CONFIG_FILE",
    "EVALUATION_FILE",
    "HEAD_FILE",
    "LARGE_IMAGE_SIZE",
    "LARS",
    "METRICS_FILE",
    "RECIPES",
    "AnyModel",
    "CPUSyncBatchNorm",
    "Config",
    "ConfigError",
    "DivergedError",
    "ImageTask",
    "MultimodalTask",
    "RunDirectory",
    "RunLogger",
    "SignalCatcher",
    "Trainer",
    "TrainingInterrupted",
    "build_loss",
    "build_parameter_groups",
    "build_transform",
    "capture_warnings",
    "check_loggers",
    "check_output",
    "check_wandb_login",
    "coerce_field",
    "convert_sync_batch_norm",
    "create_fabric",
    "get_default_recipe",
    "get_recipe",
    "grad_cache_backward",
    "has_small_modalities",
    "limit_cpu_threads",
    "list_checkpoints",
    "load_data",
    "make_task",
    "read_metrics",
    "resolve_task",
    "run_on_rank_zero",
    "warmup_cosine_lr",
    "with_absolute_paths",
]
