"""The losses of the paper compared with those of others, at equal encoder cost and with an equal search for each.

Every loss has the same data, views, epochs and model, so that views x instances x epochs are equal. Each has the same
number of search trials: its temperature, or its weight if it has no temperature, and the learning rate. The optimizer
is AdamW, whose steps do not depend on the scale of a loss.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from manyviews.data import DatasetDict, as_path, load_dataset
from manyviews.evaluation import EvaluationConfig
from manyviews.loading import ViewSpec
from manyviews.losses import get_loss
from manyviews.reproduce.claims import Claim, claim_best
from manyviews.reproduce.experiments import (
    Experiment,
    ReproduceOptions,
    add_seeds,
    get_image_config,
    get_multimodal_config,
    is_multimodal,
)
from manyviews.reproduce.results import Results
from manyviews.reproduce.trials import Candidate, Level, Trial
from manyviews.training import Config, ConfigError

VIEWS = 3
"""Views of an image: TRIANGLE takes three."""
PAPER_LOSSES = ("pwe-infonce", "avg-infonce", "pvc", "mv-infonce", "mv-dhel")
JOINT_LOSSES = ("prod-dhel", "mv-dhel+0.5*prod-dhel", "mv-infonce+0.5*prod-infonce")
OTHER_LOSSES = ("symile", "gram", "triangle", "pmrl", "mmcr", "emp-ssl", "lejepa")
RIVAL_LOSSES = (*PAPER_LOSSES, *JOINT_LOSSES, *OTHER_LOSSES)
WEIGHTS: dict[str, tuple[str, tuple[float, ...]]] = {
    "mmcr": ("local_weight", (0.0, 0.01, 0.1)),
    "emp-ssl": ("invariance_weight", (200.0, 50.0, 800.0)),
    "lejepa": ("weight", (0.02, 0.1, 0.005)),
}
"""The option that is searched, for losses without temperature; the released value is the first."""
TEMPERATURES: dict[str, tuple[float, ...]] = dict.fromkeys(("symile", "gram", "triangle", "pmrl"), (1.0, 3.0, 0.3))
"""Factors of the default temperature; those of other losses, whose default is 0.5, are 1, 0.4 and 0.2."""
IMAGE_LEARNING_RATES = MODALITY_LEARNING_RATES = (1e-3, 3e-3)


def make_candidates(loss: str, learning_rates: Sequence[float], count: int) -> tuple[Candidate, ...]:
    """Make the first `count` candidates of a loss, with the defaults first.

    Examples:
        >>> [str(candidate) for candidate in make_candidates("mv-dhel", (1e-3, 3e-3), 2)]
        ['temperature 0.5, learning rate 0.001', 'temperature 0.2, learning rate 0.001']
    """
    settings: list[dict[str, Any]]
    if loss in WEIGHTS:
        name, weights = WEIGHTS[loss]
        settings = [{"loss_options": (f"{name}={weight:g}",)} for weight in weights]
    else:
        default = Config(loss=loss).with_loss_defaults().temperature
        assert default is not None
        factors = TEMPERATURES.get(loss, (1.0, 0.4, 0.2))
        settings = [{"temperature": round(factor * default, 6)} for factor in factors]
    grid = product(range(len(settings)), range(len(learning_rates)))
    order = sorted(grid, key=lambda index: (sum(index), index[1]))
    if count > len(order):
        raise ConfigError(f"search_trials must be at most {len(order)}, got {count}")
    return tuple(Candidate.make(**settings[i], learning_rate=learning_rates[j]) for i, j in order[:count])


def make_rival_trials(options: ReproduceOptions) -> Iterator[Trial]:
    """Make the trials of images, and of modalities."""
    count = 2 if options.scale == "smoke" else options.search_trials
    losses = options.select_losses(RIVAL_LOSSES)
    if options.views and options.views != (VIEWS,):
        raise ConfigError(f"this table has {VIEWS} views of images, which all its losses take")
    for name, path in options.resolve_datasets(_get_default_datasets(options)):
        multimodal = is_multimodal(path) or path == "digits"
        config = get_multimodal_config(options.scale) if multimodal else get_image_config(options.scale)
        config = dataclasses.replace(config, data=path, views=() if multimodal else (str(VIEWS),), optimizer="adamw")
        config = dataclasses.replace(config, temperature=None)
        # Limits on image training do not apply to multimodal data.
        limits = dataclasses.replace(options, max_instances=None, epochs=None) if multimodal else options
        rates = MODALITY_LEARNING_RATES if multimodal else IMAGE_LEARNING_RATES
        num_views = len(ViewSpec.parse(()).resolve(_load(path)).items) if multimodal else VIEWS
        eval_config = EvaluationConfig(label_fractions=(), baselines=False, modality_subsets=False)
        for loss in losses:
            if not get_loss(loss).min_views <= num_views <= get_loss(loss).max_views:
                continue
            candidates = make_candidates(loss, rates, count)
            loss_config = limits.apply(dataclasses.replace(config, loss=loss))
            for trial in add_seeds(loss_config, eval_config, options, data=name, loss=loss):
                yield dataclasses.replace(trial, candidates=candidates)


def _load(path: str) -> DatasetDict:
    return load_dataset(as_path(path) or path)


def _get_default_datasets(options: ReproduceOptions) -> tuple[str, ...]:
    return ("digits",) if options.scale == "smoke" else ("cifar10", "digits")


def _make_rival_claims(results: Results, data: Level) -> Iterator[Claim]:
    metric = "mae" if results.mean("mae", data=data, loss="mv-dhel") is not None else "linear"
    for winner in ("mv-dhel", *JOINT_LOSSES[1:]):
        yield claim_best(results, metric, winner, OTHER_LOSSES, data=data)
    yield claim_best(results, metric, "mv-dhel", PAPER_LOSSES[:-1], data=data)


RIVALS = Experiment(
    "the paper's losses compared with those of others, each with its own search, on images and modalities",
    make_rival_trials, ("linear", "knn", "shared", "has0", "mult", "mae"), ("loss",), ("data",), _make_rival_claims,
    has_search=True, is_in_paper=False,
)  # fmt: skip
