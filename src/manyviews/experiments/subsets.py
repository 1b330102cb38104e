"""Tables of modalities: what each subset of them is worth, and what they are compared with."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from manyviews.evaluation.modalities import PROBES
from manyviews.experiments.cells import Cell
from manyviews.experiments.tables import Table

BESIDE = ("majority", "raw features", "untrained encoder")


def subset_tables(cells: Sequence[Cell], folder: Path) -> Iterator[Table]:
    """For each place whose evaluations have subsets: mean and deviation over seeds, accuracy in percent or MAE."""
    for place, found in _places(cells, folder):
        subsets = [one["subsets"] for one in found if one.get("subsets")]
        if not subsets:
            continue
        first = next(iter(subsets[0].values()))["scores"]
        metric = "accuracy" if "accuracy" in first["own"] else "MAE"
        rows = []
        for name in subsets[0]:
            scores = [one[name]["scores"] for one in subsets if name in one]
            rows.append((name, *(_told([one[kind][metric] for one in scores], metric) for kind in first)))
        title = f"{metric} of every subset of modalities: {', '.join(str(value) for _, value in place)}"
        yield Table(title, ("modalities", *(PROBES[kind] for kind in first)), tuple(rows))


def check_subsets(found: dict[str, Any]) -> None:
    """Raise if an evaluation is not as the tables here take it."""
    for one in (found.get("subsets") or {}).values():
        for scores in one["scores"].values():
            _told([scores["accuracy" if "accuracy" in scores else "MAE"]], "MAE")
    for scores in ((found["scores"] or {}).get(name) for name in BESIDE):
        if scores is not None:
            _worth([scores])


def compared_with(cells: Sequence[Cell], folder: Path) -> Iterator[Table]:
    """The scores of who has learned nothing: the majority, raw features, the untrained encoder."""
    rows = []
    for place, found in _places(cells, folder):
        scores = [one["scores"] for one in found if one.get("scores") and "raw features" in one["scores"]]
        if scores:
            rows.append((str(dict(place)["data"]), *(_worth([one[name] for one in scores]) for name in BESIDE)))
    if rows:
        yield Table("What it is compared with: linear probe in %, or MAE", ("data", *BESIDE), tuple(rows))


def _places(cells: Sequence[Cell], folder: Path) -> Iterator[tuple[tuple[tuple[str, Any], ...], list[dict[str, Any]]]]:
    """For each place what was found there, of all seeds."""
    for place in dict.fromkeys(tuple(cell.place.items()) for cell in cells):
        alike = [cell.found(folder) for cell in cells if tuple(cell.place.items()) == place]
        yield place, [one for one in alike if one is not None]


def _worth(scores: Sequence[dict[str, Any]]) -> str:
    if "heads" in scores[0]:
        return _told([head["MAE"] for one in scores for head in one["heads"]], "MAE")
    return _told([one["linear"] for one in scores], "accuracy")


def _told(values: Sequence[float], metric: str) -> str:
    times, digits = (100, 1) if metric == "accuracy" else (1, 3)
    mean = f"{times * statistics.fmean(values):.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ± {times * statistics.stdev(values):.{digits}f}"
