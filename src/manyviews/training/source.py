"""What a training learns from: instances, their views, and those that are only looked at."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from manyviews.data import Dataset, load_dataset
from manyviews.evaluation.represent import NO_EPOCH
from manyviews.losses import Objective, SupCon
from manyviews.models import Embedder, ModalityEmbedder
from manyviews.training.cache import Views
from manyviews.training.config import Config
from manyviews.training.supervised import Supervised
from manyviews.views.keyed import permutation

Model = Embedder | ModalityEmbedder
Loss = Objective | Supervised

MIN_HELD_OUT = 20
"""Instances that are held out by default: with fewer, one of them would be more than 5% of a kNN accuracy."""
MAX_HELD_OUT = 250
"""Instances that are held out by default, or monitored when none are held out."""
NEIGHBOURS = 1000
"""Training instances among which the watched ones look for their nearest."""
LIMIT_KEY = 1
"""Of the sample that `limit` takes: the same for all seeds, so that these differ in the training alone."""


class Source(ABC):
    """The loop asks it for views; all that is particular to a kind of data is in here."""

    labels: Tensor | None
    """By the number of an instance."""
    identity: str
    """Tells whether the data are still the same."""
    trained: Tensor
    """Which instances are trained on."""
    watched: Tensor
    """Which instances are monitored."""
    config: Config
    device: torch.device
    learned: str
    """From which views, how encoded, by what: in a few words."""

    @abstractmethod
    def __init__(self, data: Dataset, config: Config, device: torch.device) -> None: ...

    @staticmethod
    @abstractmethod
    def fit(config: Config, data: Dataset) -> Config:
        """The config with what it leaves to the data filled in, or a ConfigError if they do not go together."""

    @staticmethod
    @abstractmethod
    def model(config: Config, data: Dataset) -> Model:
        """The untrained model of a fitted config."""

    @staticmethod
    @abstractmethod
    def count_trained(config: Config, data: Dataset) -> int:
        """How many instances there are to train on."""

    @property
    def monitored(self) -> str:
        """Whom the monitored metrics are of."""
        kind = "held-out" if self.config.held_out else "trained-on"
        return f"{len(self.watched):,} {kind} instances"

    @abstractmethod
    def batches(self, epoch: int, indices: list[Tensor]) -> Iterator[tuple[Views, Tensor]]:
        """(views, index) for each of the batches' indices."""

    @abstractmethod
    def look(self, model: Any) -> dict[str, float]:
        """What to write down about the model now and then."""

    def finish(self, model: Any) -> None:  # noqa: B027 (most have nothing to do)
        """The last that is done to a trained model."""

    def told(self, objective: Loss, _views: Views, index: Tensor) -> dict[str, Any]:
        """What the objective is told about a batch besides its embeddings."""
        if isinstance(objective, SupCon) and self.labels is not None:
            return {"labels": self.labels[index].to(self.device)}
        return {}


def load_data(config: Config) -> Dataset:
    """The data of a config, with as much of the training split as its `limit` takes."""
    data = load_dataset(config.data, classes=config.classes, strict=config.strict, follow_links=config.follow_links)
    return limit_data(data, config)


def limit_data(data: Dataset, config: Config) -> Dataset:
    """The data with `limit` of the training instances, in the order of the data.

    A sample has as many instances of each class as there are, one more or less, or all where a class has fewer. The
    sample of a smaller limit is a part of that of a larger one.
    """
    split = data["train"]
    if config.limit is None or config.limit >= len(split):
        return data
    order = torch.arange(len(split))
    if config.limit_order == "sample":
        order = permutation(len(split), LIMIT_KEY)
        if split.classes is not None:
            # The first of each class in that order, then the second of each, and so on.
            values, by_class = split.classes[order].sort(stable=True)
            turn = torch.empty_like(order)
            turn[by_class] = torch.arange(len(order)) - torch.searchsorted(values, values)
            order = order[turn.argsort(stable=True)]
    index = order[: config.limit].sort().values
    taken = split.taken(index)
    if not split.ids and all(isinstance(rows, Tensor) for rows in split.modalities.values()):
        taken = dataclasses.replace(taken, ids=tuple(f"train/{number}" for number in index.tolist()))
    return dataclasses.replace(data, splits={**data.splits, "train": taken})


def choose_held_out(count: int) -> int:
    """How many of the training instances are held out by default: a tenth, but all of a small set are trained on.

    Examples:
        >>> [choose_held_out(count) for count in (20, 100, 203, 960, 2500, 50_000)]
        [0, 20, 20, 96, 250, 250]
    """
    if count < 5 * MIN_HELD_OUT:
        return 0
    return min(MAX_HELD_OUT, max(MIN_HELD_OUT, count // 10))


def apart(count: int, seed: int, held_out: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """Instances that are trained on, those that are watched, and some others to be their neighbours.

    Without held-out instances some trained ones are watched: their labels are still unseen.
    """
    # A key of its own: epochs are numbered from 0.
    order = permutation(count, seed, NO_EPOCH)
    size = held_out or min(MAX_HELD_OUT, max(2, count // 2))
    watched, rest = order[:size], order[size:]
    trained = rest.sort().values if held_out else torch.arange(count)
    return trained, watched, rest[:NEIGHBOURS]


def collapsed(found: dict[str, float]) -> str | None:
    """What to say if embeddings of different instances have become one, or nearly lie on a line."""
    if "uniformity" not in found:
        return None
    if found["uniformity"] > -0.05:
        what = f"all instances have nearly the same embedding (uniformity {found['uniformity']:.3f}, spread is -4)"
    elif found["rankme"] < 2:
        what = f"the embeddings use hardly more than one dimension (effective rank {found['rankme']:.2f})"
    else:
        return None
    return f"COLLAPSE: {what}. Try a smaller --learning-rate, a smaller --temperature or a larger --batch-size."
