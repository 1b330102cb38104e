"""What a run on modalities is worth: together, in every subset, some missing, and how well each finds the others.

Labels that are classes are told by a linear probe, quantities by linear layers fitted to the absolute error.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from manyviews.data import Dataset, Split
from manyviews.evaluation import linear_probe, linear_regression_probe, majority_baseline, sentiment_metrics
from manyviews.evaluation.knn import check_labelled
from manyviews.evaluation.modalities import (
    SUMMARIES,
    count_flattened_steps,
    embedded,
    geometry_between,
    mean_embedding,
    raw_features,
    represented,
    retrieval_between,
    set_centre,
    subsets,
)
from manyviews.evaluation.probe import HELD_OUT, QUANTITIES
from manyviews.evaluation.progress import tracked
from manyviews.evaluation.represent import NO_EPOCH
from manyviews.evaluation.sentiment import Scale, quantity_metrics, weighted_f1
from manyviews.models import ModalityEmbedder, ModalityEncoder
from manyviews.training.config import Config, ConfigError
from manyviews.training.modalities import learned_from
from manyviews.training.scores import (
    MOST_INSTANCES,
    EvaluationConfig,
    Part,
    class_scores,
    notes_on,
    parts_of,
    probe_told,
    tested_split,
)
from manyviews.training.setup import built
from manyviews.views import ModalityBatches
from manyviews.views.keyed import permutation

Metrics = dict[str, float]
Layer = Callable[[Tensor], Tensor]
"""From representations (n, d) to classes or quantities (n,)."""


def modalities_evaluated(
    model: ModalityEmbedder, data: Dataset, config: Config, how: EvaluationConfig, own: bool
) -> dict[str, Any]:
    split = tested_split(data, how)
    # What training was to lack, the probe lacks too; what is dropped, only those who are tested.
    train = learned_from(data, config)
    data = dataclasses.replace(data, splits={**data.splits, "train": train})
    tests = Part.of(data, split)
    parts = parts_of(data, tests, config, own)
    tested = ModalityBatches(without(tests.split, how.drop), config.modalities).present(tests.index)
    if not tested.any():
        raise ConfigError(f"no test instance of {data.name} has a modality left without {', '.join(how.drop)}")
    found: dict[str, Any] = {"split": split, "modalities": list(config.modalities), "dropped": list(how.drop)}
    if isinstance(parts, str):
        found |= {"scores": None, "why": parts}
    else:
        found |= _Assessment(model, data, config, how, own, *parts).found()
        found["held_out"] = split == "train"
    return found | _between(model, tests, config, how)


class _Assessment:
    """Scores of one model's representations, beside others."""

    def __init__(
        self,
        model: ModalityEmbedder,
        data: Dataset,
        config: Config,
        how: EvaluationConfig,
        own: bool,
        train: Part,
        test: Part,
    ) -> None:
        self.model, self.data, self.config, self.how, self.own, self.train = model, data, config, how, own, train
        self.test = Part(without(test.split, how.drop), test.index)
        self.names = config.modalities
        self.left = [number for number, name in enumerate(self.names) if name not in how.drop]
        device = next(model.parameters()).device
        self.classes = 0 if train.split.classes is None else len(data.classes)
        self.labels, self.answers = train.labels().to(device), test.labels().to(device)
        self.scale = None if self.classes else scale_of(data, how)
        if self.classes:
            how.check_of_classes()
        self.settings = how.settings(data, 0) if self.classes else how.instead_of(QUANTITIES)
        self.known, self.asked = (ModalityBatches(part.split, self.names) for part in (train, self.test))

    def found(self) -> dict[str, Any]:
        summaries = self.choose_summaries() if self.how.baselines else {}
        raw = self.raw(summaries) if self.how.baselines else ([], [])
        for name in [name for name, summary in summaries.items() if summary == "flattened"]:
            summaries[name] = f"flattened at {count_flattened_steps(self.train.split, name)} steps"
        own = self.encoded(self.model.encoder)
        scores: dict[str, Any] = {"majority": self.majority()}
        if self.how.baselines:
            scores["raw features"] = self.scores(*map(_joined, raw))
            # What is missing is missing in the data already.
            whole = dataclasses.replace(self.config, missing=0.0)
            untrained = built(whole, self.data)[0].encoder.to(self.labels.device)
            assert isinstance(untrained, ModalityEncoder)
            set_centre(untrained, self.known, self.train.index)
            scores["untrained encoder"] = self.scores(*map(_joined, self.encoded(untrained)))
        scores["trained encoder"] = self.scores(*map(_joined, own))
        if not self.config.supervised:
            scores["mean embedding"] = self.scores(*(self.common(*z) for z in self.embeddings))
        elif self.own:  # other data may have other labels
            scores["its own layer"] = self.own_layer()
        return {
            "notes": [*notes_on(self.data, self.train, self.test), *self.notes(summaries)],
            "raw_features": summaries,
            "train_instances": len(self.train.index),
            "test_instances": len(self.test.index),
            "labels": "classes" if self.classes else "quantities",
            "scale": self.scale,
            "probe": probe_told(self.how, self.settings)
            if self.classes
            else {"method": "mae", "heads": self.how.heads, **self.settings},
            "scores": scores,
            "subsets": self.subsets(raw, own) if self.how.subsets else {},
        }

    def notes(self, summaries: Mapping[str, str]) -> list[str]:
        none = int((~self.asked.present(self.test.index).any(1)).sum())
        dropped = f" once {', '.join(self.how.drop)} is dropped" if self.how.drop else ""
        notes = [f"{none} test instances have no modality left{dropped}: they get the prior"] if none else []
        if summaries:
            count = len(self.validation_parts()[1].index)
            each = ", ".join(f"{name} ({summary})" for name, summary in summaries.items())
            notes.append(f"raw features of sequences, chosen on {count:,} instances that are not tested: {each}")
        return notes

    def validation_parts(self) -> tuple[Part, Part]:
        """Instances to fit raw features to and others to choose among them on, none of them tested."""
        valid = self.data.splits.get("valid")
        if valid is not None and valid.labels is not None and tested_split(self.data, self.how) != "valid":
            return self.train, Part(valid, torch.arange(len(valid)))
        order = permutation(len(self.train.index), 0, NO_EPOCH)
        count = len(order) // HELD_OUT
        index = self.train.index[order]
        return Part(self.train.split, index[count:]), Part(self.train.split, index[:count])

    def choose_summaries(self) -> dict[str, str]:
        """For each sequence the summary over its steps that a probe does best with; the mean if too few have it."""
        chosen = {}
        for name in self.names:
            rows = self.train.split.modalities[name]
            if isinstance(rows, Tensor) and rows.dim() == 3:
                known, asked = (_keep_present(part, name) for part in self.validation_parts())
                enough = len(known.index) >= 2 * HELD_OUT and len(asked.index)
                chosen[name] = max(SUMMARIES, key=partial(self.validate, name, known, asked)) if enough else "mean"
        return chosen

    def validate(self, name: str, known: Part, asked: Part, summary: str) -> float:
        """The accuracy, or minus the mean absolute error, of a probe on one modality's raw features."""
        fitted = known.split.taken(known.index)
        h, queries = (
            raw_features(part.split.taken(part.index), [name], fitted, {name: summary})[0].to(self.labels.device)
            for part in (known, asked)
        )
        answers = asked.labels().to(self.labels.device)
        predictions = self.layers(h, known.labels().to(self.labels.device))[0](queries)
        if self.classes:
            return (predictions == answers).double().mean().item()
        return -(predictions - answers).abs().mean().item()

    def encoded(self, encoder: ModalityEncoder) -> tuple[list[Tensor], list[Tensor]]:
        """Representations of each modality, of training and test instances; the mean for what is missing."""
        both = []
        for rows, part in ((self.known, self.train), (self.asked, self.test)):
            h, present = represented(encoder, rows, part.index)
            both.append(list(encoder.fused(h, present).unflatten(1, h.shape[1:]).unbind(1)))
        return both[0], both[1]

    @cached_property
    def embeddings(self) -> list[tuple[Tensor, Tensor]]:
        """Embeddings of training and test instances, and which are there."""
        pairs = ((self.known, self.train), (self.asked, self.test))
        return [embedded(self.model, rows, part.index)[1:] for rows, part in pairs]

    def common(self, z: Tensor, present: Tensor) -> Tensor:
        """Mean embeddings; of an instance that has none, that of all training instances."""
        known, there = self.embeddings[0]
        everyone = mean_embedding(known, there)[there.any(1)].mean(0)
        return torch.where(present.any(1, keepdim=True), mean_embedding(z, present), everyone)

    def raw(self, summaries: Mapping[str, str]) -> tuple[list[Tensor], list[Tensor]]:
        fitted = self.train.split.taken(self.train.index)
        known, asked = (
            [
                rows[part.index].to(self.labels.device)
                for rows in raw_features(part.split, self.names, fitted, summaries)
            ]
            for part in (self.train, self.test)
        )
        return known, asked

    def scores(self, h: Tensor, queries: Tensor) -> dict[str, Any]:
        if not self.classes:
            return {"heads": [self.judged(layer(queries)) for layer in self.layers(h)]}
        labels = check_labelled("training representations", h, self.labels, self.classes)
        answers = check_labelled("test representations", queries, self.answers, self.classes)
        return class_scores(h, labels, queries, answers, self.data, self.how, self.settings)

    def layers(self, h: Tensor, labels: Tensor | None = None) -> list[Layer]:
        """Fitted to representations (n, d) of training instances: a probe of classes, or some layers of quantities."""
        labels = self.labels if labels is None else labels
        if self.classes:
            options: dict[str, Any] = {"method": "sgd", **self.settings} if self.how.probe == "sgd" else {}
            probe = linear_probe(h, labels, classes=self.classes, **options)
            return [lambda queries: probe.logits(queries).argmax(1)]
        seeds = range(self.how.heads)
        return [linear_regression_probe(h, labels, seed=seed, **self.settings).predict for seed in seeds]

    def judged(self, guess: Tensor, among: Tensor | None = None) -> Metrics:
        """The metrics of classes or quantities that are said of the test instances, or of some of them."""
        answers = self.answers
        if among is not None:
            guess, answers = guess[among], answers[among]
        if self.classes:
            return {"accuracy": int((guess == answers).sum()) / len(guess), "F1": weighted_f1(guess, answers)}
        if self.scale is None:
            return quantity_metrics(guess, answers)
        return sentiment_metrics(guess, answers, self.scale)

    def majority(self) -> dict[str, Any]:
        """Of one who knows the training labels alone."""
        if self.classes:
            return {"linear": self.judged(self.labels.mode().values.expand_as(self.answers))["accuracy"]}
        if self.scale is None:
            return {"heads": [self.judged(self.labels.median().expand_as(self.answers))]}
        return {"heads": [majority_baseline(self.labels, self.answers, self.scale)]}

    def own_layer(self) -> dict[str, Any]:
        """Of the layer that supervised training has fitted itself."""
        _, predictions, _ = embedded(self.model, self.asked, self.test.index)
        if self.classes:
            return {"linear": self.judged(predictions.argmax(1))["accuracy"]}
        return {"heads": [self.judged(predictions[:, 0])]}

    def subsets(self, raw: Sequence[list[Tensor]], own: Sequence[list[Tensor]]) -> dict[str, dict[str, Any]]:
        """Of every subset: raw features and representations with a layer of their own, then one layer for all subsets.

        "filled" is fitted to the representations of all modalities; the mean stands for those that are not in the
        subset. "common" is fitted to the mean embedding, which needs no others. Each is asked of the instances that
        have something of the subset.
        """
        filled, centre = self.layers(_joined(own[0])), self.model.encoder.centre
        common = [] if self.config.supervised else self.layers(self.common(*self.embeddings[0]))
        present = self.asked.present(self.test.index).to(self.answers.device)
        found: dict[str, dict[str, Any]] = {}
        chosen_ones = [[self.left[place] for place in places] for places in subsets(len(self.left))]
        for chosen in tracked(chosen_ones, "subsets of modalities", len(chosen_ones)):
            among = present[:, chosen].any(1)
            if not among.any():
                continue
            alone = [part if number in chosen else centre[number].expand_as(part) for number, part in enumerate(own[1])]
            scores = {"raw": self.of_subset(raw, chosen, among)} if self.how.baselines else {}
            scores |= {
                "own": self.of_subset(own, chosen, among),
                "filled": _mean([self.judged(layer(_joined(alone)), among) for layer in filled]),
            }
            if common:
                z, there = (part[:, chosen] for part in self.embeddings[1])
                scores["common"] = _mean([self.judged(layer(self.common(z, there)), among) for layer in common])
            name = " + ".join(self.names[number] for number in chosen)
            # All modalities, on the instances of the subset: what its scores can be compared with.
            fused = _mean([self.judged(layer(_joined(own[1])), among) for layer in filled])
            found[name] = {"instances": int(among.sum()), "scores": scores, "fused": fused}
        return found

    def of_subset(self, parts: Sequence[list[Tensor]], chosen: Sequence[int], among: Tensor) -> Metrics:
        known, asked = (_joined([part[number] for number in chosen]) for part in parts)
        return _mean([self.judged(layer(asked), among) for layer in self.layers(known)])


def _keep_present(part: Part, name: str) -> Part:
    """The instances of a part that have a modality."""
    present = part.split.present
    return Part(part.split, part.index[present[name][part.index]]) if name in present else part


def without(split: Split, names: Sequence[str]) -> Split:
    """The split with some modalities missing in all instances."""
    return split.lacking({name: torch.ones(len(split), dtype=torch.bool) for name in names})


def scale_of(data: Dataset, how: EvaluationConfig) -> Scale | None:
    """The scale of sentiment that labels lie on; None if they have no sign, or lie on none."""
    if how.sentiment != "auto":
        return None if how.sentiment == "none" else how.sentiment
    labels = [part.labels for part in data.splits.values() if part.labels is not None]
    low, high = (min(one.min().item() for one in labels), max(one.max().item() for one in labels))
    if not low < 0 < high:
        return None
    return "sims" if max(-low, high) <= 1 else "mosi" if max(-low, high) <= 3 else None


def _between(model: ModalityEmbedder, tests: Part, config: Config, how: EvaluationConfig) -> dict[str, Any]:
    """Retrieval and geometry; none of a single instance, and no retrieval where there is no common space."""
    index = tests.index[permutation(len(tests.index), config.seed, NO_EPOCH)[:MOST_INSTANCES]]
    h, z, present = embedded(model, ModalityBatches(tests.split, config.modalities), index)
    left = [number for number, name in enumerate(config.modalities) if name not in how.drop]
    names, h, present = [config.modalities[number] for number in left], h[:, left], present[:, left]
    some = present.any(1)
    if int(some.sum()) < 2:
        return {"retrieval": {}, "geometry": None}
    geometry = {"instances": int(some.sum()), "views": len(names), "h": geometry_between(h[some], present[some], names)}
    if config.supervised:
        return {"retrieval": {}, "geometry": geometry}
    geometry["z"] = geometry_between(z[some][:, left], present[some], names)
    return {"retrieval": retrieval_between(z[:, left], present, names), "geometry": geometry}


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(parts), 1)


def _mean(found: Sequence[Metrics]) -> Metrics:
    return {name: statistics.fmean(one[name] for one in found) for name in found[0]}
