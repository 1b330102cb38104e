"""Evaluation results of each kind, and damaged copies of them as JSON."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any, get_args

from manyviews.evaluation import EvaluationResult, Representation, Score, SubsetScore
from manyviews.metrics import (
    FewLabelScore,
    Geometry,
    GeometryResult,
    ProbeDescription,
    RetrievalScore,
)

OVERALL = Geometry((), 0.25, -2.5, 0.75, 0.125, 12, 9.5, 16, (1.0, 0.5, 0.25))

IMAGES = EvaluationResult(
    version="0.2",
    dataset_path="/data/photos & more",
    dataset="photos",
    split="test",
    train_instances=2500,
    test_instances=1000,
    probe=ProbeDescription("sgd", learning_rate=0.1, epochs=200, augment=True),
    scores={
        "raw_features": Score(0.25, 25, 0.375, {"0.01": FewLabelScore(25, (0.1, 0.2, 0.3))}),
        "untrained": Score(0.2, 25, 0.3),
        "trained": Score(0.5, 25, 0.625, {"0.01": FewLabelScore(25, (0.3, 0.4, 0.5))}),
    },
    geometry=GeometryResult(1000, 3, (OVERALL,), (dataclasses.replace(OVERALL, rank=None, recall_at_1=None),)),
    caveats=("1 test class is new",),
    better_baselines=("the trained encoder is worse than raw features",),
)


def make_subset(names: tuple[str, ...], accuracy: float, instances: int = 40) -> SubsetScore:
    metrics = {"accuracy": accuracy, "F1": accuracy / 2}
    return SubsetScore(names, instances, {"raw": metrics, "per_subset": metrics}, metrics)


MODALITIES = EvaluationResult(
    version="0.2",
    dataset_path="/data/talk.npz",
    dataset="talk",
    split="valid",
    modalities=("text", "audio", "video"),
    dropped_modalities=("video",),
    train_instances=80,
    test_instances=40,
    tested_on_train_holdout=True,
    probe=ProbeDescription("lbfgs"),
    summaries={"text": "mean", "audio": "flattened at 6 steps"},
    scores={
        "majority": Score(linear=0.35),
        "raw_features": Score(0.4, 2, 0.45),
        "trained": Score(0.5, 2, 0.55),
        "mean_embedding": Score(0.6, 2, 0.65),
    },
    subsets=(
        make_subset(("text",), 0.5),
        make_subset(("audio",), 0.4, instances=30),
        make_subset(("text", "audio"), 0.6),
    ),
    retrieval=(
        RetrievalScore("text", "audio", 30, {"1": 0.125, "5": 0.25, "10": 0.5}, 8.0),
        RetrievalScore("audio", "text", 30, {"1": 0.25, "5": 0.5, "10": 0.75}, 4.5),
    ),
    geometry=GeometryResult(
        40,
        2,
        (OVERALL,),
        (
            OVERALL,
            Geometry(("text", "audio"), alignment=0.5, uniformity=-1.5),
            Geometry(("text",), uniformity=-1.25, rank=7, rankme=6.25),
        ),
    ),
)

REGRESSION = EvaluationResult(
    version="0.2",
    dataset_path="/data/mosi.npz",
    dataset="mosi",
    split="test",
    modalities=("text", "audio"),
    train_instances=80,
    test_instances=40,
    probe=ProbeDescription("l1", 0.01, 100, count=2),
    sentiment_scale="mosi",
    scores={
        "majority": Score(probes=({"MAE": 1.5, "Has0_acc_2": 0.5},)),
        "trained": Score(probes=({"MAE": 1.0, "Corr": 0.25, "Has0_acc_2": 0.75}, {"MAE": 1.2, "Corr": 0.75})),
        "supervised_head": Score(probes=({"MAE": 0.875, "Corr": 0.5, "Has0_acc_2": 0.875},)),
    },
    subsets=(
        SubsetScore(("text",), 40, {"per_subset": {"MAE": 1.25, "Has0_acc_2": 0.5}}, {"MAE": 1.0, "Has0_acc_2": 1.0}),
    ),
)
WITHOUT_SCORES = EvaluationResult("0.2", "images", "images", "train", skipped_reason="images has no labels")


def damage(result: EvaluationResult, change: Callable[[dict[str, Any]], object]) -> str:
    """Return the JSON of a result after a change."""
    content = json.loads(result.to_json())
    change(content)
    return json.dumps(content)


DAMAGED = [
    (
        damage(IMAGES, lambda d: d["scores"]["trained"].update(linear="x")),
        "the result.scores.trained.linear must be float, got 'x'",
    ),
    (damage(IMAGES, lambda d: d.update(scores=[])), "the result.scores must be dict, got []"),
    (damage(IMAGES, lambda d: d.update(test_instances=True)), "the result.test_instances must be int, got True"),
    (damage(IMAGES, lambda d: d.update(why="no labels")), "the result has the unknown key 'why'"),
    (
        damage(IMAGES, lambda d: d["scores"]["trained"].update(heads=[])),
        "the result.scores.trained has the unknown key 'heads'",
    ),
    (damage(IMAGES, lambda d: d.pop("split")), "the result has no 'split'"),
    (damage(IMAGES, lambda d: d["geometry"].pop("views")), "the result.geometry has no 'views'"),
    (
        damage(IMAGES, lambda d: d["geometry"]["h"][0].update(alignment=float("nan"))),
        "the result.geometry.h[0].alignment must be float, got nan",
    ),
    (
        damage(IMAGES, lambda d: d["scores"]["raw_features"].update(knn=float("inf"))),
        "the result.scores.raw_features.knn must be float, got inf",
    ),
    (
        damage(IMAGES, lambda d: d.update(test_instances=10**400)),
        f"the result.test_instances must be int, got {10**79}",
    ),
    (
        damage(IMAGES, lambda d: d["scores"].update({"trained encoder": {}})),
        f"the result.scores must be one of {', '.join(get_args(Representation))}, got 'trained encoder'",
    ),
    (
        damage(IMAGES, lambda d: d["scores"].pop("trained")),
        "scores must include 'trained', got raw_features, untrained",
    ),
    (
        damage(IMAGES, lambda d: d["probe"].update(learning_rate=None)),
        "a probe must have both learning_rate and epochs, or neither",
    ),
    (damage(MODALITIES, lambda d: d["subsets"].append(3)), "the result.subsets[3] must be SubsetScore, got 3"),
    (
        damage(MODALITIES, lambda d: d["subsets"][2]["scores"]["raw"].pop("F1")),
        "every probe of the subset text + audio must have the same metrics",
    ),
    (
        damage(MODALITIES, lambda d: d["subsets"][1]["scores"].pop("raw")),
        "all subsets of modalities must have the same probes and metrics",
    ),
    (
        damage(MODALITIES, lambda d: d["subsets"][0].update(scores={})),
        "a subset must have modalities, scores and fused metrics",
    ),
    (
        damage(MODALITIES, lambda d: d.update(modalities=["text"])),
        "subsets have the modality 'audio', which modalities does not list",
    ),
    (
        damage(MODALITIES, lambda d: d["retrieval"][0].update(instances=0)),
        "retrieval of audio by text must have instances and recall",
    ),
    (
        damage(REGRESSION, lambda d: d["scores"]["trained"]["probes"][1].pop("MAE")),
        "every probe of regression targets must have the metric MAE",
    ),
    (
        damage(REGRESSION, lambda d: d["scores"]["trained"].update(probes=[])),
        "all scores must have probes of regression targets, or none",
    ),
]
"""JSON texts that are not valid, and the error that names the key."""
