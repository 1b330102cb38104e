"""Parts of a training loop: optimisers and schedules, batch norm over ranks, gradient caching."""

from manyviews.training.cache import cached_backward
from manyviews.training.optimisers import LARS, learning_rate, parameter_groups
from manyviews.training.sync import RankBatchNorm, synchronised

__all__ = ["LARS", "RankBatchNorm", "cached_backward", "learning_rate", "parameter_groups", "synchronised"]
