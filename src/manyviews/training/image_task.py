"""`ImageTask`, and the transform of its views."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from manyviews.data import IMAGE_MODALITY, DatasetDict
from manyviews.loading import ViewLoader, embed_views, encode_images
from manyviews.models import ENCODERS, Embedder, EncoderConfig, ProjectionHead, get_encoder, get_representation_dim
from manyviews.training.config import Config, ConfigError
from manyviews.training.grad_cache import Views
from manyviews.training.task import TrainingTask
from manyviews.transforms import SimCLRTransform, infer_image_size

LARGE_IMAGE_SIZE = 64
"""Views with longer sides than this use the ImageNet defaults of stem, jitter and blur."""


class ImageTask(TrainingTask):
    """Training on random views of images, on disk or in memory."""

    def __init__(self, config: Config, data: DatasetDict, device: torch.device) -> None:
        super().__init__(config, data, data["train"], (IMAGE_MODALITY,), device)
        images = self.split.images
        self.images = images.to(device) if isinstance(images, Tensor) else images
        self.transform = build_transform(config)
        self.view_loader = ViewLoader(
            self.images, self.transform, config.views, config.seed, config.num_workers, device
        )

    @staticmethod
    def resolve_config(config: Config, data: DatasetDict) -> Config:
        size = infer_image_size(data["train"].images) if config.image_size is None else config.image_size
        is_large, is_builtin, stem = size > LARGE_IMAGE_SIZE, config.encoder in ENCODERS, config.stem
        if not is_builtin and (stem is not None or config.width_mult is not None):
            raise ConfigError(f"stem and width_mult require a built-in ResNet, got encoder {config.encoder}")
        if stem is None and is_builtin and (is_large or config.encoder != "resnet-small"):
            stem = "imagenet" if is_large else "small"
        return dataclasses.replace(
            config,
            image_size=size,
            jitter_strength=(1.0 if is_large else 0.5) if config.jitter_strength is None else config.jitter_strength,
            blur_prob=(0.5 if is_large else 0.0) if config.blur_prob is None else config.blur_prob,
            stem=stem,
        )

    @property
    def description(self) -> str:
        return f"{self.config.views} views; {self.config.encoder}, {self.config.loss}"

    def _build_model(self) -> Embedder:
        config, size = self.config, self.transform.size
        encoder = get_encoder(config.encoder, **self._get_encoder_options())
        dim = get_representation_dim(encoder, torch.zeros(1, 3, size, size))
        return Embedder(
            encoder, ProjectionHead(dim, out_dim=config.embed_dim), per_view_batch_norm=config.per_view_batch_norm
        )

    def _get_encoder_options(self) -> dict[str, Any]:
        options = {"stem": self.config.stem, "width": self.config.width_mult}
        return {name: value for name, value in options.items() if value is not None}

    def get_encoder_config(self, _model: Embedder) -> EncoderConfig:
        return EncoderConfig(self.config.encoder, self._get_encoder_options(), self.transform.size)

    def iterate_batches(self, epoch: int, indices: list[Tensor]) -> Iterator[tuple[Views, Tensor]]:
        return self.view_loader(epoch, indices)

    @property
    def _monitor_workers(self) -> int:
        """Number of workers while monitoring: forking them during a collective of several ranks may hang."""
        return 0 if dist.is_available() and dist.is_initialized() else self.config.num_workers

    def _embed_monitored(self, model: Embedder) -> tuple[Tensor, None]:
        views, seed = self.config.views, self.config.seed
        _, z = embed_views(model, self.images, self.monitor_indices, self.transform, views, seed, self._monitor_workers)
        return z, None

    def _encode(self, model: Embedder, index: Tensor) -> tuple[Tensor, Tensor]:
        return encode_images(model.encoder, self.images, index, self.transform.size, self._monitor_workers)


def build_transform(config: Config) -> SimCLRTransform:
    """Build the transform of a resolved config."""
    if config.image_size is None or config.jitter_strength is None or config.blur_prob is None:
        raise ConfigError(
            "the config does not specify image_size, jitter_strength and blur_prob, as that of a run does"
        )
    return SimCLRTransform(
        config.image_size,
        jitter_strength=config.jitter_strength,
        blur_prob=config.blur_prob,
        crop_scale=config.crop_scale,
    )
