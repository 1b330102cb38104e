"""Estimated training time of trials, from one timed step of each kind."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from manyviews.data import DatasetDict, load_dataset
from manyviews.reproduce.trials import Trial
from manyviews.runs import Run
from manyviews.training import (
    Config,
    Trainer,
    build_model_and_loss,
    create_fabric,
    limit_cpu_threads,
    limit_instances,
    resolve_config,
    with_absolute_paths,
)


def estimate_seconds(trials: Sequence[Trial]) -> dict[str, float | str]:
    """By trial name: seconds of training on this machine, without evaluation, or the reason why it cannot be trained.

    Trials that differ only in their seed take equally long, so only one of them is timed.
    """
    estimates: dict[Config, float | str] = {}
    data: dict[tuple[object, ...], DatasetDict] = {}
    seconds: dict[str, float | str] = {}
    for trial in trials:
        key = dataclasses.replace(with_absolute_paths(trial.config), seed=0)
        if key not in estimates:
            source = (key.data, key.class_list, key.raise_on_corrupt, key.follow_symlinks)
            try:
                if source not in data:
                    loaded = load_dataset(
                        key.data,
                        class_list=key.class_list,
                        raise_on_corrupt=key.raise_on_corrupt,
                        follow_symlinks=key.follow_symlinks,
                    )
                    data = {source: loaded}
                estimates[key] = _time_step(key, limit_instances(data[source], key))
            except (ValueError, OSError) as error:
                estimates[key] = str(error)
        seconds[trial.name] = estimates[key]
    return seconds


def _time_step(config: Config, data: DatasetDict) -> float:
    """Seconds of the second step (the first one warms up) times the number of steps."""
    with tempfile.TemporaryDirectory() as folder:
        fabric = create_fabric(config)
        config = resolve_config(config, data, fabric.world_size)
        run = Run.create(Path(folder) / "run", config, overwrite=False)
        with limit_cpu_threads(config, data):
            trainer = Trainer(run, data, *build_model_and_loss(config, data), fabric)
            for _ in range(2):
                start = time.perf_counter()
                trainer.step(*next(trainer.iterate_batches(0)))
                elapsed = time.perf_counter() - start
        return elapsed * trainer.total_steps
