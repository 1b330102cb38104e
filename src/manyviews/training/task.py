"""`TrainingTask`: a config with its data: the views, the model, and which instances are trained and monitored."""

from __future__ import annotations

import dataclasses
import hashlib
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from manyviews.data import Dataset, DatasetDict, load_dataset
from manyviews.loading import (
    EncodedModality,
    ViewLoader,
    ViewSpec,
    embed_instances,
    encode_instances,
    make_eval_loader,
    set_mean_representation,
)
from manyviews.losses import EnergyLoss, MultiViewLoss
from manyviews.metrics import compute_geometry, score_knn
from manyviews.models import (
    CUSTOM,
    EncoderConfig,
    LateFusionHead,
    MultiViewEncoder,
    MultiViewHead,
    MultiViewModel,
    ProjectionHead,
    ViewBatch,
    eval_mode,
)
from manyviews.training.build import build_encoder_config, build_transforms, fit_encoders, make_spec
from manyviews.training.config import CUSTOM_DATA, Config, ConfigError
from manyviews.training.custom_objects import CustomObjects
from manyviews.training.freezing import find_frozen, freeze_encoders, list_frozen_parts, list_trained_encoders
from manyviews.training.frozen_outputs import make_encoding_loaders
from manyviews.training.initial_weights import load_initial_weights
from manyviews.utils import EVAL_EPOCH, draw_permutation, draw_uniform, hide_progress

MIN_MONITORED = 20
"""Minimum default of monitor_size; with fewer, one instance is more than 5% of the kNN accuracy."""
MAX_MONITORED = 250
"""Maximum default of monitor_size, and of the trained instances that are monitored if monitor_size is 0."""
KNN_BANK_SIZE = 500
"""Number of training instances among which kNN searches the neighbors of monitored instances."""
SUBSET_KEY = 1
"""Random key of the sample of `max_instances`; it is the same for all seeds."""


class TrainingTask:
    """A resolved config, its data, and the training instances: those to train on and those to monitor.

    Instances without a positive pair (without a modality, for a supervised baseline) are left out. `encoder_config` is
    that of a trained model, which needs no folder of pretrained encoders; by default, it follows from the config.
    """

    def __init__(
        self,
        config: Config,
        data: DatasetDict,
        device: torch.device,
        objects: CustomObjects | None = None,
        encoder_config: EncoderConfig | None = None,
    ) -> None:
        self.objects = objects or CustomObjects()
        self.config, self.data, self.device, self.spec = config, data, device, make_spec(config, data)
        split = drop_random_modalities(data["train"], self.spec, config)
        self.encoder_config = encoder_config or build_encoder_config(config, self.spec, split, self.objects)
        self.split = self.encoder_config.prepare_dataset(split)
        columns = {name: split[name] for name in self.spec.modalities}
        self.frozen = find_frozen(config, columns, self.spec.encoders)
        self.trained_encoders = list_trained_encoders(config, self.encoder_config)
        self.labels = self.split.labels if config.supervised else self.split.class_labels
        self.uses_labels = config.supervised or config.loss == "supcon" or self.objects.accepts("labels")
        indices, monitored, self.knn_bank = split_monitored(len(self.split), config.seed, config.monitor_size)
        self.transforms = build_transforms(config, self.spec, self.split, indices, self.objects)
        self.view_loader = self.make_loader(config.num_workers)
        self.encoding_loaders = make_encoding_loaders(self.view_loader, self.frozen_encoders)
        usable = find_usable_instances(self.split, self.spec, config, self.objects.loss)
        self.unmonitored, self.train_indices = indices, indices[usable[indices]]
        self.monitor_indices = monitored[usable[monitored]]

    def make_loader(self, num_workers: int) -> ViewLoader:
        """Make a loader of the training split's views, as they are trained on."""
        return ViewLoader(
            self.split,
            self.spec,
            self.transforms,
            seed=self.config.seed,
            num_workers=num_workers,
            device=self.device,
            replace_corrupt=True,
        )

    @property
    def description(self) -> str:
        """One-line description for the log: views, encoder, loss."""
        name = self.config.loss if self.objects.loss is None else type(self.objects.loss).__name__
        loss = "supervised by labels" if self.config.supervised else name
        text = f"views {' '.join(self.config.views)}; {loss}"
        if skipped := len(self.unmonitored) - len(self.train_indices):
            missing = "no modality" if self.config.supervised else "no two views to align"
            text += f" ({skipped:,} instances with {missing} are skipped)"
        return text

    @property
    def monitored(self) -> str:
        """Description of the monitored instances for the log."""
        return f"{len(self.monitor_indices):,} monitored instances{'' if self.config.monitor_size else ' (trained on)'}"

    def build_model(self) -> MultiViewModel:
        """Build the untrained model; it depends on the config, its seed and the training instances only."""
        config = self.config
        with torch.random.fork_rng([]):
            torch.manual_seed(config.seed)
            encoder = MultiViewEncoder.from_config(
                self.encoder_config,
                per_view_batch_norm=config.per_view_batch_norm,
                modules={key: self._build_custom_encoder(key) for key in self._list_custom_encoders()},
            )
            load_initial_weights(config, encoder, self.split, self.make_loader(0))
            fit_encoders(encoder, self.split, self.unmonitored)
            freeze_encoders(encoder, self.frozen)
            head = self._build_supervised_head(encoder) if config.supervised else self._build_head(encoder)
            return MultiViewModel(encoder, head)

    @property
    def frozen_encoders(self) -> list[str]:
        """Encoders of which no part is trained."""
        return [key for key, until in self.frozen.items() if not until]

    def list_frozen_parts(self, model: MultiViewModel) -> list[nn.Module]:
        """List the modules that are not trained."""
        parts = (list_frozen_parts(model.encoder.get_encoder(key), until) for key, until in self.frozen.items())
        return [module for part in parts for module in part]

    def use_encoded(self, encoded: dict[str, EncodedModality]) -> None:
        """Train and monitor with these outputs of encoders instead of the views of their modalities."""
        for loader in (self.view_loader, *self.__dict__.get("monitor_loaders", ())):
            loader.use_encoded(encoded)

    def _list_custom_encoders(self) -> list[str]:
        return [key for key, spec in self.encoder_config.encoders.items() if spec.name == CUSTOM]

    def _build_custom_encoder(self, key: str) -> nn.Module:
        """Copy the user's encoder; its attribute `dim` is set if it has none."""
        modality = next(name for name, encoder in self.spec.encoders.items() if encoder == key)
        kind = self.split[modality].kind
        module = self.objects.find_encoder(modality, kind)
        assert module is not None
        if not isinstance(getattr(module, "dim", None), int):
            (group,) = (
                group for group in self.make_loader(0).load(self.train_indices[:2]).groups if group.encoder == key
            )
            with eval_mode(module) as reference:
                values = group.values.to(reference) if group.values.is_floating_point() else group.values
                h = module(values) if group.lengths is None else module(values, group.lengths)
            module.dim = h.shape[1]
        return module

    def check_loss(self) -> None:
        """Raise a ConfigError if the user's loss cannot be used with the data."""
        loss, spec = self.objects.loss, self.spec
        if isinstance(loss, MultiViewLoss) and spec.num_views > loss.max_views:
            raise ConfigError(f"{type(loss).__name__} supports {loss.max_views} views, got {spec.num_views}")
        if self.mask_error and any(self.split[name].mask is not None for name in spec.modalities):
            raise ConfigError(f"some views are missing, {self.mask_error}")
        if self.objects.accepts("labels") and self.labels is None:
            raise ConfigError(f"the loss takes labels, {self.data.name} has none")

    @cached_property
    def mask_error(self) -> str:
        """Why the loss cannot be used if views are missing; empty if it can."""
        if self.config.supervised:
            return ""
        loss = self.objects.loss
        if reason := getattr(self.config.build_default_loss() if loss is None else loss, "mask_error", ""):
            return f"and the loss does not support that: {reason}"
        return "" if self.objects.accepts("mask") else "so the loss must take them as loss(z, mask=mask)"

    def _build_head(self, encoder: MultiViewEncoder) -> MultiViewHead:
        columns = {key: self.split[modality] for modality, key in self.spec.encoders.items()}
        heads = {
            key: ProjectionHead(encoder.dim, out_dim=self.config.embed_dim, batch_norm=columns[key].uses_batch_norm)
            for key in encoder.names
        }
        return MultiViewHead(heads, self.config.embed_dim, per_view_batch_norm=self.config.per_view_batch_norm)

    def _build_supervised_head(self, encoder: MultiViewEncoder) -> LateFusionHead:
        num_outputs = 1 if self.split.class_labels is None else len(self.data.class_names)
        head = LateFusionHead(self.spec.num_views, encoder.dim, num_outputs)
        if self.split.labels is not None and self.split.labels.is_floating_point():
            labels = self.split.labels[self.unmonitored]
            head.target_median, head.target_scale = labels.median(), labels.std().clamp_min(1e-6)
        return head

    def get_loss_kwargs(self, batch: ViewBatch) -> dict[str, Any]:
        """Return extra keyword arguments for the loss (labels, mask)."""
        kwargs: dict[str, Any] = {}
        if self.uses_labels:
            assert self.labels is not None
            kwargs["labels"] = self.labels[batch.indices].to(self.device)
        if batch.mask is not None and not self.config.supervised:
            if not self.mask_error:
                kwargs["mask"] = batch.mask
            elif not batch.mask.all():
                raise ConfigError(f"some views are missing, because files cannot be read, {self.mask_error}")
        return kwargs

    def estimate_monitor_steps(self) -> float:
        """Estimate how many steps take as long as `monitor`, by the views that both encode."""
        num_encoded = len(self.monitor_indices) * self.spec.num_views
        if self.split.class_labels is not None and len(self.knn_bank):
            num_encoded += (len(self.monitor_indices) + len(self.knn_bank)) * len(self.spec.modalities)
        # The forward and backward pass of a step takes at least 2.5 times as long as a forward pass in evaluation mode.
        return num_encoded / (2.5 * self.config.instances_per_batch * self.spec.num_views)

    def monitor(self, model: MultiViewModel) -> dict[str, float]:
        """Compute the kNN accuracy of representations and the geometry of embeddings of the monitored instances."""
        if len(self.monitor_indices) < 2:
            return {}
        view_loader, eval_loader = self.monitor_loaders
        with hide_progress():
            _, z, mask = embed_instances(model, view_loader, self.monitor_indices)
            if not z.isfinite().all():
                raise FloatingPointError("the embeddings of monitored instances are not finite")
            metrics: dict[str, float] = {}
            if not self.config.supervised:
                has_missing = view_loader.has_missing
                metrics = compute_geometry(
                    z, mask if has_missing else None, ["alignment", "uniformity", "rank", "rankme"]
                )
            labels = self.split.class_labels
            if labels is None or not len(self.knn_bank):
                return metrics
            bank_h, bank_labels = self._encode(model, eval_loader, self.knn_bank, labels)
            h, test_labels = self._encode(model, eval_loader, self.monitor_indices, labels)
            return score_knn(bank_h, bank_labels.to(h.device), h, test_labels, self.data, self.config.knn_k) | metrics

    def _encode(
        self, model: MultiViewModel, loader: ViewLoader, index: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return fused representations (n, d) and labels (n,) of the instances that have a modality."""
        h, mask = encode_instances(model.encoder, loader, index)
        exists = mask.any(1)
        return model.encoder.fuse(h, mask)[exists], labels[index][exists.cpu()]

    @cached_property
    def monitor_loaders(self) -> tuple[ViewLoader, ViewLoader]:
        """Loaders for `monitor`, of augmented views and of one view of each modality."""
        workers = self.config.num_workers
        options = self.encoder_config, workers, self.device
        loaders = self.make_loader(workers), make_eval_loader(self.split, *options, keep_workers=True)
        for loader in loaders:
            loader.use_encoded(self.view_loader.encoded)
        return loaders

    def start_workers(self, monitors: bool) -> None:
        """Start the processes that read files, which live as long as the training.

        They are forked before ranks exchange anything: a fork amid an exchange may copy a lock that nobody releases.
        """
        others = self.encoding_loaders.values()
        for loader in (self.view_loader, *others, *(self.monitor_loaders if monitors else ())):
            loader.start_workers()

    def stop_workers(self) -> None:
        """Stop the processes that read files for training and monitoring."""
        for loader in (*self.encoding_loaders.values(), self.view_loader, *self.__dict__.get("monitor_loaders", ())):
            loader.stop_workers()

    def finish_model(self, model: MultiViewModel) -> None:
        """Complete a trained model before it is saved."""
        with hide_progress():
            set_mean_representation(model.encoder, self.monitor_loaders[1], self.train_indices)

    def compute_fingerprint(self) -> str:
        """Hash the data, and the labels if the loss uses them; a resumed run must have the same."""
        digest = hashlib.sha256()
        content = [part for name in self.spec.modalities for part in self.split[name].list_content()]
        if self.uses_labels and self.split.labels is not None:
            content.append(self.split.labels)
        for part in content:
            digest.update(part.contiguous().numpy().data if isinstance(part, Tensor) else part)
        return digest.hexdigest()[:16]


def find_usable_instances(split: Dataset, spec: ViewSpec, config: Config, loss: nn.Module | None = None) -> Tensor:
    """Return a mask (n,) of instances to train on: with one modality for labels, with a positive pair for a loss."""
    mask = split.get_mask([item.modality for item in spec.items for _ in range(item.count)])
    if config.supervised:
        return mask.any(1)
    if mask.all():
        return mask.any(1)
    loss, num_views = config.build_default_loss() if loss is None else loss, mask.shape[1]
    if not isinstance(loss, EnergyLoss):
        return loss.select_counted(mask) if isinstance(loss, MultiViewLoss) else mask.sum(1) > 1
    _, expanded = loss.expand_views(torch.zeros(*mask.shape, 1), mask)
    assert expanded is not None
    return (loss.positive_pairs(num_views) & expanded[:, :, None] & expanded[:, None, :]).flatten(1).any(1)


def drop_random_modalities(split: Dataset, spec: ViewSpec, config: Config) -> Dataset:
    """Drop a fraction `missing_rate` of the modalities, chosen by the seed; every instance keeps at least one."""
    if not config.missing_rate:
        return split
    names, index = spec.modalities, torch.arange(len(split))
    mask = split.get_mask(names)
    samples = draw_uniform(config.seed, index[:, None], torch.arange(len(names)))
    samples = torch.where(mask, samples, -1.0)
    dropped = (samples < config.missing_rate) & (samples < samples.amax(1, keepdim=True))
    return split.drop_modalities({name: dropped[:, i] for i, name in enumerate(names)})


def load_data(config: Config, source: DatasetDict | None = None) -> DatasetDict:
    """Load the data of a config, or take the user's, with at most `max_instances` training instances."""
    if source is not None:
        return limit_instances(source, config)
    if config.data == CUSTOM_DATA:
        raise ConfigError(
            "the data is an object of yours: pass it, as mv.train(DATASET, ...) or evaluate(data=DATASET)"
        )
    data = load_dataset(
        config.data,
        class_list=config.class_list,
        raise_on_corrupt=config.raise_on_corrupt,
        follow_symlinks=config.follow_symlinks,
        **config.get_table_options(),
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
    if not split.ids and not any(column.reads_files for column in split.modalities.values()):
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
