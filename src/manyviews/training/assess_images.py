"""What a run on images is worth: kNN, linear probe and geometry, beside pixels and the untrained encoder."""

from __future__ import annotations

from typing import Any

from torch import nn

from manyviews.data import Dataset
from manyviews.data.dataset import take_rows
from manyviews.evaluation import augmented, representations
from manyviews.evaluation.knn import check_labelled
from manyviews.evaluation.probe import Settings
from manyviews.evaluation.represent import NO_EPOCH, embedded_views, geometry_of
from manyviews.models import Embedder
from manyviews.training.config import Config
from manyviews.training.images import LARGE, policy_of
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
from manyviews.views.keyed import permutation


def images_evaluated(
    embedder: Embedder, data: Dataset, config: Config, how: EvaluationConfig, own: bool
) -> dict[str, Any]:
    assert config.size is not None
    split = tested_split(data, how)
    tests = Part.of(data, split)
    found: dict[str, Any] = {"split": split}
    parts = parts_of(data, tests, config, own)
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
            "notes": notes_on(data, *parts),
            "held_out": split == "train",
            "train_instances": len(parts[0].index),
            "test_instances": len(parts[1].index),
            "probe": probe_told(how, settings),
            "scores": {
                name: _scores(encoder, *parts, config.size, data, settings, how) for name, encoder in encoders.items()
            },
        }
    found["geometry"] = _geometry(embedder, tests, config, how.workers)
    return found


def _scores(
    encoder: nn.Module, train: Part, test: Part, size: int, data: Dataset, settings: Settings, how: EvaluationConfig
) -> dict[str, Any]:
    h, kept = representations(encoder, train.split.images, train.index, size, how.workers)
    queries, asked = representations(encoder, test.split.images, test.index, size, how.workers)
    # Labels outside the classes are a mistake of the data, named before anything is counted.
    labels = check_labelled("training representations", h, train.labels(kept).to(h.device), len(data.classes))
    answers = check_labelled("test representations", queries, test.labels(asked).to(h.device), len(data.classes))
    images = take_rows(train.split.images, kept) if how.augment else None
    augment = None if images is None else augmented(encoder, images, size, workers=how.workers)
    return class_scores(h, labels, queries, answers, data, how, settings, augment)


def _geometry(embedder: Embedder, part: Part, config: Config, workers: int) -> dict[str, Any] | None:
    """Of views drawn as in training; None of a single instance."""
    if len(part.index) < 2:
        return None
    index = part.index[permutation(len(part.index), config.seed, NO_EPOCH)[:MOST_INSTANCES]]
    h, z = embedded_views(embedder, part.split.images, index, policy_of(config), config.views, config.seed, workers)
    return {"instances": len(index), "views": config.views, "h": geometry_of(h), "z": geometry_of(z)}
