"""Sentences about an evaluation: how it was done, and what is better than the trained encoder."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from itertools import product
from typing import Any

from manyviews.evaluation.modalities import PROBES

BASELINES = {
    "majority": "the majority of labels",
    "pixels": "pixels",
    "raw features": "raw features",
    "untrained encoder": "the untrained encoder",
}
METRICS = ("accuracy", "Has0_acc_2", "Mult_acc_2", "MAE")
"""The metrics of a subset of modalities, and of real-valued labels, that are compared."""


def describe_evaluation(found: Mapping[str, Any]) -> str:
    """How many instances were tested, with how many labels, by which probe."""
    tested = "held-out" if found["held_out"] else found["split"]
    lacking = f" without {', '.join(found['dropped'])}" if found.get("dropped") else ""
    probe = found["probe"]
    method = f"means of {probe['heads']} linear layers" if "heads" in probe else f"probe {probe['method']}"
    if "epochs" in probe:
        method += f" (learning rate {probe['learning_rate']:g}, {probe['epochs']} epochs)"
    if draws := [len(one["linear"]) for one in found["scores"]["trained encoder"].get("few", {}).values()]:
        method += f"; few labels drawn {draws[0]} times"
    labels = f"labels of {found['train_instances']:,}"
    return f"{found['test_instances']:,} {tested} instances{lacking}, {labels}; {method}"


def name_knn(score: Mapping[str, Any]) -> str:
    """KNN with the k of a score, which version 0.1 did not write down."""
    return f"kNN (k = {score['knn_k']})" if "knn_k" in score else "kNN"


def find_better_baselines(found: Mapping[str, Any]) -> list[str]:
    """A sentence for each baseline, and each modality alone, that is better than the trained encoder in some metric.

    Examples:
        >>> scores = {"pixels": {"linear": 0.6}, "trained encoder": {"linear": 0.5}}
        >>> find_better_baselines({"scores": scores, "test_instances": 40})
        ['the trained encoder is worse than pixels: linear probe 50.0% against 60.0% on 40 instances']
    """
    scores = found.get("scores")
    if not scores:
        return []
    trained, sentences = _read_metrics(scores["trained encoder"]), []
    for name, title in BASELINES.items():
        if worse := _list_worse(trained, _read_metrics(scores.get(name, {}))):
            count = found["test_instances"]
            sentences.append(f"the trained encoder is worse than {title}: {worse} on {count:,} instances")
    alone = {name: one for name, one in (found.get("subsets") or {}).items() if " + " not in name}
    for name, kind in product(alone, ("raw", "own")) if len(alone) > 1 else ():
        one = alone[name]
        fused = {metric: one["fused"][metric] for metric in METRICS if metric in one["fused"]}
        if worse := _list_worse(fused, one["scores"].get(kind, {})):
            better = f"all modalities together are worse than {name} alone ({PROBES[kind]})"
            sentences.append(f"{better}: {worse} on {one['instances']:,} instances")
    return sentences


def _read_metrics(score: Mapping[str, Any]) -> dict[str, float]:
    if heads := score.get("heads"):
        return {name: statistics.fmean(head[name] for head in heads) for name in METRICS if name in heads[0]}
    names = {"linear": "linear probe", "knn": name_knn(score)}
    return {title: score[name] for name, title in names.items() if name in score}


def _list_worse(trained: Mapping[str, float], other: Mapping[str, float]) -> str:
    """The metrics, with both values, in which another score is better."""
    parts = []
    for name, value in trained.items():
        if name == "MAE" and other.get(name, value) < value:
            parts.append(f"{name} {value:.3f} against {other[name]:.3f}")
        elif name != "MAE" and other.get(name, value) > value:
            parts.append(f"{name} {value:.1%} against {other[name]:.1%}")
    return ", ".join(parts)
