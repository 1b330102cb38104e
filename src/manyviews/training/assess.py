"""What a run is worth: kNN, linear probe and geometry, beside pixels and the encoder before it was trained."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from manyviews import __version__
from manyviews.data import Dataset, load_dataset
from manyviews.evaluation import PAPER, augmented, few_labels, knn_classify, linear_probe, representations
from manyviews.evaluation.knn import check_labelled
from manyviews.evaluation.probe import HELD_OUT, Method, Settings
from manyviews.evaluation.represent import EPOCH, Images, embedded_views, geometry_of
from manyviews.models import Embedder
from manyviews.training.config import Config, ConfigError, Device
from manyviews.training.images import LARGE, policy_of
from manyviews.training.run import EVALUATION, Run
from manyviews.training.setup import built, device_of, threads
from manyviews.views.keyed import permutation

MOST_INSTANCES = 10_000
"""Whose geometry is looked at."""
DRAWS = 3
"""Of few labels."""


@dataclass(frozen=True)
class EvaluationConfig:
    """How a run is evaluated."""

    probe: Method = "lbfgs"
    """lbfgs finds the minimum, with a penalty chosen on a part of the training set; sgd is the paper's."""
    augment: bool = False
    """The sgd probe encodes other crops, half of them mirrored, in each epoch: slow."""
    learning_rate: float | None = None
    """Of the sgd probe; the paper's for the data if not given."""
    epochs: int | None = None
    """Of the sgd probe; the paper's for the data if not given."""
    few: tuple[float, ...] = (0.01, 0.1)
    """Shares of the labels with which the probe is fitted too (by lbfgs, three draws of each)."""
    baselines: bool = True
    """Compare with pixels, where images are small, and with the encoder before it was trained."""
    workers: int = 2
    """Processes that read images from disk."""

    def check(self) -> None:
        if self.probe == "lbfgs" and (self.augment or self.learning_rate is not None or self.epochs is not None):
            raise ConfigError("augment, learning_rate and epochs are for the probe sgd, and the probe is lbfgs")
        for share in self.few:
            if not 0 < share < 1:
                raise ConfigError(f"few holds shares of the labels between 0 and 1, got {share}")

    def settings(self, data: Dataset, size: int) -> Settings:
        """Of the sgd probe."""
        like = "cifar10" if size <= LARGE else "imagenet100" if len(data.classes) < 1000 else "imagenet1k"
        paper = PAPER.get(data.name, PAPER[like])
        return {
            "learning_rate": paper["learning_rate"] if self.learning_rate is None else self.learning_rate,
            "epochs": paper["epochs"] if self.epochs is None else self.epochs,
        }


def evaluate(
    run: Run | str | Path,
    *,
    data: str | Path | None = None,
    how: EvaluationConfig | None = None,
    device: Device = "auto",
) -> dict[str, Any]:
    """Evaluate a finished run, on its own data or on other data, and write it into the run's directory.

    Args:
        run: a run, or its directory.
        data: other data, for transfer, as `load_dataset` takes it.
        how: which probe, how many labels, compared with what.
        device: auto takes a GPU if there is one.

    Returns:
        `scores` (kNN and probe of each representation; None without labels, and `why` says so), `geometry` of
        representations and embeddings of views, on how many instances, and `notes` on what to think of it.
        `evaluation.json` holds the same, or `evaluation-DATA.json` for other data.

    Raises:
        ValueError: there is no such run, or it is not finished, or the data is not what it should be.

    Example:
        >>> import manyviews as mv
        >>> mv.evaluate("runs/demo")["scores"]["trained encoder"]["linear"]  # doctest: +SKIP
        0.444
    """
    how = EvaluationConfig() if how is None else how
    how.check()
    run = run if isinstance(run, Run) else Run.open(run)
    if not os.access(run.path, os.W_OK):
        raise ConfigError(f"cannot write into {run.path}: no permission")
    embedder, config = run.embedder, run.config
    if data is None:
        dataset = load_dataset(
            config.data, classes=config.classes, strict=config.strict, follow_links=config.follow_links
        )
    else:
        config = dataclasses.replace(config, data=str(data), limit=None)
        dataset = load_dataset(data, strict=config.strict, follow_links=config.follow_links)
    with threads(dataclasses.replace(config, devices=1)):
        found = evaluated(embedder.to(device_of(device)), dataset, config, how)
    run.write_evaluation(found, evaluation_name(data, dataset.name))
    return found


def evaluation_name(data: str | Path | None, name: str) -> str:
    """The file in a run's directory with its evaluation, on its own data or on other data of this name."""
    if data is None:
        return EVALUATION
    path = Path(data).expanduser()
    # Folders of the same name are not the same data.
    apart = f"-{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:6]}" if path.exists() else ""
    plain = re.sub(r"[^\w.-]+", "-", name)
    return f"evaluation-{plain}{apart}.json"


def evaluated(embedder: Embedder, data: Dataset, config: Config, how: EvaluationConfig) -> dict[str, Any]:
    """What `evaluate` finds, of a model in memory."""
    assert config.size is not None
    split = next((name for name in ("test", "valid") if name in data.splits), "train")
    tests = _Part.of(data, split, config.limit if split == "train" else None)
    found: dict[str, Any] = {"manyviews": __version__, "source": config.data, "data": data.name, "split": split}
    parts = _labelled(data, tests, config)
    if isinstance(parts, str):
        found |= {"scores": None, "why": parts}
    else:
        encoders: dict[str, nn.Module] = {}
        if how.baselines and config.size <= LARGE:
            encoders["pixels"] = nn.Flatten()
        if how.baselines:
            encoders["untrained encoder"] = built(config, data)[0].encoder.to(next(embedder.parameters()).device)
        encoders["trained encoder"] = embedder.encoder
        settings = how.settings(data, config.size)
        found |= {
            "notes": _notes(data, *parts),
            "held_out": split == "train",
            "train_instances": len(parts[0].index),
            "test_instances": len(parts[1].index),
            "probe": {"method": "sgd", "augment": how.augment, **settings}
            if how.probe == "sgd"
            else {"method": "lbfgs"},
            "scores": {
                name: _scores(encoder, *parts, config.size, len(data.classes), settings, how)
                for name, encoder in encoders.items()
            },
        }
    found["geometry"] = _geometry(embedder, tests, config, how.workers)
    return found


@dataclass(frozen=True)
class _Part:
    """Instances of a split, and their labels by the same numbers."""

    images: Images
    index: Tensor
    labels: Tensor | None

    @classmethod
    def of(cls, data: Dataset, split: str, limit: int | None) -> _Part:
        found = data[split]
        return cls(found.images, torch.arange(min(len(found), limit or len(found))), found.labels)


def _labelled(data: Dataset, tests: _Part, config: Config) -> tuple[_Part, _Part] | str:
    """Labelled instances to learn from and to be tested on, or why there are none."""
    train = _Part.of(data, "train", config.limit)
    if train.labels is None:
        return f"{data.name} has no labels: no kNN and no linear probe"
    if train.labels.is_floating_point():
        return f"the labels of {data.name} are quantities, not classes: no kNN and no linear probe"
    if tests.labels is None:
        return f"{data.name} has no labels in its test set: no kNN and no linear probe"
    if len(train.index) < 2 * HELD_OUT:
        return f"{data.name} has {len(train.index)} labelled instances: too few for kNN and a linear probe"
    if tests.images is not train.images:
        return train, tests
    # No test set: a part of the instances stands for one. The encoder may have seen them, but not their labels.
    order = permutation(len(train.index), config.seed, EPOCH)
    count = len(order) // HELD_OUT
    apart = order[:count].sort().values, order[count:].sort().values
    return dataclasses.replace(train, index=apart[1]), dataclasses.replace(train, index=apart[0])


def _notes(data: Dataset, train: _Part, test: _Part) -> list[str]:
    """What makes the scores mean less than they seem to."""
    assert train.labels is not None
    assert test.labels is not None
    known, asked = (set(part.labels[part.index].tolist()) for part in (train, test) if part.labels is not None)
    notes = []
    if unknown := sorted(asked - known):
        names = ", ".join(data.classes[label] if label < len(data.classes) else str(label) for label in unknown[:5])
        notes.append(f"{len(unknown)} classes of the test set are not in the training set, so never right: {names}")
    if len(known) == 1:
        notes.append("all training instances are of one class: the scores say nothing")
    return notes


def _scores(
    encoder: nn.Module, train: _Part, test: _Part, size: int, classes: int, settings: Settings, how: EvaluationConfig
) -> dict[str, Any]:
    assert train.labels is not None
    assert test.labels is not None
    h, kept = representations(encoder, train.images, train.index, size, how.workers)
    queries, asked = representations(encoder, test.images, test.index, size, how.workers)
    # Labels outside the classes are a mistake of the data, named before anything is counted.
    labels = check_labelled("training representations", h, train.labels[kept].to(h.device), classes)
    answers = check_labelled("test representations", queries, test.labels[asked].to(h.device), classes)
    guess = knn_classify(h, labels, queries, classes=classes)
    if how.probe == "sgd":
        augment = augmented(encoder, _subset(train.images, kept), size, workers=how.workers) if how.augment else None
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
    knn = int((guess == answers).sum()) / len(answers)
    return {"knn": knn, "linear": probe.accuracy(queries, answers), "few": few}


def _subset(images: Images, index: Tensor) -> Images:
    if isinstance(images, Tensor):
        return images[index]
    return dataclasses.replace(images, paths=tuple(images.paths[number] for number in index.tolist()))


def _geometry(embedder: Embedder, part: _Part, config: Config, workers: int) -> dict[str, Any] | None:
    """Of views drawn as in training; None of a single instance."""
    if len(part.index) < 2:
        return None
    index = part.index[permutation(len(part.index), config.seed, EPOCH)[:MOST_INSTANCES]]
    h, z = embedded_views(embedder, part.images, index, policy_of(config), config.views, config.seed, workers)
    return {"instances": len(index), "views": config.views, "h": geometry_of(h), "z": geometry_of(z)}
