"""Evaluation of a model: its representations compared with raw features and the untrained encoder, geometry and, for
several modalities, every subset of them and cross-modal retrieval.

Classes are predicted by kNN and a linear probe, regression targets by linear probes with an L1 loss.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from manyviews.data import Dataset, DatasetDict, DatasetError
from manyviews.evaluation.fused_prediction import (
    EncodedInstances,
    Fusion,
    Predictor,
    choose_fusion,
    describe_fusion,
    predict_fusions,
)
from manyviews.evaluation.modality_features import (
    average_embeddings,
    compute_cross_modal_retrieval,
    compute_modality_geometry,
    list_modality_subsets,
)
from manyviews.evaluation.scores import (
    MAX_GEOMETRY_INSTANCES,
    EvaluationConfig,
    NotScorableError,
    Subset,
    choose_test_split,
    choose_train_test,
    compute_class_scores,
    describe_probe,
    list_caveats,
)
from manyviews.loading import (
    ViewLoader,
    check_augmentable,
    embed_instances,
    encode_instances,
    load_raw_features,
    make_eval_loader,
    make_flatten_encoder,
    stream_augmented_features,
)
from manyviews.metrics import (
    REGRESSION_PROBE_SETTINGS,
    VAL_FOLDS,
    Geometry,
    GeometryResult,
    Metrics,
    ProbeDescription,
    Representation,
    Score,
    SentimentScale,
    SubsetProbe,
    SubsetScore,
    compute_geometry,
    compute_majority_baseline,
    compute_regression_metrics,
    compute_sentiment_metrics,
    compute_weighted_f1,
    fit_linear_probe,
    fit_regression_probe,
)
from manyviews.models import MultiViewEncoder, MultiViewModel
from manyviews.training import LARGE_IMAGE_SIZE, Config, ConfigError, CustomObjects, TrainingTask
from manyviews.utils import EVAL_EPOCH, check_labels, draw_permutation, track

MAX_RAW_SIZE = 32
"""Images among several modalities are resized to this before their pixels are raw features."""
Probe = Callable[[Tensor], Tensor]
"""Maps representations (n, d) to predicted classes or regression targets (n,)."""


def evaluate_modalities(
    model: MultiViewModel,
    data: DatasetDict,
    config: Config,
    eval_config: EvaluationConfig,
    same_data: bool,
    objects: CustomObjects | None = None,
) -> dict[str, Any]:
    """Return the fields of an `EvaluationResult` for a model."""
    split, task = choose_test_split(data, eval_config), TrainingTask(config, data, torch.device("cpu"), objects)
    # missing_rate applies to the probe's training instances too, drop_modalities to test instances only.
    data = dataclasses.replace(data, splits={**data.splits, "train": task.split})
    tests, names = Subset.of(data, split), model.encoder.modalities
    dropped = eval_config.drop_modalities
    if not drop_modalities(tests.split, dropped).get_mask(names)[tests.index].any():
        raise ConfigError(f"no test instance of {data.name} has a modality left without {', '.join(dropped)}")
    fields: dict[str, Any] = {"split": split, "modalities": names, "dropped_modalities": dropped}
    try:
        parts = choose_train_test(data, tests, config, same_data)
    except NotScorableError as error:
        fields["skipped_reason"] = str(error)
    else:
        fields |= _ModelEvaluation(model, data, task, eval_config, same_data, *parts).evaluate()
        fields["tested_on_train_holdout"] = split == "train"
    return fields | _compute_geometry(model, tests, task, eval_config)


class _ModelEvaluation:
    """Scores of the representations of a model and of the baselines."""

    def __init__(
        self,
        model: MultiViewModel,
        data: DatasetDict,
        task: TrainingTask,
        eval_config: EvaluationConfig,
        same_data: bool,
        train: Subset,
        test: Subset,
    ) -> None:
        self.model, self.data, self.config, self.eval_config = model, data, task.config, eval_config
        self.task, self.same_data, self.names = task, same_data, model.encoder.modalities
        self.kept = _list_kept(self.names, eval_config)
        self.device = next(model.parameters()).device
        test = Subset(drop_modalities(test.split, eval_config.drop_modalities), test.index)
        self.num_classes = 0 if train.split.class_labels is None else len(data.class_names)
        self.scale = None if self.num_classes else infer_sentiment_scale(data, eval_config)
        self.check_probe(train.split)
        self.train_loader, self.test_loader = (self.make_loader(part.split) for part in (train, test))
        # Instances whose only modality is missing or corrupt have no representation: they are not scored.
        encoded = [
            embed_instances(model, loader, part.index)
            for loader, part in ((self.train_loader, train), (self.test_loader, test))
        ]
        exists = [mask.any(1) for _, _, mask in encoded]
        self.skipped = sum(int((~each).sum()) for each in exists)
        self.train, self.test = (
            Subset(part.split, part.index[each.cpu()]) for part, each in zip((train, test), exists, strict=True)
        )
        (self.train_h, train_z, self.train_mask), (self.test_h, test_z, self.test_mask) = (
            tuple(x[each] for x in parts) for parts, each in zip(encoded, exists, strict=True)
        )
        self.embeddings = [(train_z, self.train_mask), (test_z, self.test_mask)]
        """Embeddings (n, N, d), or predictions of a supervised run, and mask (n, N), of training and test instances."""
        self.train_labels, self.test_labels = (part.labels().to(self.device) for part in (self.train, self.test))

    def check_probe(self, split: Dataset) -> None:
        """Choose the settings of probes; raise a ConfigError for options that the data cannot use."""
        if self.eval_config.probe_augment:
            try:
                check_augmentable(split, self.names)
            except DatasetError as error:
                raise ConfigError(f"probe_augment: {error}") from error
        if self.num_classes:
            self.eval_config.check_for_classification()
            self.settings = self.eval_config.get_probe_settings(self.data, self.config.image_size or 0)
        else:
            self.settings = self.eval_config.apply_defaults(REGRESSION_PROBE_SETTINGS)

    def make_loader(self, split: Dataset) -> ViewLoader:
        return make_eval_loader(split, self.model.encoder, self.eval_config.num_workers, self.device)

    def evaluate(self) -> dict[str, Any]:
        uses_raw = self.eval_config.baselines and max(map(self.get_raw_size, self.names)) <= LARGE_IMAGE_SIZE
        summaries = self.choose_summaries() if uses_raw else {}
        raw = self.make_raw_features(summaries) if uses_raw else ([], [])
        summaries = {name: self.train.split[name].describe_summary(text) for name, text in summaries.items()}
        encoder = self.model.encoder
        encoded = [
            list(encoder.fuse(h, mask).unflatten(1, h.shape[1:]).unbind(1))
            for h, mask in ((self.train_h, self.train_mask), (self.test_h, self.test_mask))
        ]
        scores: dict[Representation, Score] = {"majority": self.score_majority()}
        if uses_raw:
            scores["raw_features"] = self.score(*map(_concatenate, raw), encoder=self.make_raw_encoder())
        if self.eval_config.baselines:
            # The split already lacks the modalities that missing_rate removes.
            config = dataclasses.replace(self.config, missing_rate=0.0)
            task = TrainingTask(config, self.data, torch.device("cpu"), self.task.objects)
            untrained = task.build_model().encoder.to(self.device)
            # A module of the user may have the trained weights already.
            if not has_same_weights(untrained, encoder):
                scores["untrained"] = self.score(*map(_concatenate, self.encode(untrained)), encoder=untrained)
        scores["trained"] = self.score(*map(_concatenate, encoded), encoder=encoder)
        if self.config.supervised and self.same_data:  # other data may have other labels
            scores["supervised_head"] = self.score_supervised_head()
        elif not self.config.supervised and len(self.names) > 1:
            scores["mean_embedding"] = self.score(*(self.average(z, mask) for z, mask in self.embeddings))
        fusion_notes: list[str] = []
        if len(self.kept) > 1:
            fusion, count = self.choose_fusion()
            scores["fused_prediction"] = self.score_fusion(fusion)
            chosen = describe_fusion(fusion, self.names)
            fusion_notes.append(f"fused prediction, chosen on {count:,} instances that are not tested: {chosen}")
        probe = describe_probe(self.eval_config, self.settings)
        if not self.num_classes:
            probe = ProbeDescription("l1", **self.settings, count=self.eval_config.num_regression_probes)
        has_subsets = self.eval_config.modality_subsets and len(self.names) > 1
        return {
            "caveats": (*list_caveats(self.data, self.train, self.test), *self.list_notes(summaries), *fusion_notes),
            "summaries": summaries,
            "train_instances": len(self.train.index),
            "test_instances": len(self.test.index),
            "sentiment_scale": self.scale,
            "probe": probe,
            "scores": scores,
            "subsets": self.score_subsets(raw, encoded) if has_subsets else (),
        }

    def list_notes(self, summaries: Mapping[str, str]) -> list[str]:
        names = ", ".join(self.eval_config.drop_modalities)
        without = f" without {names}" if names else ""
        notes = [f"{self.skipped:,} instances have no readable modality{without}: not scored"] if self.skipped else []
        if summaries:
            count = len(self.split_validation()[1].index)
            chosen = ", ".join(f"{name} ({summary})" for name, summary in summaries.items())
            notes.append(f"raw features of sequences, chosen on {count:,} instances that are not tested: {chosen}")
        return notes

    def split_validation(self) -> tuple[Subset, Subset]:
        """Return instances to fit raw-feature probes to and others to compare them on; none of them is tested."""
        valid = self.data.splits.get("valid")
        tested = choose_test_split(self.data, self.eval_config)
        if valid is not None and valid.labels is not None and tested != "valid":
            return self.train, Subset(valid, torch.arange(len(valid)))
        order = draw_permutation(len(self.train.index), 0, EVAL_EPOCH)
        count = len(order) // VAL_FOLDS
        index = self.train.index[order]
        return Subset(self.train.split, index[count:]), Subset(self.train.split, index[:count])

    def choose_summaries(self) -> dict[str, str]:
        """For each modality with several kinds of raw features, choose those on which a probe scores best.

        They are the simplest ones if too few instances have the modality.
        """
        chosen = {}
        for name in self.names:
            if summaries := self.train.split[name].summaries:
                train, valid = (_select_with_modality(part, name) for part in self.split_validation())
                enough = len(train.index) >= 2 * VAL_FOLDS and len(valid.index)
                score = partial(self.validate, name, train, valid)
                chosen[name] = max(summaries, key=score) if enough else summaries[0]
        return chosen

    def validate(self, name: str, train: Subset, valid: Subset, summary: str) -> float:
        """Return the accuracy, or minus the mean absolute error, of a probe on the raw features of one modality."""
        reference = train.split, train.index
        h, queries = (
            load_raw_features(name, (part.split, part.index), reference, summary=summary).to(self.device)
            for part in (train, valid)
        )
        labels = valid.labels().to(self.device)
        predictions = self.fit_probes(h, train.labels().to(self.device))[0](queries)
        if self.num_classes:
            return (predictions == labels).double().mean().item()
        return -(predictions - labels).abs().mean().item()

    def encode(self, encoder: MultiViewEncoder) -> tuple[list[Tensor], list[Tensor]]:
        """Encode training and test instances with an untrained encoder, each modality (n, d).

        Missing ones are the mean representation of the training instances.
        """
        pairs = ((self.train_loader, self.train), (self.test_loader, self.test))
        train, test = (encode_instances(encoder, loader, part.index) for loader, part in pairs)
        encoder.fit_mean_representation(*train)
        fused = [encoder.fuse(h, mask).unflatten(1, h.shape[1:]) for h, mask in (train, test)]
        return list(fused[0].unbind(1)), list(fused[1].unbind(1))

    def average(self, z: Tensor, mask: Tensor) -> Tensor:
        """Return mean embeddings; instances without a modality get the mean of all training instances."""
        train_z, train_mask = self.embeddings[0]
        overall = average_embeddings(train_z, train_mask)[train_mask.any(1)].mean(0)
        return torch.where(mask.any(1, keepdim=True), average_embeddings(z, mask), overall)

    def get_raw_size(self, name: str) -> int:
        """Return the size of images whose pixels are raw features: smaller among several modalities, to save time."""
        size = self.task.spec.get_size(name)
        return size if len(self.names) == 1 else min(size, MAX_RAW_SIZE)

    def make_raw_encoder(self) -> MultiViewEncoder | None:
        """Return an encoder of the raw features of new crops, if probes see them: it flattens images."""
        if not self.eval_config.probe_augment:
            return None
        return make_flatten_encoder(self.names[0], self.get_raw_size(self.names[0]))

    def make_raw_features(self, summaries: Mapping[str, str]) -> tuple[list[Tensor], list[Tensor]]:
        """Make features (n, d) of each modality without an encoder, of the training and of the test instances."""
        train, test = (
            [
                load_raw_features(
                    name,
                    (part.split, part.index),
                    (self.train.split, self.train.index),
                    size=self.get_raw_size(name),
                    summary=summaries.get(name, ""),
                    num_workers=self.eval_config.num_workers,
                ).to(self.device)
                for name in self.names
            ]
            for part in (self.train, self.test)
        )
        return train, test

    def score(self, h: Tensor, queries: Tensor, *, encoder: MultiViewEncoder | None = None) -> Score:
        """Score representations (n, d); probes of images may see new crops that `encoder` encodes."""
        if not self.num_classes:
            return Score(probes=tuple(self.compute_metrics(probe(queries)) for probe in self.fit_probes(h)))
        labels = check_labels("training representations", h, self.train_labels, self.num_classes)
        test_labels = check_labels("test representations", queries, self.test_labels, self.num_classes)
        augment = None
        if self.eval_config.probe_augment and encoder is not None:
            train = self.train.split.select(self.train.index)
            augment = stream_augmented_features(encoder, train, num_workers=self.eval_config.num_workers)
        return compute_class_scores(
            h, labels, queries, test_labels, self.data, self.eval_config, self.settings, augment
        )

    def fit_probes(self, h: Tensor, labels: Tensor | None = None) -> list[Probe]:
        """Fit one probe (classes) or several (regression targets) to representations (n, d) of training instances."""
        labels = self.train_labels if labels is None else labels
        if self.num_classes:
            predict = self.fit_predictor(h, labels)
            return [lambda queries: predict(queries).argmax(1)]
        return [self.fit_predictor(h, labels, seed) for seed in range(self.eval_config.num_regression_probes)]

    def fit_predictor(self, h: Tensor, labels: Tensor, seed: int = 0) -> Predictor:
        """Fit a probe that predicts the log-probabilities of classes (n, C), or regression targets (n,)."""
        if not self.num_classes:
            return fit_regression_probe(h, labels, seed=seed, **self.settings).predict
        is_sgd = self.eval_config.probe_solver == "sgd"
        options: dict[str, Any] = {"solver": "sgd", **self.settings} if is_sgd else {}
        probe = fit_linear_probe(h, labels, num_classes=self.num_classes, **options)
        return lambda queries: probe.logits(queries).log_softmax(1)

    def choose_fusion(self) -> tuple[Fusion, int]:
        """Choose the fusion of the modalities that are not dropped, and return it with the number of instances."""
        train, valid = (
            self.encode_part(Subset(drop_modalities(part.split, dropped), part.index))
            for part, dropped in zip(self.split_validation(), ((), self.eval_config.drop_modalities), strict=True)
        )
        return choose_fusion(self.fit_predictor, train, valid, self.kept), len(valid.labels)

    def encode_part(self, part: Subset) -> EncodedInstances:
        """Encode the instances that have a modality."""
        h, mask = encode_instances(self.model.encoder, self.make_loader(part.split), part.index)
        h = self.model.encoder.fuse(h, mask).unflatten(1, h.shape[1:])
        return EncodedInstances(h, mask, part.labels().to(h.device)).select(mask.any(1))

    def score_fusion(self, fusion: Fusion) -> Score:
        """Score the predictions of a fusion; probes of regression targets have one seed each."""
        train, test = (
            EncodedInstances(self.model.encoder.fuse(h, mask).unflatten(1, h.shape[1:]), mask, labels)
            for h, mask, labels in (
                (self.train_h, self.train_mask, self.train_labels), (self.test_h, self.test_mask, self.test_labels)
            )
        )  # fmt: skip
        seeds = range(1 if self.num_classes else self.eval_config.num_regression_probes)
        preds = [next(predict_fusions(partial(self.fit_predictor, seed=seed), train, test, [fusion])) for seed in seeds]
        if self.num_classes:
            return self.score_predictions(preds[0].argmax(1))
        return Score(probes=tuple(self.compute_metrics(pred) for pred in preds))

    def compute_metrics(self, preds: Tensor, mask: Tensor | None = None) -> Metrics:
        """Compute the metrics of predictions (n,) for the test instances, or for those in `mask`."""
        labels = self.test_labels
        if mask is not None:
            preds, labels = preds[mask], labels[mask]
        if self.num_classes:
            return {"accuracy": int((preds == labels).sum()) / len(preds), "F1": compute_weighted_f1(preds, labels)}
        if self.scale is None:
            return compute_regression_metrics(preds, labels)
        return compute_sentiment_metrics(preds, labels, self.scale)

    def average_metrics(self, probes: Sequence[Probe], queries: Tensor, mask: Tensor) -> Metrics:
        metrics = [self.compute_metrics(probe(queries), mask) for probe in probes]
        return {name: statistics.fmean(one[name] for one in metrics) for name in metrics[0]}

    def score_majority(self) -> Score:
        """Score the best constant prediction."""
        if self.num_classes:
            return self.score_predictions(self.train_labels.mode().values.expand_as(self.test_labels))
        if self.scale is None:
            return self.score_predictions(self.train_labels.median().expand_as(self.test_labels))
        return Score(probes=(compute_majority_baseline(self.train_labels, self.test_labels, self.scale),))

    def score_supervised_head(self) -> Score:
        """Score the linear layer that was fitted by supervised training."""
        outputs = self.embeddings[1][0]
        return self.score_predictions(outputs.argmax(1) if self.num_classes else outputs[:, 0])

    def score_predictions(self, preds: Tensor) -> Score:
        metrics = self.compute_metrics(preds)
        return Score(linear=metrics["accuracy"]) if self.num_classes else Score(probes=(metrics,))

    def score_subsets(self, raw: Sequence[list[Tensor]], encoded: Sequence[list[Tensor]]) -> tuple[SubsetScore, ...]:
        """Score every subset of the modalities on the test instances that have at least one modality of it."""
        imputation, mean = self.fit_probes(_concatenate(encoded[0])), self.model.encoder.mean_representation
        shared = [] if self.config.supervised else self.fit_probes(self.average(*self.embeddings[0]))
        result = []
        subsets = [[self.kept[i] for i in subset] for subset in list_modality_subsets(len(self.kept))]
        for subset in track(subsets, "subsets of modalities", len(subsets)):
            mask = self.test_mask[:, subset].any(1)
            if not mask.any():
                continue
            imputed = _concatenate([h if i in subset else mean[i].expand_as(h) for i, h in enumerate(encoded[1])])
            scores: dict[SubsetProbe, Metrics] = {}
            if raw[0]:
                scores["raw"] = self.score_subset(raw, subset, mask)
            scores["per_subset"] = self.score_subset(encoded, subset, mask)
            scores["mean_imputed"] = self.average_metrics(imputation, imputed, mask)
            if shared:
                z, z_mask = (part[:, subset] for part in self.embeddings[1])
                scores["shared_space"] = self.average_metrics(shared, self.average(z, z_mask), mask)
            fused = self.average_metrics(imputation, _concatenate(encoded[1]), mask)
            result.append(SubsetScore(tuple(self.names[i] for i in subset), int(mask.sum()), scores, fused))
        return tuple(result)

    def score_subset(self, features: Sequence[list[Tensor]], subset: Sequence[int], mask: Tensor) -> Metrics:
        h, queries = (_concatenate([part[i] for i in subset]) for part in features)
        return self.average_metrics(self.fit_probes(h), queries, mask)


def has_same_weights(one: nn.Module, other: nn.Module) -> bool:
    """Return whether the parameters of two modules are equal."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.equal(first, second) for first, second in pairs)


def _select_with_modality(part: Subset, name: str) -> Subset:
    return Subset(part.split, part.index[part.split[name].get_mask()[part.index]])


def _list_kept(names: Sequence[str], eval_config: EvaluationConfig) -> list[int]:
    """List the indices of the modalities that are not dropped."""
    return [i for i, name in enumerate(names) if name not in eval_config.drop_modalities]


def drop_modalities(split: Dataset, names: Sequence[str]) -> Dataset:
    """Return the split with some modalities missing in all instances."""
    return split.drop_modalities({name: torch.ones(len(split), dtype=torch.bool) for name in names})


def infer_sentiment_scale(data: DatasetDict, eval_config: EvaluationConfig) -> SentimentScale | None:
    """Return the sentiment scale of the labels; None if they do not have both signs or exceed every scale."""
    if eval_config.sentiment_scale != "auto":
        return None if eval_config.sentiment_scale == "none" else eval_config.sentiment_scale
    labels = [split.labels for split in data.splits.values() if split.labels is not None]
    low, high = (min(x.min().item() for x in labels), max(x.max().item() for x in labels))
    if not low < 0 < high:
        return None
    return "sims" if max(-low, high) <= 1 else "mosi" if max(-low, high) <= 3 else None


def _compute_geometry(
    model: MultiViewModel, tests: Subset, task: TrainingTask, eval_config: EvaluationConfig
) -> dict[str, Any]:
    """Compute geometry of views made as in training, and retrieval between modalities; neither for one instance.

    A supervised run has no embeddings, so no retrieval.
    """
    config, device = task.config, next(model.parameters()).device
    index = tests.index[draw_permutation(len(tests.index), config.seed, EVAL_EPOCH)[:MAX_GEOMETRY_INSTANCES]]
    workers, seed = eval_config.num_workers, config.seed
    assert model.encoder.config is not None
    dataset = model.encoder.config.prepare_dataset(tests.split)
    loader = ViewLoader(
        dataset, task.spec, task.transforms, seed=seed, num_workers=workers, device=device, keep_workers=False
    )
    h, z, mask = embed_instances(model, loader, index)
    names = [name for name in model.encoder.modalities if name not in eval_config.drop_modalities]
    views = {name: task.spec.list_modality_views(name) for name in names}
    kept = [view for numbers in views.values() for view in numbers]
    valid = mask[:, kept].any(1)
    if int(valid.sum()) < 2:
        return {}
    kinds = [h] if config.supervised else [h, z]
    if len(names) == 1 and bool(mask[valid].all()):
        overall = [(Geometry(**compute_geometry(x[valid])),) for x in kinds]
        return {"geometry": GeometryResult(int(valid.sum()), config.num_views, *overall)}
    groups = [compute_modality_geometry(x[valid], mask[valid], views) for x in kinds]
    result: dict[str, Any] = {"geometry": GeometryResult(int(valid.sum()), len(kept), *groups)}
    if not config.supervised and len(names) > 1:
        _, z, mask = embed_instances(model, make_eval_loader(tests.split, model.encoder, workers, device), index)
        positions = _list_kept(model.encoder.modalities, eval_config)
        result["retrieval"] = compute_cross_modal_retrieval(z[:, positions], mask[:, positions], names)
    return result


def _concatenate(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(parts), 1)
