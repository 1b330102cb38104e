"""Training in bfloat16 compared with 32 bits: the demo, and the best and the simplest loss on CIFAR-10."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import product

from manyviews.evaluation import EvaluationConfig
from manyviews.reproduce.claims import Claim, claim_not_worse
from manyviews.reproduce.experiments import CIFAR, Experiment, ReproduceOptions, add_seeds, make_image_trials
from manyviews.reproduce.results import Results
from manyviews.reproduce.trials import Coordinates, Level, Trial
from manyviews.training import RECIPES, ConfigError, Precision

VIEWS = 4
LOSSES = ("pwe", "mv-dhel")
PRECISIONS: tuple[Precision, Precision] = ("32", "bf16-mixed")
MARGIN = 1.0
"""Points of accuracy that bfloat16 may lose."""


def make_precision_trials(options: ReproduceOptions) -> Iterator[Trial]:
    """Make trials in 32 bits and in bfloat16 with the same seeds."""
    if options.precision != ReproduceOptions.precision:
        raise ConfigError("--precision does not apply to this table, which compares two")
    demo = dataclasses.replace(RECIPES["demo"], cpu_threads=1, evaluate_at_end=False)
    for precision in PRECISIONS:
        with_precision = dataclasses.replace(options, precision=precision)
        trials = [*make_image_trials(with_precision, LOSSES, (VIEWS,), CIFAR)]
        if options.scale == "laptop" and demo.loss in options.select_losses(LOSSES):
            coords = {"data": demo.data, "loss": demo.loss, "views": VIEWS}
            # Baselines do not depend on the precision of the training.
            eval_config = EvaluationConfig(label_fractions=(), baselines=precision == PRECISIONS[0])
            trials += add_seeds(dataclasses.replace(demo, precision=precision), eval_config, options, **coords)
        for trial in trials:
            yield dataclasses.replace(trial, coordinates=Coordinates(**trial.coordinates, precision=precision))


def _make_precision_claims(results: Results, data: Level) -> Iterator[Claim]:
    for metric, loss in product(("linear", "knn"), results.list_levels("loss")):
        if results.mean(metric, data=data, loss=loss, precision=PRECISIONS[0]) is not None:
            yield claim_not_worse(results, metric, "precision", *PRECISIONS[::-1], MARGIN, data=data, loss=loss)


PRECISION = Experiment(
    "bfloat16 compared with 32 bits: CIFAR-10, and the demo on the bundled photos",
    make_precision_trials, ("linear", "knn"), ("data", "loss"), ("precision",), _make_precision_claims,
    is_in_paper=False,
)  # fmt: skip
