"""What the cells of a table gave: for each place and metric, a value of each seed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from manyviews.experiments.cells import Cell, Place

Found = dict[str, Any]


@dataclass(frozen=True)
class Metric:
    """A number of an evaluation."""

    name: str
    of: Callable[[Found], float | None]
    digits: int = 1
    higher: bool = True
    """Is better."""

    def told(self, values: Sequence[float]) -> str:
        """Mean, and deviation where there are several seeds."""
        mean = f"{statistics.fmean(values):.{self.digits}f}"
        return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.{self.digits}f}"


def score(representation: str, kind: str) -> Callable[[Found], float | None]:
    """A score in percent; of quantities the mean of the layers' accuracy of two classes."""

    def of(found: Found) -> float | None:
        scores = (found["scores"] or {}).get(representation)
        if scores is None:
            return None
        if "heads" not in scores:
            return 100 * scores[kind] if kind in scores else None
        names = [name for name in ("Has0_acc_2", "Mult_acc_2") if name in scores["heads"][0]]
        return 100 * statistics.fmean(head[names[0]] for head in scores["heads"]) if names else None

    return of


def _error(found: Found) -> float | None:
    scores = (found["scores"] or {}).get("trained encoder", {})
    return statistics.fmean(head["MAE"] for head in scores["heads"]) if "heads" in scores else None


def _geometry(name: str) -> Callable[[Found], float | None]:
    def of(found: Found) -> float | None:
        shape = (found["geometry"] or {}).get("z")
        if shape is None:
            return None
        return float(shape.get("all", shape)[name])

    return of


METRICS = {
    "linear": Metric("linear probe, %", score("trained encoder", "linear")),
    "knn": Metric("kNN, %", score("trained encoder", "knn")),
    "common": Metric("mean embedding, %", score("mean embedding", "linear")),
    "own": Metric("own layer, %", score("its own layer", "linear")),
    "mae": Metric("MAE", _error, 3, higher=False),
    "alignment": Metric("alignment", _geometry("alignment"), 3, higher=False),
    "uniformity": Metric("uniformity (Wasserstein)", _geometry("wasserstein"), 4, higher=False),
    "rank": Metric("rank", _geometry("rank"), 0),
    "rankme": Metric("RankMe", _geometry("rankme"), 1),
}


@dataclass
class Results:
    """Values by place and metric."""

    values: dict[tuple[tuple[str, str | int | float], ...], dict[str, list[float]]] = field(default_factory=dict)

    @classmethod
    def of(cls, cells: Iterable[Cell], folder: Path, metrics: Iterable[str]) -> Results:
        results = cls()
        names = list(metrics)
        for cell in cells:
            found = cell.found(folder)
            here = results.values.setdefault(tuple(cell.place.items()), {})
            for name in names if found is not None else ():
                value = METRICS[name].of(found or {})
                if value is not None:
                    here.setdefault(name, []).append(value)
        return results

    @property
    def places(self) -> list[Place]:
        return [dict(place) for place in self.values]

    def options(self, name: str) -> list[str | int | float]:
        """All values of a part of the places, in their order."""
        return list(dict.fromkeys(place[name] for place in self.places if name in place))

    def all(self, metric: str, **place: Any) -> list[float]:
        """Of each seed, at the one place that has these parts."""
        here = [
            values
            for key, values in self.values.items()
            if all(dict(key).get(name) == value for name, value in place.items())
        ]
        return here[0].get(metric, []) if len(here) == 1 else []

    def mean(self, metric: str, **place: Any) -> float | None:
        values = self.all(metric, **place)
        return statistics.fmean(values) if values else None
