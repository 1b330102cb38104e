"""Evaluation of a run on images: kNN, linear probe and geometry, compared with pixels and the untrained encoder."""

from __future__ import annotations

from typing import Any

from torch import nn

from manyviews.data import DatasetDict
from manyviews.evaluation.evaluation_result import Geometry, GeometryResult, Score
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
from manyviews.loading import embed_views, encode_images, stream_augmented_features
from manyviews.metrics import ProbeSettings, compute_geometry
from manyviews.models import Embedder
from manyviews.training import LARGE_IMAGE_SIZE, Config, build_transform, make_task
from manyviews.utils import EVAL_EPOCH, check_labels, draw_permutation


def evaluate_images(
    embedder: Embedder, data: DatasetDict, config: Config, eval_config: EvaluationConfig, same_data: bool
) -> dict[str, Any]:
    """Return the fields of an `EvaluationResult` for an image run."""
    assert config.image_size is not None
    split = choose_test_split(data, eval_config)
    tests = Subset.of(data, split)
    fields: dict[str, Any] = {"split": split}
    try:
        train, test = choose_train_test(data, tests, config, same_data)
    except NotScorableError as error:
        fields["skipped_reason"] = str(error)
    else:
        encoders: dict[str, nn.Module] = {}
        if eval_config.baselines and config.image_size <= LARGE_IMAGE_SIZE:
            encoders["pixels"] = nn.Flatten()
        if eval_config.baselines:
            untrained = make_task(config, data).build_model().encoder
            encoders["untrained"] = untrained.to(next(embedder.parameters()).device)
        encoders["trained"] = embedder.encoder
        settings = eval_config.get_probe_settings(data, config.image_size)
        fields |= {
            "caveats": tuple(list_caveats(data, train, test)),
            "tested_on_train_holdout": split == "train",
            "train_instances": len(train.index),
            "test_instances": len(test.index),
            "probe": describe_probe(eval_config, settings),
            "scores": {
                name: _compute_scores(encoder, train, test, config.image_size, data, settings, eval_config)
                for name, encoder in encoders.items()
            },
        }
    return {**fields, "geometry": _compute_geometry(embedder, tests, config, eval_config.num_workers)}


def _compute_scores(
    encoder: nn.Module,
    train: Subset,
    test: Subset,
    size: int,
    data: DatasetDict,
    settings: ProbeSettings,
    eval_config: EvaluationConfig,
) -> Score:
    workers, num_classes = eval_config.num_workers, len(data.class_names)
    h, train_index = encode_images(encoder, train.split.images, train.index, size, workers)
    queries, test_index = encode_images(encoder, test.split.images, test.index, size, workers)
    labels = check_labels("training representations", h, train.labels(train_index).to(h.device), num_classes)
    test_labels = check_labels("test representations", queries, test.labels(test_index).to(h.device), num_classes)
    images = train.split.select(train_index).images if eval_config.probe_augment else None
    augment = None if images is None else stream_augmented_features(encoder, images, size, num_workers=workers)
    return compute_class_scores(h, labels, queries, test_labels, data, eval_config, settings, augment)


def _compute_geometry(embedder: Embedder, subset: Subset, config: Config, num_workers: int) -> GeometryResult | None:
    """Compute the geometry of views made as in training, or None for a single instance."""
    if len(subset.index) < 2:
        return None
    index = subset.index[draw_permutation(len(subset.index), config.seed, EVAL_EPOCH)[:MAX_GEOMETRY_INSTANCES]]
    transform, images = build_transform(config), subset.split.images
    h, z = embed_views(embedder, images, index, transform, config.views, config.seed, num_workers)
    overall = [(Geometry(**compute_geometry(x)),) for x in (h, z)]
    return GeometryResult(len(index), config.views, *overall)
