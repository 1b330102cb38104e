"""The paper's tables and figures as grids of trials, its theorem and principles as measurements."""

from manyviews.reproduce.estimate import estimate_seconds
from manyviews.reproduce.experiments import EXPERIMENTS, ReproduceOptions
from manyviews.reproduce.run_table import (
    ANALYSES,
    UNJUDGED_SCALES,
    Outcome,
    get_experiment,
    list_lr_searched,
    make_lr_search_trials,
    make_trials,
    reproduce_table,
)
from manyviews.reproduce.runner import TrialRunner
from manyviews.reproduce.trials import Trial

__all__ = [
    "ANALYSES",
    "EXPERIMENTS",
    "UNJUDGED_SCALES",
    "Outcome",
    "ReproduceOptions",
    "Trial",
    "TrialRunner",
    "estimate_seconds",
    "get_experiment",
    "list_lr_searched",
    "make_lr_search_trials",
    "make_trials",
    "reproduce_table",
]
