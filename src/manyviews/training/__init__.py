"""Config, recipes, the training loop and its parts: optimizers, checkpoints, gradient cache, loggers."""

from manyviews.training.checkpoints import list_checkpoints
from manyviews.training.config import (
    DEFAULT_BATCH_SIZE,
    EXTENSIONS_KEY,
    PROVENANCE_KEY,
    Config,
    ConfigError,
    coerce_field,
)
from manyviews.training.fabric import create_fabric, run_on_rank_zero
from manyviews.training.grad_cache import grad_cache_backward
from manyviews.training.image_task import LARGE_IMAGE_SIZE, ImageTask, build_transform, get_encoder_options
from manyviews.training.loggers import check_loggers, check_wandb_login, read_metrics
from manyviews.training.multimodal_task import MultimodalTask, get_training_split
from manyviews.training.optim import LARS, parameter_groups
from manyviews.training.recipes import RECIPES, get_default_recipe, get_recipe
from manyviews.training.resolve import (
    AUTO_FIELDS,
    build_model_and_loss,
    has_small_modalities,
    limit_cpu_threads,
    resolve_config,
    with_absolute_paths,
)
from manyviews.training.run_directory import (
    CONFIG_FILE,
    CONFIG_HEADER,
    ENCODER_FILE,
    EVALUATION_FILE,
    HEAD_FILE,
    RESULT_PATTERNS,
    Extension,
    RunDirectory,
    check_output,
    collect_provenance,
    read_provenance,
    remove_leftovers,
)
from manyviews.training.run_logger import RunLogger, capture_warnings
from manyviews.training.signals import SignalCatcher, TrainingInterrupted
from manyviews.training.sync_batch_norm import CPUSyncBatchNorm, convert_sync_batch_norm
from manyviews.training.task import (
    AnyLoss,
    AnyModel,
    TrainingTask,
    choose_monitor_size,
    limit_instances,
    load_data,
    split_monitored,
)
from manyviews.training.trainer import DivergedError, Trainer
from manyviews.utils import warmup_cosine_lr

__all__ = [
    "AUTO_FIELDS",
    "CONFIG_FILE",
    "CONFIG_HEADER",
    "DEFAULT_BATCH_SIZE",
    "ENCODER_FILE",
    "EVALUATION_FILE",
    "EXTENSIONS_KEY",
    "HEAD_FILE",
    "LARGE_IMAGE_SIZE",
    "LARS",
    "PROVENANCE_KEY",
    "RECIPES",
    "RESULT_PATTERNS",
    "AnyLoss",
    "AnyModel",
    "CPUSyncBatchNorm",
    "Config",
    "ConfigError",
    "DivergedError",
    "Extension",
    "ImageTask",
    "MultimodalTask",
    "RunDirectory",
    "RunLogger",
    "SignalCatcher",
    "Trainer",
    "TrainingInterrupted",
    "TrainingTask",
    "build_model_and_loss",
    "build_transform",
    "capture_warnings",
    "check_loggers",
    "check_output",
    "check_wandb_login",
    "choose_monitor_size",
    "coerce_field",
    "collect_provenance",
    "convert_sync_batch_norm",
    "create_fabric",
    "get_default_recipe",
    "get_encoder_options",
    "get_recipe",
    "get_training_split",
    "grad_cache_backward",
    "has_small_modalities",
    "limit_cpu_threads",
    "limit_instances",
    "list_checkpoints",
    "load_data",
    "parameter_groups",
    "read_metrics",
    "read_provenance",
    "remove_leftovers",
    "resolve_config",
    "run_on_rank_zero",
    "split_monitored",
    "warmup_cosine_lr",
    "with_absolute_paths",
]
