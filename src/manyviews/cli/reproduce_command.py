"""`manyviews reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

import manyviews as mv
from manyviews import utils
from manyviews.cli.common import OptionalPath, OutputFlag, Unset, print_lines, show_table
from manyviews.cli.config_flags import ReproduceFlags


def reproduce_command(
    options: Annotated[mv.reproduce.ReproduceOptions, ReproduceFlags],
    table: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TABLE"), Unset] = "",
    output: Annotated[Path, OutputFlag] = Path("results"),
    overwrite: bool = False,
    runs: OptionalPath = None,
    store: OptionalPath = None,
    keep_runs: bool = True,
    launcher: Literal["local", "slurm", "none"] = "local",
    jobs: int = 1,
    slurm: Annotated[tuple[str, ...], Unset] = (),
    dry_run: bool = False,
    list_tables: Annotated[bool, tyro.conf.arg(name="list")] = False,
) -> None:
    """Reproduce a table or figure of the paper; --list shows them.

    Finished trials are not run again, killed ones are resumed. A failed trial is reported and does not stop others.

    Args:
        options: Subset and size of the table.
        table: table1, knn, multimodal, other-losses, memory, views, batch-size, fixed-batch, rivals,
            theorem, principles or synergy.
        output: Folder of the tables and figures. A table made with other options is not replaced.
        overwrite: Replace a table made with other options.
        runs: Folder of the runs, which tables may share. Default: OUTPUT/runs.
        store: File with one line for each finished trial, which needs no run directory any more. Default:
            trials.jsonl in the folder of the runs.
        keep_runs: Keep the run directories of finished trials, with their weights; --no-keep-runs removes them.
        launcher: Local processes, or SLURM jobs (needs the extra slurm); none makes the table of finished trials.
        jobs: Number of parallel local processes.
        slurm: SLURM job parameters as NAME=VALUE, with submitit's names (slurm_partition=gpu).
        dry_run: List the trials and their estimated training time without running them.
        list_tables: List the tables and figures.
    """
    tables = {
        **{name: experiment.description for name, experiment in mv.reproduce.EXPERIMENTS.items()},
        **mv.reproduce.ANALYSES,
    }
    if list_tables:
        show_table(("table or figure", "content"), list(tables.items()))
        return
    if not table:
        raise ValueError(f"a TABLE is required: {', '.join(tables)}")
    if table not in mv.reproduce.ANALYSES:
        mv.reproduce.get_experiment(table)
    if jobs < 1 or options.seeds < 1:
        raise ValueError(f"jobs and seeds must be >= 1, got {jobs} and {options.seeds}")
    runner = mv.reproduce.TrialRunner(
        runs or output / "runs", launcher, jobs, _parse_key_values(slurm), store, keep_runs, print_lines
    )
    if dry_run:
        _print_plan(table, options, runner)
        return
    outcome = mv.reproduce.reproduce_table(table, options, runner, output, overwrite)
    print_lines(outcome.setting)
    for result in outcome.tables:
        result.print()
    for claim in outcome.claims:
        basis = claim.tolerance
        if claim.difference is not None:
            interval = claim.difference.interval_text
            basis = f"difference {claim.difference.text}" + (f", 95% interval {interval}" if interval else "")
        print_lines(f"{claim.verdict}: {claim.text}: {claim.evidence}" + (f"; {basis}" if basis else ""))
    if options.scale == "smoke":
        print_lines(mv.reproduce.SMOKE_NOTE)
    print_lines(*(f"failed: {name}: {reason}" for name, reason in outcome.failed.items()))
    print_lines("written to " + ", ".join(str(path) for path in outcome.files))
    if outcome.failed:
        raise ValueError(f"{len(outcome.failed)} trials failed; run the same command to retry them")


def _parse_key_values(pairs: tuple[str, ...]) -> dict[str, str | int]:
    if wrong := [pair for pair in pairs if "=" not in pair]:
        raise ValueError(f"--slurm takes NAME=VALUE, got {wrong[0]!r}")
    items = (pair.partition("=") for pair in pairs)
    return {name: int(value) if value.isdigit() else value for name, _, value in items}


def _print_plan(table: str, options: mv.reproduce.ReproduceOptions, runner: mv.reproduce.TrialRunner) -> None:
    package = mv.reproduce
    if table in package.ANALYSES:
        print_lines(f"{table} has no trials: it is computed directly")
        return
    table_trials = package.make_trials(table, options)
    search_trials = package.make_search_trials(package.list_searched(table_trials)).values()
    trials = {trial.name + trial.result_filename: trial for trial in (*search_trials, *table_trials)}.values()
    states = [trial.get_state(runner.store) for trial in trials]
    unfinished = [trial for trial, state in zip(trials, states, strict=True) if state != "done"]
    seconds, failed = package.estimate_seconds(unfinished)
    rows = []
    for trial, state in zip(trials, states, strict=True):
        estimate = utils.format_duration(seconds[trial.name]) if trial.name in seconds else ""
        rows.append((trial.name, trial.label, state, "unknown" if trial.name in failed else estimate))
    show_table(("trial", "coordinates", "state", "estimated training"), rows)
    total = utils.format_duration(sum(seconds.values()) / runner.jobs)
    note = f", without {len(failed)} of unknown duration" if failed else ""
    print_lines(f"{len(trials)} trials, about {total} of training with {runner.jobs} at once{note}")
    print_lines(*(f"unknown: {reason}" for reason in dict.fromkeys(failed.values())))
    if search_trials:
        print_lines("the first trials are a search; the others then use the best candidate, not the settings shown")
