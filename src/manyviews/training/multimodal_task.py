"""`MultimodalTask`: training with the modalities of an instance as its views; some may be missing."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from manyviews.data import Dataset, DatasetDict, Images
from manyviews.loading import ModalityLoader, embed_multimodal, encode_multimodal, set_mean_representation
from manyviews.losses import get_loss
from manyviews.models import (
    LateFusionHead,
    MultimodalConfig,
    MultimodalEmbedder,
    MultimodalEncoder,
    PerModalityHeads,
)
from manyviews.training.config import Config, ConfigError
from manyviews.training.grad_cache import Views
from manyviews.training.task import TrainingTask
from manyviews.utils import draw_uniform, hide_progress


class MultimodalTask(TrainingTask):
    """Training on modalities in memory; instances without a positive pair are left out."""

    def __init__(self, config: Config, data: DatasetDict, device: torch.device) -> None:
        super().__init__(config, data, drop_random_modalities(data["train"], config), config.modalities, device)
        self.loader = ModalityLoader(self.split, config.modalities, device)
        self.has_missing = any(self.split[name].mask is not None for name in config.modalities)
        self.unmonitored = self.train_indices
        usable = find_usable_instances(self.loader, config)
        self.train_indices = self.unmonitored[usable[self.unmonitored]]
        self.monitor_indices = self.monitor_indices[usable[self.monitor_indices]]

    @staticmethod
    def resolve_config(config: Config, data: DatasetDict) -> Config:
        train = data["train"]
        names = config.modalities or data.default_modalities or tuple(train.modalities)
        for name in names:
            if name not in train.modalities:
                raise ConfigError(f"{data.name} has no modality {name!r}, only {', '.join(train.modalities)}")
            column = train[name]
            if isinstance(column, Images) and not isinstance(column.values, Tensor):
                raise ConfigError(f"{name} of {data.name} is on disk: images of multimodal data must be in memory")
        if len(set(names)) < len(names):
            raise ConfigError(f"modalities must be unique, got {', '.join(names)}")
        if len(names) < 2 and not config.supervised:
            raise ConfigError(f"at least two modalities are required, {data.name} has only {names[0]}")
        if config.views not in (0, len(names)):
            raise ConfigError(
                f"views must be 0 or the number of modalities, {len(names)} ({', '.join(names)}), got {config.views}: "
                f"use --views 0, or select {config.views} of them with --modalities"
            )
        if config.supervised and train.labels is None:
            raise ConfigError(f"supervised training requires labels, {data.name} has none")
        max_views = get_loss(config.loss).max_views
        if len(names) > max_views and not config.supervised:
            raise ConfigError(
                f"{config.loss} supports {max_views} views, got {len(names)} modalities: try pwe-{config.loss}"
            )
        return dataclasses.replace(config, modalities=names, views=len(names))

    @property
    def description(self) -> str:
        loss = "supervised by labels" if self.config.supervised else self.config.loss
        text = f"views {', '.join(self.config.modalities)}; {loss}"
        if skipped := len(self.unmonitored) - len(self.train_indices):
            missing = "no modality" if self.config.supervised else "no two modalities to align"
            text += f" ({skipped:,} instances with {missing} are skipped)"
        return text

    def _build_model(self) -> MultimodalEmbedder:
        config, split = self.config, self.split.select(self.unmonitored)
        encoder = MultimodalEncoder.from_dataset(
            split,
            config.modalities,
            hidden_dim=config.hidden_dim,
            transformer_layers=config.transformer_layers,
            transformer_heads=config.transformer_heads,
            dropout=config.dropout,
            image_encoder=config.encoder,
        )
        if not config.supervised:
            return MultimodalEmbedder(encoder, PerModalityHeads(config.views, config.hidden_dim, config.embed_dim))
        num_outputs = 1 if split.class_labels is None else len(self.data.class_names)
        head = LateFusionHead(config.views, config.hidden_dim, num_outputs)
        if split.labels is not None and split.labels.is_floating_point():
            head.target_median, head.target_scale = split.labels.median(), split.labels.std().clamp_min(1e-6)
        return MultimodalEmbedder(encoder, head)

    def get_encoder_config(self, model: MultimodalEmbedder) -> MultimodalConfig | None:
        return model.encoder.config

    def iterate_batches(self, epoch: int, indices: list[Tensor]) -> Iterator[tuple[Views, Tensor]]:
        return self.loader(epoch, indices)

    def get_loss_kwargs(self, views: Views, index: Tensor) -> dict[str, Any]:
        mask = {"mask": views[-1]} if self.has_missing and not self.config.supervised else {}
        return super().get_loss_kwargs(views, index) | mask

    def _embed_monitored(self, model: MultimodalEmbedder) -> tuple[Tensor, Tensor]:
        _, z, mask = embed_multimodal(model, self.loader, self.monitor_indices)
        return z, mask

    def _encode(self, model: MultimodalEmbedder, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the fused representations of all modalities."""
        return model.encoder.fuse(*encode_multimodal(model.encoder, self.loader, index)), index

    def finish_model(self, model: MultimodalEmbedder) -> None:
        with hide_progress():
            set_mean_representation(model.encoder, self.loader, self.train_indices)


def find_usable_instances(loader: ModalityLoader, config: Config) -> Tensor:
    """Return a mask (n,) of instances to train on: with one modality for labels, with a positive pair for a loss."""
    mask = loader.split.get_mask(loader.names)
    if config.supervised:
        return mask.any(1)
    loss, num_views = get_loss(config.loss), mask.shape[1]
    _, expanded = loss.expand_views(torch.zeros(*mask.shape, 1), mask)
    assert expanded is not None
    return (loss.positive_pairs(num_views) & expanded[:, :, None] & expanded[:, None, :]).flatten(1).any(1)


def drop_random_modalities(split: Dataset, config: Config) -> Dataset:
    """Drop a fraction `missing_rate` of the modalities, chosen by the seed; every instance keeps at least one."""
    if not config.missing_rate:
        return split
    names, index = config.modalities, torch.arange(len(split))
    mask = split.get_mask(names)
    samples = draw_uniform(config.seed, index[:, None], torch.arange(len(names)))
    samples = torch.where(mask, samples, -1.0)
    dropped = (samples < config.missing_rate) & (samples < samples.amax(1, keepdim=True))
    return split.drop_modalities({name: dropped[:, i] for i, name in enumerate(names)})
