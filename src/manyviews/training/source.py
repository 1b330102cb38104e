"""What a training learns from: instances, their views, and those that are only looked at."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from manyviews.data import Dataset
from manyviews.evaluation.represent import NO_EPOCH
from manyviews.losses import Objective, SupCon
from manyviews.models import Embedder, ModalityEmbedder
from manyviews.training.cache import Views
from manyviews.training.config import Config
from manyviews.training.supervised import Supervised
from manyviews.views.keyed import permutation

Model = Embedder | ModalityEmbedder
Loss = Objective | Supervised

WATCHED = 250
"""Instances watched when none are held out."""
NEIGHBOURS = 1000
"""Training instances among which the watched ones look for their nearest."""


class Source(ABC):
    """The loop asks it for views; all that is particular to a kind of data is in here."""

    labels: Tensor | None
    """By the number of an instance."""
    identity: str
    """Tells whether the data are still the same."""
    trained: Tensor
    """Which instances are trained on."""
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


def apart(count: int, seed: int, held_out: int) -> tuple[Tensor, Tensor, Tensor]:
    """Instances that are trained on, those that are watched, and some others to be their neighbours.

    Without held-out instances some trained ones are watched: their labels are still unseen.
    """
    # A key of its own: epochs are numbered from 0.
    order = permutation(count, seed, NO_EPOCH)
    size = held_out or min(WATCHED, max(2, count // 2))
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
