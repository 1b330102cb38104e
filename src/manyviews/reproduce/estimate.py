"""Estimated training time of trials, from one timed step of each kind."""

import dataclasses
from collections.abc import Sequence

from manyviews.api import estimate_training_seconds
from manyviews.data import DatasetDict
from manyviews.reproduce.trials import Trial
from manyviews.training import Config, load_data, with_absolute_paths

DATA_FIELDS = ("data", "class_list", "raise_on_corrupt", "follow_symlinks", "max_instances", "subset")
"""Fields of a config that determine its data."""


def estimate_seconds(trials: Sequence[Trial]) -> tuple[dict[str, float], dict[str, str]]:
    """Return the seconds of training by trial name and, for trials that cannot be trained, the reason.

    Trials that differ only in their seed take equally long, so only one of them is timed.
    """
    names: dict[Config, list[str]] = {}
    for trial in trials:
        names.setdefault(dataclasses.replace(with_absolute_paths(trial.config), seed=0), []).append(trial.name)
    seconds: dict[str, float] = {}
    failed: dict[str, str] = {}
    data: dict[Config, DatasetDict] = {}
    for config, same_names in names.items():
        data_config = Config(**{name: getattr(config, name) for name in DATA_FIELDS})
        try:
            if data_config not in data:
                data = {data_config: load_data(data_config)}  # only one dataset is kept in memory
            seconds |= dict.fromkeys(same_names, estimate_training_seconds(config, data[data_config]))
        except (ValueError, OSError) as error:
            failed |= dict.fromkeys(same_names, str(error))
    return seconds, failed
