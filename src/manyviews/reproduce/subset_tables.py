"""Tables for multimodal data: scores of every subset of modalities, and of baselines."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from manyviews.evaluation import PROBE_LABELS
from manyviews.reproduce.table_formats import Table
from manyviews.reproduce.trials import Coordinates, Trial

BASELINES = ("majority", "raw features", "untrained encoder")


def make_subset_tables(trials: Sequence[Trial], folder: Path) -> Iterator[Table]:
    """For each table entry with subsets: mean and standard deviation over seeds of the accuracy (percent) or MAE."""
    for coords, results in _collect_results(trials, folder):
        subsets = [result["subsets"] for result in results if result.get("subsets")]
        if not subsets:
            continue
        first = next(iter(subsets[0].values()))["scores"]
        metric = "accuracy" if "accuracy" in first["own"] else "MAE"
        rows = []
        for name in subsets[0]:
            scores = [by_name[name]["scores"] for by_name in subsets if name in by_name]
            rows.append(
                (name, *(_format_mean_std([score[kind][metric] for score in scores], metric) for kind in first))
            )
        title = f"{metric} of every subset of modalities: {', '.join(map(str, coords.values()))}"
        yield Table(title, ("modalities", *(PROBE_LABELS[kind] for kind in first)), tuple(rows))


def check_subsets(result: dict[str, Any]) -> None:
    """Raise if an evaluation does not have the structure that these tables need."""
    for subset in (result.get("subsets") or {}).values():
        for scores in subset["scores"].values():
            _format_mean_std([scores["accuracy" if "accuracy" in scores else "MAE"]], "MAE")
    for scores in ((result["scores"] or {}).get(name) for name in BASELINES):
        if scores is not None:
            _format_score([scores])


def make_baseline_tables(trials: Sequence[Trial], folder: Path) -> Iterator[Table]:
    """Scores without training: the majority, raw features, the untrained encoder."""
    rows = []
    for coords, results in _collect_results(trials, folder):
        scores = [result["scores"] for result in results if "raw features" in (result.get("scores") or {})]
        if scores:
            rows.append(
                (str(coords["data"]), *(_format_score([score[name] for score in scores]) for name in BASELINES))
            )
    if rows:
        yield Table("Baselines: linear probe in %, or MAE", ("data", *BASELINES), tuple(rows))


def _collect_results(trials: Sequence[Trial], folder: Path) -> Iterator[tuple[Coordinates, list[dict[str, Any]]]]:
    """The coordinates of each table entry and the results of all its seeds."""
    for coords in dict.fromkeys(trial.coordinates for trial in trials):
        loaded = [trial.load_result(folder) for trial in trials if trial.coordinates == coords]
        yield coords, [result for result in loaded if result is not None]


def _format_score(scores: Sequence[dict[str, Any]]) -> str:
    if "heads" in scores[0]:
        return _format_mean_std([head["MAE"] for score in scores for head in score["heads"]], "MAE")
    return _format_mean_std([score["linear"] for score in scores], "accuracy")


def _format_mean_std(values: Sequence[float], metric: str) -> str:
    factor, digits = (100, 1) if metric == "accuracy" else (1, 3)
    mean = f"{factor * statistics.fmean(values):.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ± {factor * statistics.stdev(values):.{digits}f}"
