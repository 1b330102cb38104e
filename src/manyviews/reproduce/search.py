"""Search of hyper-parameters: each candidate is tried with the first seed, and the validation split decides."""

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from manyviews.data import load_dataset
from manyviews.evaluation import EvaluationConfig
from manyviews.reproduce.results import METRICS
from manyviews.reproduce.runner import TrialRunner
from manyviews.reproduce.store import TrialStore
from manyviews.reproduce.trials import Candidate, Coordinates, Trial
from manyviews.training import ConfigError
from manyviews.utils import Table

SEARCH_NOTE = "Search with seed 0: validation score (accuracy in %, or -MAE) of each candidate"


def list_searched(trials: Sequence[Trial]) -> list[Trial]:
    """List the trials whose hyper-parameters are searched."""
    return [trial for trial in trials if trial.candidates]


def make_search_trials(trials: Sequence[Trial]) -> dict[tuple[Coordinates, Candidate], Trial]:
    """Make a trial of every candidate with the first seed, by coordinates and candidate."""
    eval_config = EvaluationConfig(label_fractions=(), baselines=False, modality_subsets=False, split="valid")
    return {
        (trial.coordinates, candidate): Trial(candidate.apply(trial.config), eval_config, trial.coordinates)
        for trial in trials
        if trial.config.seed == 0
        for candidate in trial.candidates
    }


@dataclass(frozen=True)
class Selection:
    """The result of a search: trials with their best candidates, and trials whose search is not finished."""

    trials: list[Trial]
    unselected: list[Trial]
    table: Table
    failed: dict[str, str]


def select_candidates(trials: Sequence[Trial], runner: TrialRunner) -> Selection:
    """Set each trial to the best of its candidates on the validation split with the first seed.

    Candidates that failed are left out. If a candidate is neither finished nor failed, nothing is selected.
    """
    # Tables of finished trials do not need the data.
    for source in {trial.config.data for trial in trials if runner.launcher != "none"}:
        if "test" not in load_dataset(source).splits:
            raise ConfigError(f"the search needs a test split, which {source} does not have")
    first = {trial.coordinates: trial for trial in trials if trial.config.seed == 0}
    search_trials = make_search_trials(trials)
    # The run of the best candidate is evaluated on the test split, too.
    failed = runner.run(list(search_trials.values()), keep_runs=True)
    best: dict[Coordinates, Candidate] = {}
    rows = []
    for coords, trial in first.items():
        scores = {each: get_validation_score(search_trials[coords, each], runner.store) for each in trial.candidates}
        has_failed = {each: search_trials[coords, each].name in failed for each in trial.candidates}
        finished = {candidate: score for candidate, score in scores.items() if score is not None}
        if all(each in finished or has_failed[each] for each in scores):
            best[coords] = max(finished or scores, key=lambda candidate: finished.get(candidate, 0.0))
        texts = [
            f"{each}: " + ("failed" if has_failed[each] else "missing" if score is None else f"{score:.3f}")
            for each, score in scores.items()
        ]
        rows.append((*map(str, trial.coordinates.values()), *texts, str(best.get(coords, ""))))
    count = max(len(trial.candidates) for trial in first.values())
    header = (*next(iter(first.values())).coordinates, *(f"candidate {i + 1}" for i in range(count)), "selected")
    table = Table.from_texts(SEARCH_NOTE, header, rows)
    selected = [
        dataclasses.replace(trial, config=best[trial.coordinates].apply(trial.config))
        for trial in trials
        if trial.coordinates in best
    ]
    unselected = [trial for trial in trials if trial.coordinates not in best]
    selected_names = {trial.name for trial in selected}
    done = [trial for (coords, _), trial in search_trials.items() if coords in best]
    runner.remove_runs([trial for trial in done if trial.name not in selected_names])
    return Selection(selected, unselected, table, failed)


def get_validation_score(trial: Trial, store: TrialStore) -> float | None:
    """Return the score on the validation split; higher is better."""
    result = trial.load_result(store)
    if result is None:
        return None
    error, accuracy = ("head-mae", "head") if trial.config.supervised else ("mae", "linear")
    if errors := METRICS[error].extract(result):
        return -statistics.fmean(errors)
    scores = METRICS[accuracy].extract(result)
    return scores[0] if scores else None
