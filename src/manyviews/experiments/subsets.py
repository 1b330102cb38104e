"""Tables of what every subset of modalities is worth, from the cells that looked at it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from manyviews.experiments.cells import Cell
from manyviews.experiments.tables import Table

KINDS = {
    "raw": "raw features, own probe",
    "own": "own probe",
    "filled": "one probe, mean filled in",
    "common": "one probe, common space",
}


def subset_tables(cells: Sequence[Cell], folder: Path) -> Iterator[Table]:
    """For each place whose evaluations have subsets: the mean over seeds, accuracy in percent or MAE."""
    for place in dict.fromkeys(tuple(cell.place.items()) for cell in cells):
        alike = [cell.found(folder) for cell in cells if tuple(cell.place.items()) == place]
        found = [one["subsets"] for one in alike if one is not None and one.get("subsets")]
        if not found:
            continue
        metric = "accuracy" if "accuracy" in next(iter(found[0].values()))["own"] else "MAE"
        rows = []
        for name in found[0]:
            means = [statistics.fmean(one[name][kind][metric] for one in found) for kind in KINDS]
            rows.append((name, *(f"{100 * mean:.1f}" if metric == "accuracy" else f"{mean:.3f}" for mean in means)))
        where = ", ".join(str(value) for _, value in place)
        title = f"{metric} of every subset of modalities: {where}"
        yield Table(title, ("modalities", *KINDS.values()), tuple(rows))
