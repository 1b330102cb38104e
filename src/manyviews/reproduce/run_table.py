"""`reproduce_table`: run a table's trials and write its files."""

import dataclasses
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from manyviews.reproduce import theorem
from manyviews.reproduce.experiments import EXPERIMENTS, Experiment, ReproduceOptions
from manyviews.reproduce.figures import draw_line_figure
from manyviews.reproduce.longer import LONGER
from manyviews.reproduce.origin import Origin, describe_origins
from manyviews.reproduce.pivot_tables import format_long_csv, make_pivot_tables
from manyviews.reproduce.precision import PRECISION
from manyviews.reproduce.principles_table import make_principles_table
from manyviews.reproduce.results import Results
from manyviews.reproduce.rivals import RIVALS
from manyviews.reproduce.runner import TrialRunner
from manyviews.reproduce.search import list_searched, select_candidates
from manyviews.reproduce.store import FinishedTrial
from manyviews.reproduce.subset_tables import make_baseline_tables, make_subset_tables
from manyviews.reproduce.synergy import SCALE_SETTINGS, list_losses, measure_all
from manyviews.reproduce.synergy_table import draw_synergy_figure, make_synergy_claims, make_synergy_tables
from manyviews.reproduce.table_files import (
    ANALYSES,
    Outcome,
    check_table_files,
    describe_missing,
    write_table_files,
)
from manyviews.reproduce.temperature import TEMPERATURE
from manyviews.reproduce.trials import Trial
from manyviews.training import ConfigError, TrainingInterrupted
from manyviews.utils import Table, suggest, write_atomic

EXPERIMENTS["rivals"] = RIVALS
EXPERIMENTS["temperature"] = TEMPERATURE
EXPERIMENTS["precision"] = PRECISION
EXPERIMENTS["longer"] = LONGER


def get_experiment(name: str) -> Experiment:
    """Return the experiment of a table or figure, or raise a ConfigError that suggests similar names."""
    if name not in EXPERIMENTS:
        raise ConfigError(f"no table or figure {name!r}{suggest(name, [*EXPERIMENTS, *ANALYSES])}")
    return EXPERIMENTS[name]


def reproduce_table(
    name: str, options: ReproduceOptions, runner: TrialRunner, output: Path, overwrite: bool = False
) -> Outcome:
    """Run the missing trials of a table or figure, and write `output/NAME.csv`, `.md`, `.tex` and its figure.

    Args:
        name: a key of `EXPERIMENTS` or `ANALYSES`.
        options: scale, seeds, losses, ...
        runner: runs the trials, locally or on SLURM.
        output: the folder of the files.
        overwrite: replace files of this table that were made with other options.

    Raises:
        ConfigError: the options do not apply to the table, every trial failed, or files of other options exist.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     runner = TrialRunner(Path(folder) / "runs")
        ...     outcome = reproduce_table("principles", ReproduceOptions(), runner, Path(folder))
        >>> [file.name for file in outcome.files]
        ['principles.md', 'principles.tex', 'principles.csv']
    """
    output.mkdir(parents=True, exist_ok=True)
    _check_analysis_options(name, options)
    trials = [] if name in ANALYSES else make_trials(name, options)
    check_table_files(name, options, runner.folder, output, overwrite)
    try:
        if name == "principles":
            table, claims = make_principles_table()
            return write_table_files(name, options, output, [table], claims, _describe_measurement())
        if name == "theorem":
            return _run_theorem(options, output)
        return (
            _run_synergy(options, runner, output)
            if name == "synergy"
            else _run_grid(name, options, trials, runner, output, overwrite)
        )
    except TrainingInterrupted:
        if name in EXPERIMENTS:
            _write_unfinished(name, options, trials, runner, output, overwrite)
        raise


def _run_grid(
    name: str, options: ReproduceOptions, trials: list[Trial], runner: TrialRunner, output: Path, overwrite: bool
) -> Outcome:
    """Run the trials of a grid, the first seed first, and write its table."""
    experiment = EXPERIMENTS[name]
    tables: list[Table] = []
    failed: dict[str, str] = {}
    unselected: list[Trial] = []
    if searched := list_searched(trials):
        selection = select_candidates(searched, runner)
        trials = [*(trial for trial in trials if not trial.candidates), *selection.trials]
        failed, unselected = dict(selection.failed), selection.unselected
        tables.append(selection.table)
    failed |= runner.run(sorted(trials, key=lambda trial: trial.config.seed))
    results = Results.collect(trials, runner.store, experiment.metrics)
    loaded = [(trial, trial.load(runner.store)) for trial in trials]
    missing = [*(trial for trial, result in loaded if result is None), *unselected]
    if not any(results.values.values()):
        if failed:
            trial_name, reason = next(iter(failed.items()))
            raise ConfigError(f"every trial of {name} failed, nothing was written; {trial_name}: {reason}")
        if missing:
            raise ConfigError(f"no trial of {name} is finished, nothing was written")
    # Another process may have written them meanwhile.
    check_table_files(name, options, runner.folder, output, overwrite)
    with_paper = options.matches_paper
    pivots = make_pivot_tables(experiment, results, with_paper)
    baselines = make_baseline_tables(trials, runner.store, "knn" in experiment.metrics)
    tables = [*pivots, *baselines, *make_subset_tables(trials, runner.store), *tables]
    figures = []
    if experiment.x_axis and any(results.values.values()):
        figures = draw_line_figure(results, experiment.x_axis, experiment.metrics, output / name)
    write_atomic(output / f"{name}.csv", format_long_csv(experiment, results, with_paper))
    notes = [describe_missing(missing, len(trials) + len(unselected))] if missing else []
    notes += ["Failed: " + "; ".join(f"{trial}: {reason}" for trial, reason in failed.items())] if failed else []
    claims = experiment.check_claims(results)
    origin = _describe_trials([result for _, result in loaded if result is not None])
    outcome = write_table_files(name, options, output, tables, claims, origin, [*trials, *unselected], notes)
    files = (output / f"{name}.csv", *outcome.files, *figures)
    return dataclasses.replace(outcome, files=files, failed=failed, missing=tuple(missing))


def _write_unfinished(
    name: str, options: ReproduceOptions, trials: list[Trial], runner: TrialRunner, output: Path, overwrite: bool
) -> None:
    """Write the table of the trials that are finished, if there are any."""
    idle = dataclasses.replace(runner, launcher="none", jobs=1, slurm={}, log=lambda _: None)
    with suppress(ConfigError):
        _run_grid(name, options, trials, idle, output, overwrite)


def _describe_trials(finished: Sequence[FinishedTrial]) -> str:
    """Describe where trials were run, with which precision and for how long."""
    precisions = " and ".join(sorted({trial.precision or "unknown" for trial in finished}))
    seconds = sum(trial.seconds or 0 for trial in finished)
    note = "" if all(trial.seconds is not None for trial in finished) else ", as far as it is known"
    time = f"{seconds / 3600:.1f} hours of training" if seconds >= 3600 else f"{seconds / 60:.1f} minutes of training"
    return f"{describe_origins(finished, 'trials')} Precision {precisions}; {time}{note}."


def _describe_measurement() -> str:
    return "Measured with " + describe_origins([Origin.of_this_process()], "")


def _check_analysis_options(name: str, options: ReproduceOptions) -> None:
    """Raise for options that do not apply to a table that is measured directly."""
    if name == "synergy":
        names, skipped = list_losses()
        for loss in options.losses:
            if loss not in names:
                reason = f": {skipped[loss]}" if loss in skipped else suggest(loss, names)
                raise ConfigError(f"synergy does not measure {loss!r}{reason}")
        options = dataclasses.replace(options, losses=())
    if name in ANALYSES and dataclasses.replace(options, scale="laptop") != ReproduceOptions():
        applying = "only --scale and --losses apply" if name == "synergy" else "only --scale applies"
        raise ConfigError(f"{name} is measured, not trained: {applying}")


def make_trials(name: str, options: ReproduceOptions) -> list[Trial]:
    """Make the trials of a table, and check their configs."""
    experiment = get_experiment(name)
    options.check(experiment)
    trials = list(experiment.make_trials(options))
    for trial in trials:
        trial.config.check()
    return trials


def _run_theorem(options: ReproduceOptions, output: Path) -> Outcome:
    max_instances, draws, steps = theorem.SCALE_SETTINGS[options.scale]
    table, claims, curves = theorem.measure_convergence(max_instances, draws)
    free_points, free_claims = theorem.optimize_free_points(steps, ("mv-infonce", "mv-dhel", "pwe-infonce", "pvc"))
    figures = theorem.draw_theorem_figure(curves, output / "theorem")
    all_claims = [*claims, *free_claims]
    outcome = write_table_files("theorem", options, output, [table, free_points], all_claims, _describe_measurement())
    return dataclasses.replace(outcome, files=(*outcome.files, *figures))


def _run_synergy(options: ReproduceOptions, runner: TrialRunner, output: Path) -> Outcome:
    losses, setting = options.losses or list_losses()[0], SCALE_SETTINGS[options.scale]
    jobs = 0 if runner.launcher == "none" else runner.jobs
    results = measure_all(losses, setting, runner.store.path.with_name("synergy.jsonl"), jobs)
    total = setting.count_measurements(losses)
    if len(results) < total:
        raise ConfigError(f"{len(results)} of {total} measurements of synergy are finished, nothing was written")
    figures = draw_synergy_figure(results, output / "synergy")
    tables, claims = make_synergy_tables(results), make_synergy_claims(results)
    outcome = write_table_files("synergy", options, output, tables, claims, describe_origins(results, "measurements"))
    return dataclasses.replace(outcome, files=(*outcome.files, *figures))
