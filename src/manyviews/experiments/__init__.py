"""The paper's tables and figures as grids of runs, and its theorem and principles as measurements."""

from manyviews.experiments.cells import Cell
from manyviews.experiments.grids import EXPERIMENTS, Options
from manyviews.experiments.launch import Launch
from manyviews.experiments.start import Outcome, reproduce

__all__ = ["EXPERIMENTS", "Cell", "Launch", "Options", "Outcome", "reproduce"]
