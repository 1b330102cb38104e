"""What every evaluation shares: how it is done, on which instances, and the scores of representations."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from manyviews.data import Dataset, Split
from manyviews.evaluation import PAPER_PROBE, few_labels, linear_probe, score_knn
from manyviews.evaluation.probe import HELD_OUT, Augment, Method, Settings
from manyviews.evaluation.represent import NO_EPOCH
from manyviews.training.config import Config, ConfigError, accept
from manyviews.training.images import LARGE
from manyviews.views.keyed import permutation

MOST_INSTANCES = 10_000
"""Whose geometry is looked at."""
DRAWS = 3
"""Of few labels."""


@dataclass(frozen=True)
class EvaluationConfig:
    """How a run is evaluated.

    Examples:
        >>> how = EvaluationConfig(probe="sgd", epochs=50, few=(0.05,))  # mv.evaluate("runs/demo", how=how)
    """

    probe: Method = "lbfgs"
    """lbfgs finds the minimum, with a penalty chosen on a part of the training set; sgd is the paper's."""
    augment: bool = False
    """The sgd probe encodes other crops, half of them mirrored, in each epoch: slow."""
    learning_rate: float | None = None
    """Of the sgd probe (the paper's for the data if not given), and of the layers of quantities (0.01)."""
    epochs: int | None = None
    """Of the sgd probe (the paper's for the data if not given), and of the layers of quantities (100)."""
    knn_k: int | None = None
    """Neighbors that vote in kNN, at most all training instances. If not given: the run's own or, without one, a tenth
    of the mean number of training instances in a class, from 1 to 200; on CIFAR and ImageNet 200, as in the paper,
    where classes have as many."""
    few: tuple[float, ...] = (0.01, 0.1)
    """Shares of the labels with which the probe is fitted too (by lbfgs, three draws of each)."""
    baselines: bool = True
    """Compare with raw features (pixels, where images are small) and with the untrained encoder."""
    drop: tuple[str, ...] = ()
    """Modalities that test instances are made to lack."""
    subsets: bool = True
    """Score every subset of the modalities too."""
    heads: int = 3
    """Linear layers that are fitted, each with a seed of its own, where labels are quantities."""
    sentiment: Literal["auto", "mosi", "sims", "none"] = "auto"
    """Metrics of quantities: of MOSI (-3 to 3), of CH-SIMS (-1 to 1), or none but the error; auto by the labels."""
    split: Literal["test", "valid"] = "test"
    """valid is for choosing among runs: the validation split or, without one, a fifth of the training instances."""
    workers: int = 2
    """Processes that read images from disk."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = accept(EvaluationConfig, field.name, getattr(self, field.name), "the evaluation")
            object.__setattr__(self, field.name, value)

    def check(self, config: Config) -> None:
        if self.probe == "lbfgs" and self.augment:
            raise ConfigError("augment is for the probe sgd, and the probe is lbfgs")
        if config.policy == "crops":
            self.check_of_classes()
        for share in self.few:
            if not 0 < share < 1:
                raise ConfigError(f"few holds shares of the labels between 0 and 1, got {share}")
        for name in ("heads", "knn_k"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ConfigError(f"{name} must be >= 1, got {value}")
        if config.policy == "modalities" and self.augment:
            raise ConfigError("augment is for images, and the run is of modalities")
        if unknown := [name for name in self.drop if name not in config.modalities]:
            known = ", ".join(config.modalities) or "none: it is of images"
            raise ConfigError(f"the run has no modality {unknown[0]!r} to drop, only {known}")
        if config.modalities and set(self.drop) >= set(config.modalities):
            raise ConfigError("all modalities are dropped: leave one")

    def check_of_classes(self) -> None:
        """Raise for what steers nothing where labels are classes, which only the data can tell."""
        if self.probe == "lbfgs" and (self.learning_rate is not None or self.epochs is not None):
            raise ConfigError("learning_rate and epochs are for the probe sgd or for quantities: the probe is lbfgs")

    def settings(self, data: Dataset, size: int) -> Settings:
        """Of the sgd probe."""
        like = "cifar10" if size <= LARGE else "imagenet100" if len(data.classes) < 1000 else "imagenet1k"
        return self.instead_of(PAPER_PROBE.get(data.name, PAPER_PROBE[like]))

    def instead_of(self, usual: Settings) -> Settings:
        """The usual settings, but for those that are given."""
        return {
            "learning_rate": usual["learning_rate"] if self.learning_rate is None else self.learning_rate,
            "epochs": usual["epochs"] if self.epochs is None else self.epochs,
        }


@dataclass(frozen=True)
class Part:
    """Some instances of a split."""

    split: Split
    index: Tensor

    @classmethod
    def of(cls, data: Dataset, split: str) -> Part:
        return cls(data[split], torch.arange(len(data[split])))

    def labels(self, index: Tensor | None = None) -> Tensor:
        """Of all its instances, or of others of its split."""
        assert self.split.labels is not None
        return self.split.labels[self.index if index is None else index]


def tested_split(data: Dataset, how: EvaluationConfig) -> str:
    """The split to test on; train if there is no other."""
    order = ("test", "valid") if how.split == "test" else ("valid",)
    return next((name for name in order if name in data.splits), "train")


def parts_of(data: Dataset, tests: Part, config: Config, own: bool) -> tuple[Part, Part] | str:
    """Labelled instances to learn from and to be tested on, or why there are none; `own` if it was trained on these."""
    train = Part.of(data, "train")
    if train.split.labels is None:
        return f"{data.name} has no labels: no kNN and no linear probe"
    if config.policy == "crops" and train.split.classes is None:
        return f"the labels of {data.name} are quantities, not classes: no kNN and no linear probe"
    if tests.split.labels is None:
        return f"{data.name} has no labels in its test set: no kNN and no linear probe"
    if len(train.index) < 2 * HELD_OUT:
        return f"{data.name} has {len(train.index)} labelled instances: too few for kNN and a linear probe"
    if tests.split is not train.split:
        return train, tests
    # No test set: a part of the instances stands for one. The encoder may have seen them, but not their labels.
    # In the same order, what is held out of training comes first.
    order = permutation(len(train.index), config.seed, NO_EPOCH)
    count = len(order) // HELD_OUT
    if own and (config.supervised or config.objective == "supcon") and (config.held_out or 0) < count:
        return (
            f"{data.name} has no test set, and training has seen the labels: hold {count} instances out of it "
            f"(--held-out {count})"
        )
    apart = order[:count].sort().values, order[count:].sort().values
    return dataclasses.replace(train, index=apart[1]), dataclasses.replace(train, index=apart[0])


def notes_on(data: Dataset, train: Part, test: Part) -> list[str]:
    """What makes the scores of classes mean less than they seem to."""
    if train.split.classes is None:
        return []
    known, asked = set(train.labels().tolist()), set(test.labels().tolist())
    notes = []
    if unknown := sorted(asked - known):
        names = ", ".join(data.classes[label] if label < len(data.classes) else str(label) for label in unknown[:5])
        notes.append(f"{len(unknown)} classes of the test set are not in the training set, so never right: {names}")
    if len(known) == 1:
        notes.append("all training instances are of one class: the scores say nothing")
    return notes


def class_scores(
    h: Tensor,
    labels: Tensor,
    queries: Tensor,
    answers: Tensor,
    data: Dataset,
    how: EvaluationConfig,
    settings: Settings,
    augment: Augment | None = None,
) -> dict[str, Any]:
    """KNN and linear probe of representations (n, d), also with few labels."""
    classes = len(data.classes)
    if how.probe == "sgd":
        probe = linear_probe(h, labels, classes=classes, method="sgd", augment=augment, **settings)
    else:
        probe = linear_probe(h, labels, classes=classes)
    few = {}
    for share in how.few:
        draws = [few_labels(labels, share, seed) for seed in range(DRAWS)]
        if len(draws[0]) >= HELD_OUT:
            probes = [linear_probe(h[index], labels[index], classes=classes) for index in draws]
            few[f"{share:.4g}"] = {
                "labels": len(draws[0]),
                "linear": [one.accuracy(queries, answers) for one in probes],
            }
    knn = score_knn(h, labels, queries, answers, data, how.knn_k)
    return {**knn, "linear": probe.accuracy(queries, answers), "few": few}


def probe_told(how: EvaluationConfig, settings: Settings) -> Mapping[str, Any]:
    return {"method": "sgd", "augment": how.augment, **settings} if how.probe == "sgd" else {"method": "lbfgs"}
