"""The training loop, recipes, optimisers, checkpoints, gradient caching, batch norm over ranks."""

from manyviews.training.assess import evaluate
from manyviews.training.cache import cached_backward
from manyviews.training.config import Config, ConfigError
from manyviews.training.loop import DivergedError
from manyviews.training.optimisers import LARS, learning_rate, parameter_groups
from manyviews.training.recipes import RECIPES, get_recipe, recipe_for
from manyviews.training.run import Run, load_encoder
from manyviews.training.scores import EvaluationConfig
from manyviews.training.setup import device_of
from manyviews.training.signals import InterruptedTraining
from manyviews.training.start import train
from manyviews.training.sync import RankBatchNorm, synchronised

__all__ = [
    "LARS",
    "RECIPES",
    "Config",
    "ConfigError",
    "DivergedError",
    "EvaluationConfig",
    "InterruptedTraining",
    "RankBatchNorm",
    "Run",
    "cached_backward",
    "device_of",
    "evaluate",
    "get_recipe",
    "learning_rate",
    "load_encoder",
    "parameter_groups",
    "recipe_for",
    "synchronised",
    "train",
]
