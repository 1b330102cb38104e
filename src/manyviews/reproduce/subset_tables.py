"""Tables for multimodal data: scores of every subset of modalities, and of baselines."""

import dataclasses
from collections.abc import Iterator, Sequence

from manyviews.evaluation import EvaluationResult, Representation, format_metric, make_subset_table
from manyviews.reproduce.store import TrialStore
from manyviews.reproduce.trials import Coordinates, Trial
from manyviews.utils import Table

BASELINES: tuple[Representation, ...] = ("majority", "raw_features", "untrained")


def make_subset_tables(trials: Sequence[Trial], store: TrialStore) -> Iterator[Table]:
    """Make a table for each table entry with subsets: mean and standard deviation over seeds."""
    for coords, results in _collect_results(trials, store):
        if table := make_subset_table(results):
            yield dataclasses.replace(table, title=f"{table.title}: {', '.join(map(str, coords.values()))}")


def make_baseline_tables(trials: Sequence[Trial], store: TrialStore) -> Iterator[Table]:
    """Tabulate scores without training: the majority, raw features, the untrained encoder."""
    rows = []
    for coords, results in _collect_results(trials, store):
        if scored := [result for result in results if "raw_features" in result.scores]:
            rows.append((str(coords["data"]), *(_format_score(scored, name) for name in BASELINES)))
    if rows:
        header = ("data", "majority", "raw features", "untrained encoder")
        yield Table.from_texts("Baselines: linear probe, or MAE", header, rows)


def _collect_results(
    trials: Sequence[Trial], store: TrialStore
) -> Iterator[tuple[Coordinates, list[EvaluationResult]]]:
    """Yield the coordinates of each table entry and the results of all its seeds."""
    for coords in dict.fromkeys(trial.coordinates for trial in trials):
        loaded = [trial.load_result(store) for trial in trials if trial.coordinates == coords]
        yield coords, [result for result in loaded if result is not None]


def _format_score(results: Sequence[EvaluationResult], name: Representation) -> str:
    scores = [result.scores[name] for result in results if name in result.scores]
    errors = [probe["MAE"] for score in scores for probe in score.probes]
    accuracies = [score.linear for score in scores if score.linear is not None]
    return format_metric("MAE", errors) if errors else format_metric("accuracy", accuracies) if accuracies else ""
