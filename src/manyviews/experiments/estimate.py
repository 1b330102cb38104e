"""How long cells will take, from a timed step of each kind."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from manyviews.data import Dataset, load_dataset
from manyviews.experiments.cells import Cell
from manyviews.training import Config, Run
from manyviews.training.journal import Journal
from manyviews.training.loop import Training
from manyviews.training.setup import built, fitted, launched, located, threads
from manyviews.training.source import limit_data


def seconds_of(cells: Sequence[Cell]) -> dict[str, float | str]:
    """Seconds of training that each cell takes here, by its name, or why it cannot be trained; without the evaluation.

    Cells that differ in their seed alone take as long as each other, so that one of them is timed.
    """
    known: dict[Config, float | str] = {}
    data: dict[tuple[object, ...], Dataset] = {}
    found: dict[str, float | str] = {}
    for cell in cells:
        alike = dataclasses.replace(located(cell.config), seed=0)
        if alike not in known:
            source = (alike.data, alike.classes, alike.strict, alike.follow_links)
            try:
                if source not in data:
                    loaded = load_dataset(
                        alike.data, classes=alike.classes, strict=alike.strict, follow_links=alike.follow_links
                    )
                    data = {source: loaded}
                known[alike] = _timed(alike, limit_data(data[source], alike))
            except (ValueError, OSError) as error:
                known[alike] = str(error)
        found[cell.name] = known[alike]
    return found


def _timed(config: Config, data: Dataset) -> float:
    """Of the second step, times all steps: the first one warms up."""
    with tempfile.TemporaryDirectory() as folder:
        fabric = launched(config)
        config = fitted(config, data, fabric.world_size)
        run = Run.create(Path(folder) / "run", config, overwrite=False)
        with Journal(run.path / "log.txt", silent=True, quiet=True) as journal, threads(config, data):
            training = Training(run, data, *built(config, data), fabric, journal)
            for _ in range(2):
                started = time.perf_counter()
                training.step(*next(training.batches(0)))
                taken = time.perf_counter() - started
        return taken * training.steps
