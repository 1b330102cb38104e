"""Task: a config and its data, with everything that depends on the kind of data: views, model, monitoring."""

from __future__ import annotations

import dataclasses
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from manyviews.data import Dataset, DatasetDict, Images, load_dataset
from manyviews.losses import MultiViewLoss, SupervisedLoss
from manyviews.metrics import compute_geometry, score_knn
from manyviews.models import Embedder, EncoderConfig, MultimodalConfig, MultimodalEmbedder
from manyviews.training.config import Config
from manyviews.training.grad_cache import Views
from manyviews.utils import EVAL_EPOCH, draw_permutation, hide_progress

AnyModel: TypeAlias = Embedder | MultimodalEmbedder
AnyLoss: TypeAlias = MultiViewLoss | SupervisedLoss

MIN_MONITORED = 20
"""Minimum default of monitor_size; with fewer, one instance is more than 5% of the kNN accuracy."""
MAX_MONITORED = 250
"""Maximum default of monitor_size, and of the trained instances that are monitored if monitor_size is 0."""
KNN_BANK_SIZE = 1000
"""Number of training instances among which kNN searches the neighbors of monitored instances."""
SUBSET_KEY = 1
"""Random key of the sample of `max_instances`; it is the same for all seeds."""


class TrainingTask(ABC):
    """A resolved config, its data, and the training instances: those to train on and those to monitor."""

    def __init__(
        self, config: Config, data: DatasetDict, split: Dataset, names: Sequence[str], device: torch.device
    ) -> None:
        self.config, self.data, self.split, self.names, self.device = config, data, split, names, device
        self.labels = split.labels if config.supervised else split.class_labels
        self.uses_labels = config.supervised or config.loss == "supcon"
        self.train_indices, self.monitor_indices, self.knn_bank = split_monitored(
            len(split), config.seed, config.monitor_size
        )

    @staticmethod
    @abstractmethod
    def resolve_config(config: Config, data: DatasetDict) -> Config:
        """Fill in the fields that depend on the data; raise a ConfigError if config and data are incompatible."""

    @property
    @abstractmethod
    def description(self) -> str:
        """One-line description for the log: views, encoder, loss."""

    @property
    def monitored(self) -> str:
        """Description of the monitored instances for the log."""
        return f"{len(self.monitor_indices):,} monitored instances{'' if self.config.monitor_size else ' (trained on)'}"

    def build_model(self) -> AnyModel:
        """Build the untrained model; it depends on the config, its seed and the training instances only."""
        with torch.random.fork_rng([]):
            torch.manual_seed(self.config.seed)
            return self._build_model()

    @abstractmethod
    def _build_model(self) -> AnyModel: ...

    @abstractmethod
    def get_encoder_config(self, model: Any) -> EncoderConfig | MultimodalConfig | None:
        """Return the config that is saved with the encoder's weights."""

    @abstractmethod
    def iterate_batches(self, epoch: int, indices: list[Tensor]) -> Iterator[tuple[Views, Tensor]]:
        """Yield (views, index) for each batch of indices."""

    def get_loss_kwargs(self, _views: Views, index: Tensor) -> dict[str, Any]:
        """Return extra keyword arguments for the loss (labels, mask)."""
        if not self.uses_labels:
            return {}
        assert self.labels is not None
        return {"labels": self.labels[index].to(self.device)}

    def monitor(self, model: Any) -> dict[str, float]:
        """Compute the kNN accuracy of representations and the geometry of embeddings of the monitored instances."""
        if len(self.monitor_indices) < 2:
            return {}
        with hide_progress():
            z, mask = self._embed_monitored(model)
            if not z.isfinite().all():
                raise FloatingPointError("the embeddings of monitored instances are not finite")
            metrics: dict[str, float] = {}
            if not self.config.supervised:
                metrics = compute_geometry(z, mask, ["alignment", "uniformity", "rank", "rankme"])
            labels = self.split.class_labels
            if labels is None or not len(self.knn_bank):
                return metrics
            bank_h, bank_index = self._encode(model, self.knn_bank)
            h, index = self._encode(model, self.monitor_indices)
            bank_labels = labels[bank_index].to(bank_h.device)
            return score_knn(bank_h, bank_labels, h, labels[index], self.data, self.config.knn_k) | metrics

    @abstractmethod
    def _embed_monitored(self, model: Any) -> tuple[Tensor, Tensor | None]:
        """Return the embeddings (M, N, d) of the monitored instances and their mask (M, N), if any."""

    @abstractmethod
    def _encode(self, model: Any, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return representations (n, d) of instances, and the indices (n,) of those that can be read."""

    def finish_model(self, model: Any) -> None:  # noqa: B027 (optional)
        """Complete a trained model before it is saved."""

    def compute_fingerprint(self) -> str:
        """Hash the data, and the labels if the loss uses them; a resumed run must have the same."""
        digest = hashlib.sha256()
        content = [part for name in self.names for part in self.split[name].list_content()]
        if self.uses_labels and self.split.labels is not None:
            content.append(self.split.labels)
        for part in content:
            digest.update(part.contiguous().numpy().data if isinstance(part, Tensor) else part)
        return digest.hexdigest()[:16]


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
    has_files = any(isinstance(c, Images) and not isinstance(c.values, Tensor) for c in split.modalities.values())
    if not split.ids and not has_files:
        selected = dataclasses.replace(selected, ids=tuple(f"train/{i}" for i in index.tolist()))
    return dataclasses.replace(data, splits={**data.splits, "train": selected})


def choose_monitor_size(count: int) -> int:
    """Return the default of monitor_size: a tenth of the training instances, or 0 for a small dataset.

    Examples:
        >>> [choose_monitor_size(count) for count in (20, 100, 203, 960, 2500, 50_000)]
        [0, 20, 20, 96, 250, 250]
    """
    return 0 if count < 5 * MIN_MONITORED else min(MAX_MONITORED, max(MIN_MONITORED, count // 10))


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
    if metrics.get("uniformity", -4.0) > -0.05:
        value = metrics["uniformity"]
        problem = f"all instances have nearly the same embedding (uniformity {value:.3f}; -4 if evenly spread)"
    elif metrics.get("rankme", 2.0) < 2:
        problem = f"the embeddings use hardly more than one dimension (effective rank {metrics['rankme']:.2f})"
    else:
        return None
    return f"COLLAPSE: {problem}. Try a smaller --learning-rate, a smaller --temperature or a larger --batch-size."
