"""Sentences about an evaluation: its setup, and the baselines that beat the trained encoder."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from itertools import product
from typing import Any

from manyviews.evaluation.multimodal_features import PROBE_LABELS

BASELINES = {
    "majority": "the majority baseline",
    "pixels": "pixels",
    "raw features": "raw features",
    "untrained encoder": "the untrained encoder",
}
METRICS = ("accuracy", "Has0_acc_2", "Mult_acc_2", "MAE")
"""Metrics by which subsets of modalities, and probes of regression targets, are compared."""


def describe_evaluation(result: Mapping[str, Any]) -> str:
    """Describe the setup in one line: number of test instances, number of labels, probe."""
    kind = "held-out" if result["held_out"] else result["split"]
    without = f" without {', '.join(result['dropped'])}" if result.get("dropped") else ""
    probe = result["probe"]
    method = f"mean of {probe['heads']} linear probes" if "heads" in probe else f"{probe['method']} probe"
    if "epochs" in probe:
        method += f" (learning rate {probe['learning_rate']:g}, {probe['epochs']} epochs)"
    if draws := [len(few["linear"]) for few in result["scores"]["trained encoder"].get("few", {}).values()]:
        method += f"; few labels sampled {draws[0]} times"
    return f"{result['test_instances']:,} {kind} instances{without}, {result['train_instances']:,} labels; {method}"


def name_knn(score: Mapping[str, Any]) -> str:
    """Return the title of a kNN column; older files have no `knn_k`."""
    return f"kNN (k = {score['knn_k']})" if "knn_k" in score else "kNN"


def find_better_baselines(result: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each baseline, and each single modality, that beats the trained encoder in some metric.

    Examples:
        >>> scores = {"pixels": {"linear": 0.6}, "trained encoder": {"linear": 0.5}}
        >>> find_better_baselines({"scores": scores, "test_instances": 40})
        ['the trained encoder is worse than pixels: linear probe 50.0% against 60.0% on 40 instances']
    """
    scores = result.get("scores")
    if not scores:
        return []
    trained, sentences = _read_metrics(scores["trained encoder"]), []
    for name, title in BASELINES.items():
        if worse := _list_worse(trained, _read_metrics(scores.get(name, {}))):
            count = result["test_instances"]
            sentences.append(f"the trained encoder is worse than {title}: {worse} on {count:,} instances")
    single = {name: subset for name, subset in (result.get("subsets") or {}).items() if " + " not in name}
    for name, kind in product(single, ("raw", "own")) if len(single) > 1 else ():
        subset = single[name]
        fused = {metric: subset["fused"][metric] for metric in METRICS if metric in subset["fused"]}
        if worse := _list_worse(fused, subset["scores"].get(kind, {})):
            text = f"all modalities together are worse than {name} alone ({PROBE_LABELS[kind]})"
            sentences.append(f"{text}: {worse} on {subset['instances']:,} instances")
    return sentences


def _read_metrics(score: Mapping[str, Any]) -> dict[str, float]:
    if heads := score.get("heads"):
        return {name: statistics.fmean(head[name] for head in heads) for name in METRICS if name in heads[0]}
    names = {"linear": "linear probe", "knn": name_knn(score)}
    return {title: score[name] for name, title in names.items() if name in score}


def _list_worse(trained: Mapping[str, float], other: Mapping[str, float]) -> str:
    """List the metrics, with both values, in which `other` is better."""
    parts = []
    for name, value in trained.items():
        if name == "MAE" and other.get(name, value) < value:
            parts.append(f"{name} {value:.3f} against {other[name]:.3f}")
        elif name != "MAE" and other.get(name, value) > value:
            parts.append(f"{name} {value:.1%} against {other[name]:.1%}")
    return ", ".join(parts)
