"""The best and the simplest loss on all images of CIFAR-10, trained ten times as long as in the other tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from manyviews.reproduce.claims import Claim, claim_best
from manyviews.reproduce.experiments import CIFAR, Experiment, ReproduceOptions, make_image_trials
from manyviews.reproduce.results import Results
from manyviews.reproduce.trials import Level, Trial

VIEWS = 4
LOSSES = ("pwe", "mv-dhel")
INSTANCES, EPOCHS = 50_000, 20


def make_longer_trials(options: ReproduceOptions) -> Iterator[Trial]:
    """Make trials on all images at scale laptop; the other scales have their own data and epochs."""
    if options.scale == "laptop":
        instances, epochs = options.max_instances or INSTANCES, options.epochs or EPOCHS
        options = dataclasses.replace(options, max_instances=instances, epochs=epochs)
    return make_image_trials(options, LOSSES, (VIEWS,), CIFAR)


def _make_longer_claims(results: Results, data: Level) -> Iterator[Claim]:
    for metric in ("linear", "knn"):
        yield claim_best(results, metric, LOSSES[1], LOSSES[:1], data=data, views=VIEWS)


LONGER = Experiment(
    "pwe and MV-DHEL at 4 views on all of CIFAR-10, for 20 epochs",
    make_longer_trials, ("linear", "knn"), ("data", "loss"), ("views",), _make_longer_claims,
    is_in_paper=False,
)  # fmt: skip
