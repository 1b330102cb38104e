"""What a run on modalities is worth: together, in every subset, some missing, and how well each finds the others.

Labels that are classes are told by a linear probe, quantities by linear layers fitted to the absolute error.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from manyviews.data import Dataset, Split
from manyviews.evaluation import linear_probe, linear_regression_probe, majority_baseline, sentiment_metrics
from manyviews.evaluation.knn import check_labelled
from manyviews.evaluation.modalities import (
    embedded,
    geometry_between,
    mean_embedding,
    raw_features,
    represented,
    retrieval_between,
    set_centre,
    subsets,
)
from manyviews.evaluation.progress import tracked
from manyviews.evaluation.represent import EPOCH
from manyviews.evaluation.sentiment import Scale, quantity_metrics, weighted_f1
from manyviews.models import ModalityEmbedder, ModalityEncoder
from manyviews.training.config import Config
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
Judge = Callable[[Tensor], Metrics]
"""From representations (n, d) of the test instances to the metrics of what a fitted layer says of them."""


def modalities_evaluated(
    model: ModalityEmbedder, data: Dataset, config: Config, how: EvaluationConfig
) -> dict[str, Any]:
    split = tested_split(data, how)
    # What training was to lack, the probe lacks too; what is dropped, only those who are tested.
    train = learned_from(data, config)
    data = dataclasses.replace(data, splits={**data.splits, "train": train})
    tests = Part.of(data, split, None)
    parts = parts_of(data, tests, config)
    found: dict[str, Any] = {"split": split, "modalities": list(config.modalities), "dropped": list(how.drop)}
    if isinstance(parts, str):
        found |= {"scores": None, "why": parts}
    else:
        found |= _Assessment(model, data, config, how, *parts).found()
        found["held_out"] = split == "train"
        if split == "train" and config.supervised and config.held_out < len(parts[1].index):
            found["notes"].append("training has seen the labels of some of these instances: hold some out")
    return found | _between(model, tests, config, how)


class _Assessment:
    """Scores of one model's representations, beside others."""

    def __init__(
        self, model: ModalityEmbedder, data: Dataset, config: Config, how: EvaluationConfig, train: Part, test: Part
    ) -> None:
        self.model, self.data, self.config, self.how, self.train = model, data, config, how, train
        self.test = Part(without(test.split, how.drop), test.index)
        self.names = config.modalities
        self.left = [number for number, name in enumerate(self.names) if name not in how.drop]
        device = next(model.parameters()).device
        self.classes = 0 if train.split.classes is None else len(data.classes)
        self.labels, self.answers = train.labels().to(device), test.labels().to(device)
        self.scale = None if self.classes else scale_of(train.labels())
        self.known, self.asked = (ModalityBatches(part.split, self.names) for part in (train, self.test))

    def found(self) -> dict[str, Any]:
        raw = self.raw()
        own = self.encoded(self.model.encoder)
        settings = self.how.settings(self.data, 0)
        scores: dict[str, Any] = {"majority": self.majority()}
        if self.how.baselines:
            scores["raw features"] = self.scores(*map(_joined, raw))
            # What is missing is missing in the data already.
            whole = dataclasses.replace(self.config, missing=0.0)
            untrained = built(whole, self.data)[0].encoder.to(self.labels.device)
            assert isinstance(untrained, ModalityEncoder)
            set_centre(untrained, self.known)
            scores["untrained encoder"] = self.scores(*map(_joined, self.encoded(untrained)))
        scores["trained encoder"] = self.scores(*map(_joined, own))
        if self.config.supervised:
            scores["its own layer"] = self.own_layer()
        else:
            scores["mean embedding"] = self.scores(*(mean_embedding(*z) for z in self.embeddings))
        return {
            "notes": [*notes_on(self.data, self.train, self.test), *self.notes()],
            "train_instances": len(self.train.index),
            "test_instances": len(self.test.index),
            "labels": "classes" if self.classes else "quantities",
            "scale": self.scale,
            "probe": probe_told(self.how, settings) if self.classes else {"method": "mae", "heads": self.how.heads},
            "scores": scores,
            "subsets": self.subsets(raw, own) if self.how.subsets else {},
        }

    def notes(self) -> list[str]:
        none = int((~self.asked.present(self.test.index).any(1)).sum())
        dropped = f" once {', '.join(self.how.drop)} is dropped" if self.how.drop else ""
        return [f"{none} test instances have no modality left{dropped}: they get the prior"] if none else []

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

    def raw(self) -> tuple[list[Tensor], list[Tensor]]:
        known, asked = (
            [rows[part.index].to(self.labels.device) for rows in raw_features(part.split, self.names, self.train.split)]
            for part in (self.train, self.test)
        )
        return known, asked

    def scores(self, h: Tensor, queries: Tensor) -> dict[str, Any]:
        if not self.classes:
            return {"heads": [judge(queries) for judge in self.layers(h)]}
        labels = check_labelled("training representations", h, self.labels, self.classes)
        answers = check_labelled("test representations", queries, self.answers, self.classes)
        settings = self.how.settings(self.data, 0)
        return class_scores(h, labels, queries, answers, self.classes, self.how, settings)

    def layers(self, h: Tensor) -> list[Judge]:
        """Fitted to representations (n, d) of training instances: a probe of classes, or some layers of quantities."""
        if self.classes:
            probe = linear_probe(h, self.labels, classes=self.classes)
            return [lambda queries: self.of_classes(probe.logits(queries).argmax(1))]
        probes = [linear_regression_probe(h, self.labels, seed=seed) for seed in range(self.how.heads)]
        return [lambda queries, one=one: self.of_quantities(one.predict(queries)) for one in probes]  # type: ignore[misc]

    def of_classes(self, guess: Tensor) -> Metrics:
        return {"accuracy": int((guess == self.answers).sum()) / len(guess), "F1": weighted_f1(guess, self.answers)}

    def of_quantities(self, guess: Tensor) -> Metrics:
        if self.scale is None:
            return quantity_metrics(guess, self.answers)
        return sentiment_metrics(guess, self.answers, self.scale)

    def majority(self) -> dict[str, Any]:
        """Of one who knows the training labels alone."""
        if self.classes:
            return {"linear": self.of_classes(self.labels.mode().values.expand_as(self.answers))["accuracy"]}
        if self.scale is None:
            return {"heads": [self.of_quantities(self.labels.median().expand_as(self.answers))]}
        return {"heads": [majority_baseline(self.labels, self.answers, self.scale)]}

    def own_layer(self) -> dict[str, Any]:
        """Of the layer that supervised training has fitted itself."""
        _, predictions, _ = embedded(self.model, self.asked, self.test.index)
        if self.classes:
            return {"linear": self.of_classes(predictions.argmax(1))["accuracy"]}
        return {"heads": [self.of_quantities(predictions[:, 0])]}

    def subsets(self, raw: Sequence[list[Tensor]], own: Sequence[list[Tensor]]) -> dict[str, dict[str, Metrics]]:
        """Of every subset: raw features and representations with a layer of their own, then one layer for all subsets.

        "filled" is fitted to the representations of all modalities; the mean stands for those that are not in the
        subset. "common" is fitted to the mean embedding, which needs no others.
        """
        filled, centre = self.layers(_joined(own[0])), self.model.encoder.centre
        common = [] if self.config.supervised else self.layers(mean_embedding(*self.embeddings[0]))
        found: dict[str, dict[str, Metrics]] = {}
        chosen_ones = [[self.left[place] for place in places] for places in subsets(len(self.left))]
        for chosen in tracked(chosen_ones, "subsets of modalities", len(chosen_ones)):
            alone = [part if number in chosen else centre[number].expand_as(part) for number, part in enumerate(own[1])]
            found[" + ".join(self.names[number] for number in chosen)] = one = {
                "raw": self.of_subset(raw, chosen),
                "own": self.of_subset(own, chosen),
                "filled": _mean([judge(_joined(alone)) for judge in filled]),
            }
            if common:
                z, present = (part[:, chosen] for part in self.embeddings[1])
                one["common"] = _mean([judge(mean_embedding(z, present)) for judge in common])
        return found

    def of_subset(self, parts: Sequence[list[Tensor]], chosen: Sequence[int]) -> Metrics:
        known, asked = (_joined([part[number] for number in chosen]) for part in parts)
        return _mean([judge(asked) for judge in self.layers(known)])


def without(split: Split, names: Sequence[str]) -> Split:
    """The split with some modalities missing in all instances."""
    return split.lacking({name: torch.ones(len(split), dtype=torch.bool) for name in names})


def scale_of(labels: Tensor) -> Scale | None:
    """The scale of sentiment that labels lie on; None if they have no sign, or lie on none."""
    low, high = labels.min().item(), labels.max().item()
    if not low < 0 < high:
        return None
    return "sims" if max(-low, high) <= 1 else "mosi" if max(-low, high) <= 3 else None


def _between(model: ModalityEmbedder, tests: Part, config: Config, how: EvaluationConfig) -> dict[str, Any]:
    """Retrieval and geometry; none of a single instance, and no retrieval where there is no common space."""
    if len(tests.index) < 2:
        return {"retrieval": {}, "geometry": None}
    index = tests.index[permutation(len(tests.index), config.seed, EPOCH)[:MOST_INSTANCES]]
    h, z, present = embedded(model, ModalityBatches(tests.split, config.modalities), index)
    left = [number for number, name in enumerate(config.modalities) if name not in how.drop]
    names, h, present = [config.modalities[number] for number in left], h[:, left], present[:, left]
    some = present.any(1)
    geometry = {"instances": int(some.sum()), "views": len(names), "h": geometry_between(h[some], present[some], names)}
    if config.supervised:
        return {"retrieval": {}, "geometry": geometry}
    geometry["z"] = geometry_between(z[some][:, left], present[some], names)
    return {"retrieval": retrieval_between(z[:, left], present, names), "geometry": geometry}


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(parts), 1)


def _mean(found: Sequence[Metrics]) -> Metrics:
    return {name: statistics.fmean(one[name] for one in found) for name in found[0]}
