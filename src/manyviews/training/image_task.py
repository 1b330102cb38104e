"""`ImageTask`: training on random views of images."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from manyviews.data import DatasetDict, LazyImages
from manyviews.loading import ViewLoader, embed_views, encode_images
from manyviews.metrics import alignment, numerical_rank, rankme, score_knn, uniformity
from manyviews.models import ENCODERS, Embedder, ProjectionHead, get_encoder, get_representation_dim
from manyviews.training.config import Config, ConfigError
from manyviews.training.grad_cache import Views
from manyviews.training.task import TrainingTask, split_monitored
from manyviews.transforms import SimCLRTransform, infer_image_size
from manyviews.utils import hide_progress

LARGE_IMAGE_SIZE = 64
"""Views with longer sides than this use the ImageNet defaults of stem, jitter and blur."""


class ImageTask(TrainingTask):
    """Train on the images of a dataset, on disk or in memory."""

    def __init__(self, data: DatasetDict, config: Config, device: torch.device) -> None:
        split = data["train"]
        images = split.images
        self.data, self.config, self.device = data, config, device
        self.description = f"{config.views} views; {config.encoder}, {config.loss}"
        used_labels = split.class_labels if config.loss == "supcon" else None
        self.labels, self.data_fingerprint = split.class_labels, fingerprint_images(images, used_labels)
        self.images = images = images.to(device) if isinstance(images, Tensor) else images
        self.train_indices, self.monitor_indices, self.knn_bank = split_monitored(
            len(images), config.seed, config.monitor_size
        )
        self.transform = build_transform(config)
        self.view_loader = ViewLoader(images, self.transform, config.views, config.seed, config.num_workers, device)

    @staticmethod
    def resolve_config(config: Config, data: DatasetDict) -> Config:
        size = infer_image_size(data["train"].images) if config.image_size is None else config.image_size
        is_large = size > LARGE_IMAGE_SIZE
        is_builtin = config.encoder in ENCODERS
        if not is_builtin and (config.stem is not None or config.width_mult is not None):
            raise ConfigError(f"stem and width_mult require a built-in ResNet, got encoder {config.encoder}")
        stem = config.stem
        if stem is None and is_builtin and is_large:
            stem = "imagenet"
        elif stem is None and is_builtin and config.encoder != "resnet-small":
            stem = "small"
        return dataclasses.replace(
            config,
            image_size=size,
            jitter_strength=(1.0 if is_large else 0.5) if config.jitter_strength is None else config.jitter_strength,
            blur_prob=(0.5 if is_large else 0.0) if config.blur_prob is None else config.blur_prob,
            stem=stem,
        )

    @staticmethod
    def count_train_instances(config: Config, data: DatasetDict) -> int:
        return max(0, len(data["train"]) - (config.monitor_size or 0))

    @staticmethod
    def build_model(config: Config, _data: DatasetDict) -> Embedder:
        encoder = get_encoder(config.encoder, **get_encoder_options(config))
        size = config.image_size or 32
        dim = get_representation_dim(encoder, torch.zeros(1, 3, size, size))
        return Embedder(
            encoder, ProjectionHead(dim, out_dim=config.embed_dim), per_view_batch_norm=config.per_view_batch_norm
        )

    def iterate_batches(self, epoch: int, indices: list[Tensor]) -> Iterator[tuple[Views, Tensor]]:
        return self.view_loader(epoch, indices)

    def monitor(self, model: Embedder) -> dict[str, float]:
        """Compute the kNN accuracy of representations and the geometry of embeddings."""
        config, size = self.config, self.transform.size
        # Forking workers during a collective of several ranks may hang.
        workers = 0 if dist.is_available() and dist.is_initialized() else config.num_workers
        with hide_progress():
            _, z = embed_views(
                model, self.images, self.monitor_indices, self.transform, config.views, config.seed, workers
            )
            if not z.isfinite().all():
                raise FloatingPointError("the embeddings of monitored instances are not finite")
            metrics = {
                "alignment": alignment(z).item(),
                "uniformity": uniformity(z).item(),
                "rank": numerical_rank(z),
                "rankme": rankme(z).item(),
            }
            if self.labels is None or not len(self.knn_bank):
                return metrics
            bank_h, bank_index = encode_images(model.encoder, self.images, self.knn_bank, size, workers)
            h, index = encode_images(model.encoder, self.images, self.monitor_indices, size, workers)
            bank_labels = self.labels[bank_index].to(bank_h.device)
            return score_knn(bank_h, bank_labels, h, self.labels[index], self.data, config.knn_k) | metrics


def fingerprint_images(images: Tensor | LazyImages, labels: Tensor | None = None) -> str:
    """Hash the pixels, or the relative paths and sizes of the files; and the labels if the loss uses them."""
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


def build_transform(config: Config) -> SimCLRTransform:
    """Build the transform of a resolved config."""
    assert config.image_size is not None
    assert config.jitter_strength is not None
    assert config.blur_prob is not None
    return SimCLRTransform(
        config.image_size,
        jitter_strength=config.jitter_strength,
        blur_prob=config.blur_prob,
        crop_scale=config.crop_scale,
    )


def get_encoder_options(config: Config) -> dict[str, Any]:
    """Return the keyword arguments for `get_encoder`."""
    options = {"stem": config.stem, "width": config.width_mult}
    return {name: value for name, value in options.items() if value is not None}
