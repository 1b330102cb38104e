"""Baselines that beat the trained encoder, as sentences."""

import statistics
from collections.abc import Mapping

from manyviews.metrics import (
    COMPARED_METRICS,
    REPRESENTATIONS,
    SUBSET_PROBES,
    EvaluationResult,
    Metrics,
    Representation,
    Score,
    SubsetProbe,
    format_metric,
    name_knn,
)

BASELINES: tuple[Representation, ...] = ("majority", "raw_features", "untrained")


SINGLE_PROBES: tuple[SubsetProbe, ...] = ("raw", "per_subset")


def find_better_baselines(result: EvaluationResult) -> tuple[str, ...]:
    """Return a sentence for each baseline, and each single modality, that beats the trained encoder in some metric.

    Examples:
        >>> scores = {"raw_features": Score(linear=0.6), "trained": Score(linear=0.5)}
        >>> find_better_baselines(EvaluationResult("0.2", "photos", "photos", "test", test_instances=40, scores=scores))
        ('the trained encoder is worse than raw features: linear probe 50.0% against 60.0% on 40 instances',)
    """
    if not result.scores:
        return ()
    trained, sentences = _collect_metrics(result.scores["trained"]), []
    for name in BASELINES:
        if worse := _list_worse(trained, _collect_metrics(result.scores.get(name, Score()))):
            title = REPRESENTATIONS[name] if name == "raw_features" else f"the {REPRESENTATIONS[name]}"
            title += " baseline" if name == "majority" else ""
            sentences.append(
                f"the trained encoder is worse than {title}: {worse} on {result.test_instances:,} instances"
            )
    singles = [subset for subset in result.subsets if len(subset.modalities) == 1]
    for subset in singles if len(singles) > 1 else ():
        for kind in SINGLE_PROBES:
            fused = {name: subset.fused[name] for name in COMPARED_METRICS if name in subset.fused}
            if worse := _list_worse(fused, subset.scores.get(kind, {})):
                text = f"all modalities together are worse than {subset.modalities[0]} alone ({SUBSET_PROBES[kind]})"
                sentences.append(f"{text}: {worse} on {subset.instances:,} instances")
    return tuple(sentences)


def _collect_metrics(score: Score) -> Metrics:
    if score.probes:
        names = [name for name in COMPARED_METRICS if name in score.probes[0]]
        return {name: statistics.fmean(probe[name] for probe in score.probes) for name in names}
    metrics = {"linear probe": score.linear, name_knn(score.knn_k): score.knn}
    return {title: value for title, value in metrics.items() if value is not None}


def _list_worse(trained: Mapping[str, float], other: Mapping[str, float]) -> str:
    """List the metrics, with both values, in which `other` is better."""
    sign = {"MAE": -1}
    worse = {name: value for name, value in trained.items() if sign.get(name, 1) * (other.get(name, value) - value) > 0}
    return ", ".join(
        f"{name} {format_metric(name, [v])} against {format_metric(name, [other[name]])}" for name, v in worse.items()
    )
