"""Results of a table's trials: values by coordinates, metric and seed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from manyviews.evaluation import EvaluationResult, Representation, Score
from manyviews.metrics import ALL_OTHERS
from manyviews.reproduce.store import TrialStore
from manyviews.reproduce.trials import Coordinates, Trial
from manyviews.utils import format_mean_std

Extract = Callable[[EvaluationResult], list[float]]


@dataclass(frozen=True)
class Metric:
    """A metric of an evaluation: one value, or one for each linear layer that was fitted."""

    name: str
    extract: Extract
    digits: int = 1
    higher_is_better: bool = True

    @property
    def sign(self) -> int:
        return 1 if self.higher_is_better else -1

    @property
    def short_name(self) -> str:
        """The name without the unit."""
        return self.name.partition(",")[0]

    def format(self, values: Sequence[float]) -> str:
        """Format the mean, and the standard deviation of several values."""
        return format_mean_std(values, self.digits)


def extract_score(kind: str, representation: Representation = "trained", factor: float = 100) -> Extract:
    """Make a function that extracts a classification score, in percent."""

    def extract(result: EvaluationResult) -> list[float]:
        value = getattr(result.scores.get(representation, Score()), kind)
        return [] if value is None else [factor * value]

    return extract


def _extract_probes(metric: str, representation: Representation = "trained", factor: float = 100) -> Extract:
    """Make a function that extracts a regression metric of each linear probe, in percent."""

    def extract(result: EvaluationResult) -> list[float]:
        probes = result.scores.get(representation, Score()).probes
        return [factor * probe[metric] for probe in probes if metric in probe]

    return extract


def _extract_geometry(name: str) -> Extract:
    def extract(result: EvaluationResult) -> list[float]:
        value = getattr(result.get_geometry("z"), name, None)
        return [] if value is None else [float(value)]

    return extract


def _extract_recall(from_all_others: bool) -> Extract:
    """Make a function that extracts the mean recall at 1 of every target: by each other modality, or by all of them."""

    def extract(result: EvaluationResult) -> list[float]:
        pairs = [pair for pair in result.retrieval if (pair.source == ALL_OTHERS) == from_all_others]
        recall = [pair.recall["1"] for pair in pairs if "1" in pair.recall]
        return [100 * statistics.fmean(recall)] if recall else []

    return extract


METRICS = {
    "linear": Metric("linear probe, %", extract_score("linear")),
    "knn": Metric("kNN, %", extract_score("knn")),
    "knn_k": Metric("k of kNN", extract_score("knn_k", factor=1), 0),
    "shared": Metric("mean embedding, %", extract_score("linear", "mean_embedding")),
    "head": Metric("supervised head, %", extract_score("linear", "supervised_head")),
    "has0": Metric("Has0_acc_2, %", _extract_probes("Has0_acc_2")),
    "mult": Metric("Mult_acc_2, %", _extract_probes("Mult_acc_2")),
    "mae": Metric("MAE", _extract_probes("MAE", factor=1), 3, higher_is_better=False),
    "head-has0": Metric("Has0_acc_2 of the supervised head, %", _extract_probes("Has0_acc_2", "supervised_head")),
    "head-mult": Metric("Mult_acc_2 of the supervised head, %", _extract_probes("Mult_acc_2", "supervised_head")),
    "head-mae": Metric("MAE of the supervised head", _extract_probes("MAE", "supervised_head", 1), 3, False),
    "recall": Metric("retrieval by one other modality, R@1, %", _extract_recall(False)),
    "recall-others": Metric("retrieval by all other modalities, R@1, %", _extract_recall(True)),
    "alignment": Metric("alignment", _extract_geometry("alignment"), 3, higher_is_better=False),
    "uniformity": Metric("uniformity (Wasserstein)", _extract_geometry("wasserstein"), 4, higher_is_better=False),
    "rank": Metric("rank", _extract_geometry("rank"), 0),
    "rankme": Metric("RankMe", _extract_geometry("rankme"), 1),
}


@dataclass
class Results:
    """Values by coordinates and metric."""

    values: dict[Coordinates, dict[str, dict[int, list[float]]]] = field(default_factory=dict)
    """By coordinates, metric and seed: one value, or one for each linear layer."""

    @classmethod
    def collect(cls, trials: Iterable[Trial], store: TrialStore, metrics: Iterable[str]) -> Results:
        results = cls()
        names = list(metrics)
        for trial in trials:
            result = trial.load_result(store)
            by_metric = results.values.setdefault(trial.coordinates, {})
            if result is None:
                continue
            for name in names:
                if values := METRICS[name].extract(result):
                    by_metric.setdefault(name, {})[trial.config.seed] = values
        return results

    @property
    def coordinates(self) -> list[Coordinates]:
        return list(self.values)

    def list_levels(self, name: str) -> list[str | int | float]:
        """List the distinct values of a coordinate, in order of appearance."""
        return list(dict.fromkeys(coords[name] for coords in self.coordinates if name in coords))

    def list_values(self, metric: str, **coords: Any) -> list[float]:
        """List the values of all seeds and layers at the only coordinates that include these."""
        return list(chain.from_iterable(self._find_seeds(metric, coords).values()))

    def by_seed(self, metric: str, **coords: Any) -> dict[int, float]:
        """Return the value of each seed (mean over layers) at the only coordinates that include these."""
        return {seed: statistics.fmean(values) for seed, values in self._find_seeds(metric, coords).items()}

    def mean(self, metric: str, **coords: Any) -> float | None:
        values = self.list_values(metric, **coords)
        return statistics.fmean(values) if values else None

    def _find_seeds(self, metric: str, coords: Mapping[str, Any]) -> dict[int, list[float]]:
        matches = [values for key, values in self.values.items() if coords.items() <= key.items()]
        return matches[0].get(metric, {}) if len(matches) == 1 else {}
