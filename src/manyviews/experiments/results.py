"""What the cells of a table gave: for each place and metric, a value of each seed (and layer)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from manyviews.experiments.cells import Cell, Place

Found = dict[str, Any]


@dataclass(frozen=True)
class Metric:
    """Numbers of an evaluation: one, or one of each linear layer that was fitted."""

    name: str
    of: Callable[[Found], list[float]]
    digits: int = 1
    higher: bool = True
    """Is better."""
    margin: float = 2.0
    """Smallest difference between two trainings that may be more than chance, where one seed shows no spread."""

    @property
    def sign(self) -> int:
        return 1 if self.higher else -1

    @property
    def plain(self) -> str:
        """Its name without the unit."""
        return self.name.partition(",")[0]

    def told(self, values: Sequence[float]) -> str:
        """Mean, and deviation where there are several."""
        mean = f"{statistics.fmean(values):.{self.digits}f}"
        return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.{self.digits}f}"


def _score(representation: str, kind: str) -> Callable[[Found], list[float]]:
    """Of classes, in percent."""

    def of(found: Found) -> list[float]:
        scores = (found["scores"] or {}).get(representation, {})
        return [100 * scores[kind]] if kind in scores else []

    return of


def _knn_k(found: Found) -> list[float]:
    scores = (found["scores"] or {}).get("trained encoder", {})
    return [scores["knn_k"]] if "knn_k" in scores else []


def _layers(representation: str, metric: str, times: float) -> Callable[[Found], list[float]]:
    """Of quantities, from each layer."""

    def of(found: Found) -> list[float]:
        layers = (found["scores"] or {}).get(representation, {}).get("heads", [])
        return [times * layer[metric] for layer in layers if metric in layer]

    return of


def _geometry(name: str) -> Callable[[Found], list[float]]:
    def of(found: Found) -> list[float]:
        shape = (found["geometry"] or {}).get("z")
        return [] if shape is None else [float(shape.get("all", shape)[name])]

    return of


METRICS = {
    "linear": Metric("linear probe, %", _score("trained encoder", "linear")),
    "knn": Metric("kNN, %", _score("trained encoder", "knn")),
    "knn_k": Metric("k of kNN", _knn_k, 0),
    "common": Metric("mean embedding, %", _score("mean embedding", "linear")),
    "own": Metric("own layer, %", _score("its own layer", "linear")),
    "has0": Metric("Has0_acc_2, %", _layers("trained encoder", "Has0_acc_2", 100)),
    "mult": Metric("Mult_acc_2, %", _layers("trained encoder", "Mult_acc_2", 100)),
    "mae": Metric("MAE", _layers("trained encoder", "MAE", 1), 3, higher=False, margin=0.02),
    "own-has0": Metric("Has0_acc_2 of its own layer, %", _layers("its own layer", "Has0_acc_2", 100)),
    "own-mult": Metric("Mult_acc_2 of its own layer, %", _layers("its own layer", "Mult_acc_2", 100)),
    "own-mae": Metric("MAE of its own layer", _layers("its own layer", "MAE", 1), 3, higher=False, margin=0.02),
    "alignment": Metric("alignment", _geometry("alignment"), 3, higher=False, margin=0.05),
    "uniformity": Metric("uniformity (Wasserstein)", _geometry("wasserstein"), 4, higher=False, margin=0.01),
    "rank": Metric("rank", _geometry("rank"), 0, margin=3),
    "rankme": Metric("RankMe", _geometry("rankme"), 1),
}


@dataclass
class Results:
    """Values by place and metric."""

    values: dict[tuple[tuple[str, str | int | float], ...], dict[str, dict[int, list[float]]]] = field(
        default_factory=dict
    )
    """Of each training that is done, by its seed: one value, or several of several layers."""

    @classmethod
    def of(cls, cells: Iterable[Cell], folder: Path, metrics: Iterable[str]) -> Results:
        results = cls()
        names = list(metrics)
        for cell in cells:
            found = cell.found(folder)
            here = results.values.setdefault(tuple(cell.place.items()), {})
            for name in names if found is not None else ():
                if values := METRICS[name].of(found or {}):
                    here.setdefault(name, {})[cell.config.seed] = values
        return results

    @property
    def places(self) -> list[Place]:
        return [dict(place) for place in self.values]

    def options(self, name: str) -> list[str | int | float]:
        """All values of a part of the places, in their order."""
        return list(dict.fromkeys(place[name] for place in self.places if name in place))

    def all(self, metric: str, **place: Any) -> list[float]:
        """Of each seed (and layer), at the one place that has these parts."""
        return list(chain.from_iterable(self._seeds(metric, place).values()))

    def by_seed(self, metric: str, **place: Any) -> dict[int, float]:
        """Of each seed (the mean of its layers), at the one place that has these parts."""
        return {seed: statistics.fmean(values) for seed, values in self._seeds(metric, place).items()}

    def mean(self, metric: str, **place: Any) -> float | None:
        values = self.all(metric, **place)
        return statistics.fmean(values) if values else None

    def _seeds(self, metric: str, place: Place) -> dict[int, list[float]]:
        here = [values for key, values in self.values.items() if place.items() <= dict(key).items()]
        return here[0].get(metric, {}) if len(here) == 1 else {}
