"""Results of a table's trials: values by coordinates, metric and seed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from manyviews.reproduce.trials import Coordinates, Trial

Result = dict[str, Any]


@dataclass(frozen=True)
class Metric:
    """A metric of an evaluation: one value, or one for each linear layer that was fitted."""

    name: str
    extract: Callable[[Result], list[float]]
    digits: int = 1
    higher_is_better: bool = True
    margin: float = 2.0
    """Smallest difference between two runs that counts with one seed, where no spread is known."""

    @property
    def sign(self) -> int:
        return 1 if self.higher_is_better else -1

    @property
    def short_name(self) -> str:
        """The name without the unit."""
        return self.name.partition(",")[0]

    def format(self, values: Sequence[float]) -> str:
        """Mean, and standard deviation of several values."""
        mean = f"{statistics.fmean(values):.{self.digits}f}"
        return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.{self.digits}f}"


def _extract_score(representation: str, kind: str) -> Callable[[Result], list[float]]:
    """A classification score in percent."""

    def extract(result: Result) -> list[float]:
        scores = (result["scores"] or {}).get(representation, {})
        return [100 * scores[kind]] if kind in scores else []

    return extract


def _extract_knn_k(result: Result) -> list[float]:
    scores = (result["scores"] or {}).get("trained encoder", {})
    return [scores["knn_k"]] if "knn_k" in scores else []


def _extract_probes(representation: str, metric: str, factor: float) -> Callable[[Result], list[float]]:
    """A regression metric of each fitted linear layer."""

    def extract(result: Result) -> list[float]:
        layers = (result["scores"] or {}).get(representation, {}).get("heads", [])
        return [factor * layer[metric] for layer in layers if metric in layer]

    return extract


def _extract_geometry(name: str) -> Callable[[Result], list[float]]:
    def extract(result: Result) -> list[float]:
        geometry = (result["geometry"] or {}).get("z")
        return [] if geometry is None else [float(geometry.get("all", geometry)[name])]

    return extract


METRICS = {
    "linear": Metric("linear probe, %", _extract_score("trained encoder", "linear")),
    "knn": Metric("kNN, %", _extract_score("trained encoder", "knn")),
    "knn_k": Metric("k of kNN", _extract_knn_k, 0),
    "common": Metric("mean embedding, %", _extract_score("mean embedding", "linear")),
    "own": Metric("own layer, %", _extract_score("its own layer", "linear")),
    "has0": Metric("Has0_acc_2, %", _extract_probes("trained encoder", "Has0_acc_2", 100)),
    "mult": Metric("Mult_acc_2, %", _extract_probes("trained encoder", "Mult_acc_2", 100)),
    "mae": Metric("MAE", _extract_probes("trained encoder", "MAE", 1), 3, higher_is_better=False, margin=0.02),
    "own-has0": Metric("Has0_acc_2 of its own layer, %", _extract_probes("its own layer", "Has0_acc_2", 100)),
    "own-mult": Metric("Mult_acc_2 of its own layer, %", _extract_probes("its own layer", "Mult_acc_2", 100)),
    "own-mae": Metric(
        "MAE of its own layer", _extract_probes("its own layer", "MAE", 1), 3, higher_is_better=False, margin=0.02
    ),
    "alignment": Metric("alignment", _extract_geometry("alignment"), 3, higher_is_better=False, margin=0.05),
    "uniformity": Metric(
        "uniformity (Wasserstein)", _extract_geometry("wasserstein"), 4, higher_is_better=False, margin=0.01
    ),
    "rank": Metric("rank", _extract_geometry("rank"), 0, margin=3),
    "rankme": Metric("RankMe", _extract_geometry("rankme"), 1),
}


@dataclass
class Results:
    """Values by coordinates and metric."""

    values: dict[Coordinates, dict[str, dict[int, list[float]]]] = field(default_factory=dict)
    """By coordinates, metric and seed: one value, or one for each linear layer."""

    @classmethod
    def collect(cls, trials: Iterable[Trial], folder: Path, metrics: Iterable[str]) -> Results:
        results = cls()
        names = list(metrics)
        for trial in trials:
            result = trial.load_result(folder)
            by_metric = results.values.setdefault(trial.coordinates, {})
            for name in names if result is not None else ():
                if values := METRICS[name].extract(result or {}):
                    by_metric.setdefault(name, {})[trial.config.seed] = values
        return results

    @property
    def coordinates(self) -> list[Coordinates]:
        return list(self.values)

    def list_levels(self, name: str) -> list[str | int | float]:
        """The distinct values of a coordinate, in order of appearance."""
        return list(dict.fromkeys(coords[name] for coords in self.coordinates if name in coords))

    def list_values(self, metric: str, **coords: Any) -> list[float]:
        """Values of all seeds and layers at the only coordinates that include these."""
        return list(chain.from_iterable(self._find_seeds(metric, coords).values()))

    def by_seed(self, metric: str, **coords: Any) -> dict[int, float]:
        """The value of each seed (mean over layers) at the only coordinates that include these."""
        return {seed: statistics.fmean(values) for seed, values in self._find_seeds(metric, coords).items()}

    def mean(self, metric: str, **coords: Any) -> float | None:
        values = self.list_values(metric, **coords)
        return statistics.fmean(values) if values else None

    def _find_seeds(self, metric: str, coords: Mapping[str, Any]) -> dict[int, list[float]]:
        matches = [values for key, values in self.values.items() if coords.items() <= key.items()]
        return matches[0].get(metric, {}) if len(matches) == 1 else {}
