"""Training on views that are drawn from images."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from manyviews.data import Dataset, ImageFiles
from manyviews.evaluation import alignment, numerical_rank, rankme, representations, score_knn, uniformity
from manyviews.evaluation.progress import quiet
from manyviews.evaluation.represent import embedded_views
from manyviews.models import ENCODERS, Embedder, ProjectionHead, get_encoder, representation_dim
from manyviews.training.cache import Views
from manyviews.training.config import Config, ConfigError
from manyviews.training.source import Source, apart
from manyviews.views import SimCLRPolicy, ViewBatches
from manyviews.views.plain import natural_size

LARGE = 64
"""Views of more pixels a side have ImageNet's stem, jitter and blur."""


class ImageSource(Source):
    """The training images of a data set, on disk or in memory."""

    def __init__(self, data: Dataset, config: Config, device: torch.device) -> None:
        split = data["train"]
        images = split.images
        self.data, self.config, self.device = data, config, device
        self.learned = f"{config.views} views; {config.encoder}, {config.objective}"
        learned = split.classes if config.objective == "supcon" else None
        self.labels, self.identity = split.classes, fingerprint(images, learned)
        self.images = images = images.to(device) if isinstance(images, Tensor) else images
        self.trained, self.watched, self.bank = apart(len(images), config.seed, config.held_out)
        self.policy = policy_of(config)
        self.views = ViewBatches(images, self.policy, config.views, config.seed, config.workers, device)

    @staticmethod
    def fit(config: Config, data: Dataset) -> Config:
        size = natural_size(data["train"].images) if config.size is None else config.size
        large = size > LARGE
        ours = config.encoder in ENCODERS
        if not ours and (config.stem is not None or config.width is not None):
            raise ConfigError(f"stem and width are for our ResNets, which {config.encoder} is not")
        stem = config.stem
        if stem is None and ours and large:
            stem = "imagenet"
        elif stem is None and ours and config.encoder != "resnet-small":
            stem = "small"
        return dataclasses.replace(
            config,
            size=size,
            strength=(1.0 if large else 0.5) if config.strength is None else config.strength,
            blur=(0.5 if large else 0.0) if config.blur is None else config.blur,
            stem=stem,
        )

    @staticmethod
    def count_trained(config: Config, data: Dataset) -> int:
        return max(0, len(data["train"]) - (config.held_out or 0))

    @staticmethod
    def model(config: Config, _data: Dataset) -> Embedder:
        encoder = get_encoder(config.encoder, **encoder_options(config))
        size = config.size or 32
        dim = representation_dim(encoder, torch.zeros(1, 3, size, size))
        return Embedder(encoder, ProjectionHead(dim, out=config.projection), each_view=config.each_view)

    def batches(self, epoch: int, indices: list[Tensor]) -> Iterator[tuple[Views, Tensor]]:
        return self.views(epoch, indices)

    def look(self, model: Embedder) -> dict[str, float]:
        """KNN of representations, and the geometry of the embeddings of views."""
        config, size = self.config, self.policy.size
        # Amid the exchanges of several ranks a fork may hang: the others are waiting in one of them.
        workers = 0 if dist.is_available() and dist.is_initialized() else config.workers
        with quiet():
            _, z = embedded_views(model, self.images, self.watched, self.policy, config.views, config.seed, workers)
            if not z.isfinite().all():
                raise FloatingPointError("the embeddings of watched instances are not finite")
            found = {
                "alignment": alignment(z).item(),
                "uniformity": uniformity(z).item(),
                "rank": numerical_rank(z),
                "rankme": rankme(z).item(),
            }
            if self.labels is None or not len(self.bank):
                return found
            bank, known = representations(model.encoder, self.images, self.bank, size, workers)
            watched, asked = representations(model.encoder, self.images, self.watched, size, workers)
            labels = self.labels[known].to(bank.device)
            return score_knn(bank, labels, watched, self.labels[asked], self.data, config.knn_k) | found


def fingerprint(images: Tensor | ImageFiles, labels: Tensor | None = None) -> str:
    """By their pixels, or by the sizes of their files and the paths below their folder; and by labels to learn from."""
    digest = hashlib.sha256()
    if isinstance(images, Tensor):
        digest.update(images.contiguous().numpy().data)
    else:
        root = os.path.commonpath([path.parent for path in images.paths])
        for path in images.paths:
            digest.update(os.fsencode(f"{path.relative_to(root).as_posix()} {path.stat().st_size}\n"))
    if labels is not None:
        digest.update(labels.contiguous().numpy().data)
    return digest.hexdigest()[:16]


def policy_of(config: Config) -> SimCLRPolicy:
    """How a fitted config draws views."""
    assert config.size is not None
    assert config.strength is not None
    assert config.blur is not None
    return SimCLRPolicy(config.size, strength=config.strength, blur=config.blur, scale=config.scale)


def encoder_options(config: Config) -> dict[str, Any]:
    """What `get_encoder` is given besides the name."""
    return {name: value for name in ("stem", "width") if (value := getattr(config, name)) is not None}
