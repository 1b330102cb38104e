"""Code shared by all evaluations: `EvaluationConfig`, training and test instances, kNN and probe scores."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from manyviews.data import Dataset, DatasetDict
from manyviews.loading import ViewSpec
from manyviews.metrics import (
    PAPER_PROBE_SETTINGS,
    VAL_FOLDS,
    FeatureStream,
    FewLabelScore,
    ProbeDescription,
    ProbeSettings,
    ProbeSolver,
    Score,
    fit_linear_probe,
    sample_stratified,
    score_knn,
)
from manyviews.training import LARGE_IMAGE_SIZE, Config, ConfigError, coerce_field
from manyviews.utils import EVAL_EPOCH, draw_permutation

MAX_GEOMETRY_INSTANCES = 5_000
"""Geometry and retrieval are computed on at most this many instances."""
FEW_LABEL_REPEATS = 3
"""Number of random subsets of each label fraction."""


class NotScorableError(ValueError):
    """The data have no labels, or too few, to score representations with."""


@dataclass(frozen=True)
class EvaluationConfig:
    """Settings of an evaluation.

    Examples:
        >>> config = EvaluationConfig(probe_solver="sgd", probe_epochs=50, label_fractions=(0.05,))
        >>> mv.evaluate("runs/demo", config=config)  # doctest: +SKIP
    """

    probe_solver: ProbeSolver = "lbfgs"
    """Linear probe. lbfgs: converged logistic regression, L2 chosen by validation; sgd: the paper's protocol."""
    probe_augment: bool = False
    """Encode a new random crop of each training image, mirrored or not, in each epoch of the sgd probe. Slow."""
    probe_lr: float | None = None
    """Learning rate of the sgd probe or of regression probes. Default: the paper's for the dataset, or 0.01."""
    probe_epochs: int | None = None
    """Epochs of the sgd probe or of regression probes. Default: the paper's for the dataset, or 100."""
    knn_k: int | None = None
    """Number of neighbors for kNN. Default: that of the run or, without one, a tenth of the mean class size, between 1
    and 200; for CIFAR and ImageNet the paper's 200 if classes are that large."""
    label_fractions: tuple[float, ...] = (0.01, 0.1)
    """Fractions of the training labels for few-label probes (lbfgs, three random subsets each)."""
    baselines: bool = True
    """Also score the raw features (pixels, for images up to 64 x 64) and the untrained encoder."""
    drop_modalities: tuple[str, ...] = ()
    """Modalities to remove from all test instances. Default: none."""
    modality_subsets: bool = True
    """Also score every subset of the modalities."""
    num_regression_probes: int = 3
    """Number of linear probes, each with its own seed, that are fitted to regression targets and averaged."""
    sentiment_scale: Literal["auto", "mosi", "sims", "none"] = "auto"
    """Metrics of regression targets. mosi: -3 to 3; sims: -1 to 1; none: error and correlation; auto: by range."""
    split: Literal["test", "valid"] = "test"
    """Split to test on. valid is for model selection; if it does not exist, a fifth of the training split is used."""
    num_workers: int = 2
    """Number of worker processes that read images from disk."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = coerce_field(EvaluationConfig, field.name, getattr(self, field.name), "the evaluation")
            object.__setattr__(self, field.name, value)

    def check(self, config: Config) -> None:
        if self.probe_solver == "lbfgs" and self.probe_augment:
            raise ConfigError("probe_augment requires probe_solver sgd, got lbfgs")
        for fraction in self.label_fractions:
            if not 0 < fraction < 1:
                raise ConfigError(f"label_fractions must be between 0 and 1, got {fraction}")
        for name in ("num_regression_probes", "knn_k"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ConfigError(f"{name} must be >= 1, got {value}")
        modalities = ViewSpec.parse(config.views).modalities
        if unknown := [name for name in self.drop_modalities if name not in modalities]:
            existing = ", ".join(modalities)
            raise ConfigError(f"cannot drop {unknown[0]!r}: the modalities of the run are {existing}")
        if modalities and set(self.drop_modalities) >= set(modalities):
            raise ConfigError("cannot drop all modalities: keep at least one")

    def check_for_classification(self) -> None:
        """Raise if probe_lr or probe_epochs is set although the L-BFGS probe ignores it."""
        if self.probe_solver == "lbfgs" and (self.probe_lr is not None or self.probe_epochs is not None):
            raise ConfigError("probe_lr and probe_epochs require probe_solver sgd or regression targets, got lbfgs")

    def get_probe_settings(self, data: DatasetDict, size: int) -> ProbeSettings:
        """Return the settings of the sgd probe: the paper's for the dataset or, failing that, for one of its size."""
        similar = (
            "cifar10" if size <= LARGE_IMAGE_SIZE else "imagenet100" if len(data.class_names) < 1000 else "imagenet1k"
        )
        return self.apply_defaults(PAPER_PROBE_SETTINGS.get(data.name, PAPER_PROBE_SETTINGS[similar]))

    def apply_defaults(self, defaults: ProbeSettings) -> ProbeSettings:
        """Return probe_lr and probe_epochs, with `defaults` for those that are None."""
        return {
            "learning_rate": defaults["learning_rate"] if self.probe_lr is None else self.probe_lr,
            "epochs": defaults["epochs"] if self.probe_epochs is None else self.probe_epochs,
        }


@dataclass(frozen=True)
class Subset:
    """Some instances of a split."""

    split: Dataset
    index: Tensor

    @classmethod
    def of(cls, data: DatasetDict, split: str) -> Subset:
        return cls(data[split], torch.arange(len(data[split])))

    def labels(self, index: Tensor | None = None) -> Tensor:
        """Return the labels of all instances, or of those at `index` in the split."""
        assert self.split.labels is not None
        return self.split.labels[self.index if index is None else index]


def choose_test_split(data: DatasetDict, eval_config: EvaluationConfig) -> str:
    """Return the name of the split to test on; train if there is no other."""
    order = ("test", "valid") if eval_config.split == "test" else ("valid",)
    return next((name for name in order if name in data.splits), "train")


def choose_train_test(data: DatasetDict, tests: Subset, config: Config, same_data: bool) -> tuple[Subset, Subset]:
    """Choose labeled instances to fit probes to and to test them on.

    `same_data` is true if the model was trained on this data.

    Raises:
        NotScorableError: there are none.
    """
    train, reason = Subset.of(data, "train"), ""
    if train.split.labels is None:
        reason = f"{data.name} has no labels"
    elif tests.split.labels is None:
        reason = f"{data.name} has no labels in its test set"
    elif len(train.index) < 2 * VAL_FOLDS:
        raise NotScorableError(
            f"{data.name} has {len(train.index)} labeled instances: too few for kNN and a linear probe"
        )
    if reason:
        raise NotScorableError(f"{reason}: no kNN and no linear probe")
    if tests.split is not train.split:
        return train, tests
    # Without a test set, a part of the training instances is tested: self-supervised training does not use labels.
    # The order is that of `split_monitored`, so monitored instances, which are not trained on, come first.
    order = draw_permutation(len(train.index), config.seed, EVAL_EPOCH)
    count = len(order) // VAL_FOLDS
    if same_data and (config.supervised or config.loss == "supcon") and (config.monitor_size or 0) < count:
        raise NotScorableError(
            f"{data.name} has no test set, and training used the labels: exclude {count} instances from training "
            f"(--monitor-size {count})"
        )
    test_index, train_index = order[:count].sort().values, order[count:].sort().values
    return dataclasses.replace(train, index=train_index), dataclasses.replace(train, index=test_index)


def list_caveats(data: DatasetDict, train: Subset, test: Subset) -> list[str]:
    """List properties of the labels that make class scores less meaningful than they look."""
    if train.split.class_labels is None:
        return []
    train_classes, test_classes = set(train.labels().tolist()), set(test.labels().tolist())
    caveats = []
    if unknown := sorted(test_classes - train_classes):
        names = ", ".join(
            data.class_names[label] if label < len(data.class_names) else str(label) for label in unknown[:5]
        )
        caveats.append(f"{len(unknown)} test classes are not in the training set and cannot be predicted: {names}")
    if len(train_classes) == 1:
        caveats.append("all training instances have the same class: the scores are meaningless")
    return caveats


def compute_class_scores(
    h: Tensor,
    labels: Tensor,
    queries: Tensor,
    test_labels: Tensor,
    data: DatasetDict,
    eval_config: EvaluationConfig,
    settings: ProbeSettings,
    augment: FeatureStream | None = None,
) -> Score:
    """Score representations (n, d) by kNN, a linear probe, and linear probes on few labels."""
    classes = len(data.class_names)
    if eval_config.probe_solver == "sgd":
        probe = fit_linear_probe(h, labels, num_classes=classes, solver="sgd", augment=augment, **settings)
    else:
        probe = fit_linear_probe(h, labels, num_classes=classes)
    few_label = {}
    for fraction in eval_config.label_fractions:
        subsets = [sample_stratified(labels, fraction, seed) for seed in range(FEW_LABEL_REPEATS)]
        if len(subsets[0]) >= VAL_FOLDS:
            probes = [fit_linear_probe(h[index], labels[index], num_classes=classes) for index in subsets]
            accuracies = tuple(probe.accuracy(queries, test_labels) for probe in probes)
            few_label[f"{fraction:.4g}"] = FewLabelScore(len(subsets[0]), accuracies)
    knn = score_knn(h, labels, queries, test_labels, data, eval_config.knn_k)
    return Score(knn["knn"], int(knn["knn_k"]), probe.accuracy(queries, test_labels), few_label)


def describe_probe(eval_config: EvaluationConfig, settings: ProbeSettings) -> ProbeDescription:
    if eval_config.probe_solver == "sgd":
        return ProbeDescription("sgd", augment=eval_config.probe_augment, **settings)
    return ProbeDescription("lbfgs")
