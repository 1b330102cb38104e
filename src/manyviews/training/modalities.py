"""Training on modalities: they are the views, and some may be missing."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from manyviews.data import Dataset, Split
from manyviews.evaluation import alignment, numerical_rank, rankme, score_knn, uniformity
from manyviews.evaluation.modalities import embedded, set_centre
from manyviews.evaluation.progress import quiet
from manyviews.losses import SupCon, get_objective
from manyviews.models import FusedHead, ModalityEmbedder, ModalityEncoder, ModalityHeads
from manyviews.training.cache import Views
from manyviews.training.config import Config, ConfigError
from manyviews.training.source import Loss, Source, apart
from manyviews.views import ModalityBatches
from manyviews.views.keyed import uniform


class ModalitySource(Source):
    """The training split of a bundle, in memory."""

    def __init__(self, data: Dataset, config: Config, device: torch.device) -> None:
        self.data, self.split, self.config, self.device = data, learned_from(data, config), config, device
        self.labels = self.split.labels if config.supervised else self.split.classes
        self.rows = ModalityBatches(self.split, config.modalities, device)
        self.gaps = any(name in self.split.present for name in config.modalities)
        self.identity = fingerprint(self.split, config)
        trained, watched, self.bank = apart(len(self.split), config.seed, config.held_out)
        enough = contrasted(self.rows, config)
        self.trained, self.watched = trained[enough[trained]], watched[enough[watched]]
        alone = len(trained) - len(self.trained)
        by = "supervised by labels" if config.supervised else config.objective
        self.learned = f"views {', '.join(config.modalities)}; {by}"
        if alone:
            lacking = "no modality" if config.supervised else "no two modalities to align"
            self.learned += f" ({alone:,} instances have {lacking}: left out)"

    @staticmethod
    def fit(config: Config, data: Dataset) -> Config:
        train = data["train"]
        names = config.modalities or data.views or tuple(train.modalities)
        for name in names:
            if name not in train.modalities:
                raise ConfigError(f"{data.name} has no modality {name!r}, only {', '.join(train.modalities)}")
            if not isinstance(train.modalities[name], Tensor):
                raise ConfigError(f"{name} of {data.name} is on disk: beside others, images must be in memory")
        if len(set(names)) < len(names):
            raise ConfigError(f"modalities must each be named once, got {', '.join(names)}")
        if len(names) < 2 and not config.supervised:
            raise ConfigError(
                f"an objective contrasts at least two modalities, and of {data.name} there is only {names[0]}"
            )
        if config.views not in (0, len(names)):
            raise ConfigError(
                f"views are the modalities, and there are {len(names)} ({', '.join(names)}): leave --views at 0, or "
                f"name {config.views} of them with --modalities"
            )
        if config.supervised and train.labels is None:
            raise ConfigError(f"supervised training needs labels, and {data.name} has none")
        most = get_objective(config.objective).most_views
        if len(names) > most and not config.supervised:
            raise ConfigError(
                f"{config.objective} is for {most} views, and there are {len(names)}: try pwe-{config.objective}"
            )
        return dataclasses.replace(config, modalities=names, views=len(names))

    @staticmethod
    def count_trained(config: Config, data: Dataset) -> int:
        split = learned_from(data, config)
        trained = apart(len(split), config.seed, config.held_out)[0]
        return int(contrasted(ModalityBatches(split, config.modalities), config)[trained].sum())

    @staticmethod
    def model(config: Config, data: Dataset) -> ModalityEmbedder:
        split = learned_from(data, config)
        split = split.taken(apart(len(split), config.seed, config.held_out)[0])
        encoder = ModalityEncoder.for_split(
            split,
            config.modalities,
            dim=config.dim,
            layers=config.layers,
            heads=config.heads,
            dropout=config.dropout,
            image_encoder=config.encoder,
        )
        if not config.supervised:
            return ModalityEmbedder(encoder, ModalityHeads(config.views, config.dim, config.projection))
        head = FusedHead(config.views, config.dim, outputs(data))
        if split.labels is not None and split.labels.is_floating_point():
            head.middle, head.spread = split.labels.median(), split.labels.std().clamp_min(1e-6)
        return ModalityEmbedder(encoder, head)

    def batches(self, epoch: int, indices: list[Tensor]) -> Iterator[tuple[Views, Tensor]]:
        return self.rows(epoch, indices)

    def told(self, objective: Loss, views: Views, index: Tensor) -> dict[str, Any]:
        told: dict[str, Any] = {}
        if self.config.supervised or isinstance(objective, SupCon):
            assert self.labels is not None
            told["labels"] = self.labels[index].to(self.device)
        if self.gaps and not self.config.supervised:
            told["present"] = views[-1]
        return told

    def look(self, model: Any) -> dict[str, float]:
        """KNN of fused representations, and the geometry of embeddings."""
        if len(self.watched) < 2:
            return {}
        with quiet():
            h, z, present = embedded(model, self.rows, self.watched)
            found: dict[str, float] = {}
            if not z.isfinite().all():
                raise FloatingPointError("the embeddings of watched instances are not finite")
            if not self.config.supervised:
                found = {
                    "alignment": alignment(z, present).item(),
                    "uniformity": uniformity(z, present).item(),
                    "rank": numerical_rank(z, present),
                    "rankme": rankme(z, present).item(),
                }
            if self.split.classes is None or not len(self.bank):
                return found
            bank, _, there = embedded(model, self.rows, self.bank)
            fused = [model.encoder.fused(*part) for part in ((bank, there), (h, present))]
            labels, answers = self.split.classes[self.bank].to(self.device), self.split.classes[self.watched]
            return score_knn(fused[0], labels, fused[1], answers, self.data, self.config.knn_k) | found

    def finish(self, model: Any) -> None:
        with quiet():
            set_centre(model.encoder, self.rows, self.trained)


def outputs(data: Dataset) -> int:
    """Of a supervised head: one for each class, or one for a quantity."""
    return 1 if data["train"].classes is None else len(data.classes)


def contrasted(rows: ModalityBatches, config: Config) -> Tensor:
    """Which instances (n,) can be trained on: labels need one modality, an objective two that it aligns."""
    present = rows.present(torch.arange(len(rows.split)))
    if config.supervised:
        return present.any(1)
    objective, views = get_objective(config.objective), present.shape[1]
    there = objective.contrasts(torch.zeros(*present.shape, 1), present)[1]
    assert there is not None
    return (objective.pairs(views) & there[:, :, None] & there[:, None, :]).flatten(1).any(1)


def learned_from(data: Dataset, config: Config) -> Split:
    """The training instances as a fitted config takes them: without what `missing` leaves out.

    What is left out is a function of the seed. An instance keeps the last of what it has.
    """
    names, split = config.modalities, data["train"]
    if not config.missing:
        return split
    there = ModalityBatches(split, names).present(torch.arange(len(split)))
    drawn = uniform(config.seed, torch.arange(len(split))[:, None], torch.arange(len(names)))
    drawn = torch.where(there, drawn, -1.0)
    gone = (drawn < config.missing) & (drawn < drawn.amax(1, keepdim=True))
    return split.lacking({name: gone[:, number] for number, name in enumerate(names)})


def fingerprint(split: Split, config: Config) -> str:
    """By the features, what is missing of them, and the labels that are learned from."""
    digest = hashlib.sha256()
    parts: list[Tensor | None] = []
    for name in config.modalities:
        rows = split.modalities[name]
        assert isinstance(rows, Tensor)
        parts += [rows, split.lengths.get(name), split.present.get(name)]
    if config.supervised or config.objective == "supcon":
        parts.append(split.labels)
    for part in parts:
        digest.update(b"none" if part is None else part.contiguous().numpy().data)
    return digest.hexdigest()[:16]
