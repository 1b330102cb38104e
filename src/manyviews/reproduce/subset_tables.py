"""Tables of what some trials evaluate in addition: every subset of modalities, and baselines."""

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


def make_baseline_tables(trials: Sequence[Trial], store: TrialStore, with_knn: bool = False) -> Iterator[Table]:
    """Tabulate scores without training: the majority, raw features, the untrained encoder."""
    scored: dict[str, list[EvaluationResult]] = {}
    for coords, results in _collect_results(trials, store):
        if with_baselines := [result for result in results if "raw_features" in result.scores]:
            scored[str(coords["data"])] = with_baselines
    header = ("data", "majority", "raw features", "untrained encoder")
    for title, format_score in (("linear probe, or MAE", _format_score), ("kNN", _format_knn))[: 1 + with_knn]:
        rows = [(data, *(format_score(results, name) for name in BASELINES)) for data, results in scored.items()]
        if rows:
            yield Table.from_texts(f"Baselines: {title}", header, rows)


def _collect_results(
    trials: Sequence[Trial], store: TrialStore
) -> Iterator[tuple[Coordinates, list[EvaluationResult]]]:
    """Yield the coordinates of each table entry and the results of all its seeds."""
    for coords in dict.fromkeys(trial.coordinates for trial in trials):
        loaded = [trial.load_result(store) for trial in trials if trial.coordinates == coords]
        yield coords, [result for result in loaded if result is not None]


def _format_knn(results: Sequence[EvaluationResult], name: Representation) -> str:
    scores = (result.scores.get(name) for result in results)
    values = [score.knn for score in scores if score is not None and score.knn is not None]
    return format_metric("accuracy", values) if values else ""


def _format_score(results: Sequence[EvaluationResult], name: Representation) -> str:
    scores = [result.scores[name] for result in results if name in result.scores]
    errors = [probe["MAE"] for score in scores for probe in score.probes]
    accuracies = [score.linear for score in scores if score.linear is not None]
    return format_metric("MAE", errors) if errors else format_metric("accuracy", accuracies) if accuracies else ""
