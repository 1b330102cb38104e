"""The paper's tables and figures as grids of trials, its theorem and principles as measurements, and comparisons."""

from manyviews.reproduce.estimate import estimate_seconds as estimate_seconds
from manyviews.reproduce.experiments import EXPERIMENTS as EXPERIMENTS
from manyviews.reproduce.experiments import ReproduceOptions as ReproduceOptions
from manyviews.reproduce.run_table import get_experiment as get_experiment
from manyviews.reproduce.run_table import make_trials as make_trials
from manyviews.reproduce.run_table import reproduce_table as reproduce_table
from manyviews.reproduce.runner import TrialRunner as TrialRunner
from manyviews.reproduce.search import list_searched as list_searched
from manyviews.reproduce.search import make_search_trials as make_search_trials
from manyviews.reproduce.store import TrialStore as TrialStore
from manyviews.reproduce.table_files import ANALYSES as ANALYSES
from manyviews.reproduce.table_files import SMOKE_NOTE as SMOKE_NOTE
from manyviews.reproduce.table_files import Outcome as Outcome
from manyviews.reproduce.trials import Trial as Trial
