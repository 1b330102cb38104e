"""The paper's losses, each at its best temperature: the paper fixes 0.5 for all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import product

from manyviews.reproduce.claims import Claim, claim_best
from manyviews.reproduce.experiments import CIFAR, MAIN_LOSSES, Experiment, ReproduceOptions, make_image_trials
from manyviews.reproduce.results import Results
from manyviews.reproduce.trials import Candidate, Level, Trial

VIEWS = 4
TEMPERATURES = (0.05, 0.1, 0.2, 0.3, 0.5, 1.0)


def make_temperature_trials(options: ReproduceOptions) -> Iterator[Trial]:
    """Make trials whose temperature is chosen on the validation split."""
    temperatures = (0.2, 0.5) if options.scale == "smoke" else TEMPERATURES
    candidates = tuple(Candidate.make(temperature=temperature) for temperature in temperatures)
    for trial in make_image_trials(options, MAIN_LOSSES, (VIEWS,), CIFAR):
        yield dataclasses.replace(trial, candidates=candidates)


def _make_temperature_claims(results: Results, data: Level) -> Iterator[Claim]:
    others = [loss for loss in MAIN_LOSSES[:-1] if loss in results.list_levels("loss")]
    for metric, other in product(("linear", "knn"), others):
        yield claim_best(results, metric, "mv-dhel", (other,), data=data, views=VIEWS)


TEMPERATURE = Experiment(
    "accuracy at 4 views with the best temperature of each loss",
    make_temperature_trials, ("linear", "knn"), ("data", "loss"), ("views",), _make_temperature_claims,
    is_in_paper=False,
)  # fmt: skip
