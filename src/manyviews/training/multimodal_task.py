"""`MultimodalTask`: training with the modalities of an instance as its views; some may be missing."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from manyviews.data import Dataset, DatasetDict
from manyviews.loading import ModalityLoader, embed_multimodal, set_mean_representation
from manyviews.losses import SupConLoss, get_loss
from manyviews.metrics import alignment, numerical_rank, rankme, score_knn, uniformity
from manyviews.models import LateFusionHead, MultimodalEmbedder, MultimodalEncoder, PerModalityHeads
from manyviews.training.config import Config, ConfigError
from manyviews.training.grad_cache import Views
from manyviews.training.task import AnyLoss, TrainingTask, split_monitored
from manyviews.utils import draw_uniform, hide_progress


class MultimodalTask(TrainingTask):
    """Train on the modalities of a dataset in memory."""

    def __init__(self, data: DatasetDict, config: Config, device: torch.device) -> None:
        self.data, self.split, self.config, self.device = data, get_training_split(data, config), config, device
        self.labels = self.split.labels if config.supervised else self.split.class_labels
        self.loader = ModalityLoader(self.split, config.modalities, device)
        self.has_missing = any(name in self.split.masks for name in config.modalities)
        self.data_fingerprint = fingerprint_split(self.split, config)
        train, monitored, self.knn_bank = split_monitored(len(self.split), config.seed, config.monitor_size)
        usable = find_usable_instances(self.loader, config)
        self.train_indices, self.monitor_indices = train[usable[train]], monitored[usable[monitored]]
        skipped = len(train) - len(self.train_indices)
        loss = "supervised by labels" if config.supervised else config.loss
        self.description = f"views {', '.join(config.modalities)}; {loss}"
        if skipped:
            missing = "no modality" if config.supervised else "no two modalities to align"
            self.description += f" ({skipped:,} instances with {missing} are skipped)"

    @staticmethod
    def resolve_config(config: Config, data: DatasetDict) -> Config:
        train = data["train"]
        names = config.modalities or data.default_modalities or tuple(train.modalities)
        for name in names:
            if name not in train.modalities:
                raise ConfigError(f"{data.name} has no modality {name!r}, only {', '.join(train.modalities)}")
            if not isinstance(train.modalities[name], Tensor):
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

    @staticmethod
    def count_train_instances(config: Config, data: DatasetDict) -> int:
        split = get_training_split(data, config)
        train = split_monitored(len(split), config.seed, config.monitor_size)[0]
        return int(find_usable_instances(ModalityLoader(split, config.modalities), config)[train].sum())

    @staticmethod
    def build_model(config: Config, data: DatasetDict) -> MultimodalEmbedder:
        split = get_training_split(data, config)
        split = split.select(split_monitored(len(split), config.seed, config.monitor_size)[0])
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
        head = LateFusionHead(config.views, config.hidden_dim, count_outputs(data))
        if split.labels is not None and split.labels.is_floating_point():
            head.target_median, head.target_scale = split.labels.median(), split.labels.std().clamp_min(1e-6)
        return MultimodalEmbedder(encoder, head)

    def iterate_batches(self, epoch: int, indices: list[Tensor]) -> Iterator[tuple[Views, Tensor]]:
        return self.loader(epoch, indices)

    def get_loss_kwargs(self, loss: AnyLoss, views: Views, index: Tensor) -> dict[str, Any]:
        kwargs: dict[str, Any] = {}
        if self.config.supervised or isinstance(loss, SupConLoss):
            assert self.labels is not None
            kwargs["labels"] = self.labels[index].to(self.device)
        if self.has_missing and not self.config.supervised:
            kwargs["mask"] = views[-1]
        return kwargs

    def monitor(self, model: Any) -> dict[str, float]:
        """Compute the kNN accuracy of fused representations and the geometry of embeddings."""
        if len(self.monitor_indices) < 2:
            return {}
        with hide_progress():
            h, z, mask = embed_multimodal(model, self.loader, self.monitor_indices)
            metrics: dict[str, float] = {}
            if not z.isfinite().all():
                raise FloatingPointError("the embeddings of monitored instances are not finite")
            if not self.config.supervised:
                metrics = {
                    "alignment": alignment(z, mask).item(),
                    "uniformity": uniformity(z, mask).item(),
                    "rank": numerical_rank(z, mask),
                    "rankme": rankme(z, mask).item(),
                }
            if self.split.class_labels is None or not len(self.knn_bank):
                return metrics
            bank_h, _, bank_mask = embed_multimodal(model, self.loader, self.knn_bank)
            bank_h, h = model.encoder.fuse(bank_h, bank_mask), model.encoder.fuse(h, mask)
            bank_labels = self.split.class_labels[self.knn_bank].to(self.device)
            labels = self.split.class_labels[self.monitor_indices]
            return score_knn(bank_h, bank_labels, h, labels, self.data, self.config.knn_k) | metrics

    def finish_model(self, model: Any) -> None:
        with hide_progress():
            set_mean_representation(model.encoder, self.loader, self.train_indices)


def count_outputs(data: DatasetDict) -> int:
    """Return the number of outputs of a supervised head: one per class, or one for a regression target."""
    return 1 if data["train"].class_labels is None else len(data.class_names)


def find_usable_instances(loader: ModalityLoader, config: Config) -> Tensor:
    """Return a mask (n,) of instances to train on: with one modality for labels, with a positive pair for a loss."""
    mask = loader.get_mask(torch.arange(len(loader.split)))
    if config.supervised:
        return mask.any(1)
    loss, num_views = get_loss(config.loss), mask.shape[1]
    _, expanded = loss.expand_views(torch.zeros(*mask.shape, 1), mask)
    assert expanded is not None
    return (loss.positive_pairs(num_views) & expanded[:, :, None] & expanded[:, None, :]).flatten(1).any(1)


def get_training_split(data: DatasetDict, config: Config) -> Dataset:
    """Return the training instances of a resolved config, without the modalities that `missing_rate` removes.

    They depend on the seed. Every instance keeps at least one modality.
    """
    names, split = config.modalities, data["train"]
    if not config.missing_rate:
        return split
    mask = ModalityLoader(split, names).get_mask(torch.arange(len(split)))
    samples = draw_uniform(config.seed, torch.arange(len(split))[:, None], torch.arange(len(names)))
    samples = torch.where(mask, samples, -1.0)
    dropped = (samples < config.missing_rate) & (samples < samples.amax(1, keepdim=True))
    return split.drop_modalities({name: dropped[:, i] for i, name in enumerate(names)})


def fingerprint_split(split: Dataset, config: Config) -> str:
    """Hash the features, lengths and masks, and the labels if the loss uses them."""
    digest = hashlib.sha256()
    parts: list[Tensor | None] = []
    for name in config.modalities:
        features = split.modalities[name]
        assert isinstance(features, Tensor)
        parts += [features, split.lengths.get(name), split.masks.get(name)]
    if config.supervised or config.loss == "supcon":
        parts.append(split.labels)
    for part in parts:
        digest.update(b"none" if part is None else part.contiguous().numpy().data)
    return digest.hexdigest()[:16]
