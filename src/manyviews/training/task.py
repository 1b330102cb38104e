"""Task: the data, views and monitored instances of a training run."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from manyviews.data import DatasetDict, load_dataset
from manyviews.losses import MultiViewLoss, SupConLoss, SupervisedLoss
from manyviews.models import Embedder, MultimodalEmbedder
from manyviews.training.config import Config
from manyviews.training.grad_cache import Views
from manyviews.utils import EVAL_EPOCH, draw_permutation

AnyModel = Embedder | MultimodalEmbedder
AnyLoss = MultiViewLoss | SupervisedLoss

MIN_MONITORED = 20
"""Minimum default of monitor_size; with fewer, one instance is more than 5% of the kNN accuracy."""
MAX_MONITORED = 250
"""Maximum default of monitor_size, and of the trained instances that are monitored if monitor_size is 0."""
KNN_BANK_SIZE = 1000
"""Number of training instances among which kNN searches the neighbors of monitored instances."""
SUBSET_KEY = 1
"""Random key of the sample of `max_instances`; it is the same for all seeds."""


class TrainingTask(ABC):
    """Everything that depends on the kind of data: views, model, loss arguments and monitoring."""

    labels: Tensor | None
    """Labels by instance index."""
    data_fingerprint: str
    """Hash of the data; a resumed run must have the same."""
    train_indices: Tensor
    """Indices of the instances that are trained on."""
    monitor_indices: Tensor
    """Indices of the monitored instances."""
    config: Config
    device: torch.device
    description: str
    """One-line description for the log: views, encoder, loss."""

    @abstractmethod
    def __init__(self, data: DatasetDict, config: Config, device: torch.device) -> None: ...

    @staticmethod
    @abstractmethod
    def resolve_config(config: Config, data: DatasetDict) -> Config:
        """Fill in the fields that depend on the data; raise a ConfigError if config and data are incompatible."""

    @staticmethod
    @abstractmethod
    def build_model(config: Config, data: DatasetDict) -> AnyModel:
        """Build the untrained model of a resolved config."""

    @staticmethod
    @abstractmethod
    def count_train_instances(config: Config, data: DatasetDict) -> int:
        """Return the number of instances to train on."""

    @property
    def monitored(self) -> str:
        """Description of the monitored instances for the log."""
        kind = "held-out" if self.config.monitor_size else "trained-on"
        return f"{len(self.monitor_indices):,} {kind} instances"

    @abstractmethod
    def iterate_batches(self, epoch: int, indices: list[Tensor]) -> Iterator[tuple[Views, Tensor]]:
        """Yield (views, index) for each batch of indices."""

    @abstractmethod
    def monitor(self, model: Any) -> dict[str, float]:
        """Compute metrics of the monitored instances."""

    def finish_model(self, model: Any) -> None:  # noqa: B027 (optional)
        """Complete a trained model before it is saved."""

    def get_loss_kwargs(self, loss: AnyLoss, _views: Views, index: Tensor) -> dict[str, Any]:
        """Return extra keyword arguments for the loss (labels, mask)."""
        if isinstance(loss, SupConLoss) and self.labels is not None:
            return {"labels": self.labels[index].to(self.device)}
        return {}


def load_data(config: Config) -> DatasetDict:
    """Load the data of a config, with at most `max_instances` training instances."""
    data = load_dataset(
        config.data,
        class_list=config.class_list,
        raise_on_corrupt=config.raise_on_corrupt,
        follow_symlinks=config.follow_symlinks,
    )
    return limit_instances(data, config)


def limit_instances(data: DatasetDict, config: Config) -> DatasetDict:
    """Keep at most `max_instances` training instances, in their original order.

    A sample is balanced: class sizes differ by at most one, except for classes with too few instances. A smaller sample
    is a subset of a larger one.
    """
    split = data["train"]
    if config.max_instances is None or config.max_instances >= len(split):
        return data
    order = torch.arange(len(split))
    if config.subset == "sample":
        order = draw_permutation(len(split), SUBSET_KEY)
        if split.class_labels is not None:
            # Take the first instance of each class, then the second of each, and so on.
            values, by_class = split.class_labels[order].sort(stable=True)
            rank_in_class = torch.empty_like(order)
            rank_in_class[by_class] = torch.arange(len(order)) - torch.searchsorted(values, values)
            order = order[rank_in_class.argsort(stable=True)]
    index = order[: config.max_instances].sort().values
    selected = split.select(index)
    if not split.ids and all(isinstance(values, Tensor) for values in split.modalities.values()):
        selected = dataclasses.replace(selected, ids=tuple(f"train/{i}" for i in index.tolist()))
    return dataclasses.replace(data, splits={**data.splits, "train": selected})


def choose_monitor_size(count: int) -> int:
    """Return the default of monitor_size: a tenth of the training instances, or 0 for a small dataset.

    Examples:
        >>> [choose_monitor_size(count) for count in (20, 100, 203, 960, 2500, 50_000)]
        [0, 20, 20, 96, 250, 250]
    """
    if count < 5 * MIN_MONITORED:
        return 0
    return min(MAX_MONITORED, max(MIN_MONITORED, count // 10))


def split_monitored(count: int, seed: int, monitor_size: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the indices of trained instances, of monitored instances, and of the kNN bank.

    If `monitor_size` is 0, some of the trained instances are monitored; their labels are still unseen.
    """
    order = draw_permutation(count, seed, EVAL_EPOCH)
    size = monitor_size or min(MAX_MONITORED, max(2, count // 2))
    monitored, rest = order[:size], order[size:]
    train = rest.sort().values if monitor_size else torch.arange(count)
    return train, monitored, rest[:KNN_BANK_SIZE]


def get_collapse_warning(metrics: dict[str, float]) -> str | None:
    """Return a warning if the embeddings of different instances are nearly equal, or nearly on a line."""
    if "uniformity" not in metrics:
        return None
    if metrics["uniformity"] > -0.05:
        value = metrics["uniformity"]
        problem = f"all instances have nearly the same embedding (uniformity {value:.3f}; -4 if evenly spread)"
    elif metrics["rankme"] < 2:
        problem = f"the embeddings use hardly more than one dimension (effective rank {metrics['rankme']:.2f})"
    else:
        return None
    return f"COLLAPSE: {problem}. Try a smaller --learning-rate, a smaller --temperature or a larger --batch-size."
