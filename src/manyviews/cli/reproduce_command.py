"""`manyviews reproduce`."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from manyviews.cli.common import OutputFlag, make_lazy_stub, print_lines, show_table

if TYPE_CHECKING:
    from manyviews.reproduce import ReproduceOptions, TrialRunner


_SUMMARY = "Reproduce a table or figure of the paper; --list shows them."


def reproduce_command(arguments: list[str]) -> Callable[..., None]:
    """The command, with the fields of `ReproduceOptions` as flags."""
    if arguments[:1] != ["reproduce"]:
        return make_lazy_stub(_SUMMARY)

    from manyviews.reproduce import ReproduceOptions

    def command(
        table: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TABLE")] = "",
        options: Annotated[ReproduceOptions, tyro.conf.arg(name="")] = ReproduceOptions(),  # noqa: B008 (frozen)
        output: Annotated[Path, OutputFlag] = Path("results"),
        overwrite: bool = False,
        runs: Path | None = None,
        launcher: Literal["local", "slurm"] = "local",
        jobs: int = 1,
        slurm: tuple[str, ...] = (),
        dry_run: bool = False,
        list_tables: Annotated[bool, tyro.conf.arg(name="list")] = False,
    ) -> None:
        """Reproduce a table or figure of the paper; --list shows them.

        Finished trials are not run again, killed ones are resumed. A failed trial is reported and does not stop others.

        Args:
            table: table1, knn, multimodal, other-losses, memory, views, batch-size, fixed-batch, theorem or principles.
            options: subset and size of the table.
            output: folder of the tables and figures. A table made with other options is not replaced.
            overwrite: replace a table made with other options.
            runs: folder of the runs, which tables may share; OUTPUT/runs if not given.
            launcher: local processes, or SLURM jobs (needs the extra slurm).
            jobs: number of parallel local processes.
            slurm: SLURM job parameters as NAME=VALUE, with submitit's names (slurm_partition=gpu).
            dry_run: list the trials and their estimated training time without running them.
            list_tables: list the tables and figures.
        """
        if list_tables:
            print_tables()
        else:
            run_reproduce(table, options, output, overwrite, runs, launcher, jobs, slurm, dry_run)

    return command


def print_tables() -> None:
    from manyviews.reproduce import ANALYSES, EXPERIMENTS

    tables = {**{name: experiment.description for name, experiment in EXPERIMENTS.items()}, **ANALYSES}
    show_table(("table or figure", "content"), list(tables.items()))


def run_reproduce(
    table: str,
    options: "ReproduceOptions",
    output: Path,
    overwrite: bool,
    runs: Path | None,
    launcher: Literal["local", "slurm"],
    jobs: int,
    slurm: tuple[str, ...],
    dry_run: bool,
) -> None:
    from manyviews.reproduce import ANALYSES, EXPERIMENTS, UNJUDGED_SCALES, TrialRunner, get_experiment, reproduce_table

    if not table:
        raise ValueError(f"a TABLE is required: {', '.join([*EXPERIMENTS, *ANALYSES])}")
    if table not in ANALYSES:
        get_experiment(table)
    if jobs < 1 or options.seeds < 1:
        raise ValueError(f"jobs and seeds must be >= 1, got {jobs} and {options.seeds}")
    launch = TrialRunner(runs or output / "runs", launcher, jobs, _parse_key_values(slurm), log=print_lines)
    if dry_run:
        _print_plan(table, options, launch)
        return
    outcome = reproduce_table(table, options, launch, output, overwrite)
    print_lines(outcome.setting)
    for result in outcome.tables:
        show_table(result.header, result.rows, result.title)
    for claim in outcome.claims:
        basis = f"; {claim.basis}" if claim.basis else ""
        print_lines(f"{claim.verdict}: {claim.text}: {claim.evidence}{basis}")
    if options.scale == "smoke":
        print_lines(UNJUDGED_SCALES)
    for name, reason in outcome.failed.items():
        print_lines(f"failed: {name}: {reason}")
    print_lines("written to " + ", ".join(str(path) for path in outcome.files))
    if outcome.failed:
        raise ValueError(f"{len(outcome.failed)} trials failed; run the same command to retry them")


def _parse_key_values(pairs: tuple[str, ...]) -> dict[str, str | int]:
    parameters: dict[str, str | int] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"--slurm takes NAME=VALUE, got {pair!r}")
        parameters[name] = int(value) if value.isdigit() else value
    return parameters


def _print_plan(table: str, options: "ReproduceOptions", launch: "TrialRunner") -> None:
    from manyviews.reproduce import ANALYSES, estimate_seconds, list_lr_searched, make_lr_search_trials, make_trials
    from manyviews.utils import format_duration

    if table in ANALYSES:
        print_lines(f"{table} has no trials: it is computed directly")
        return
    table_trials = make_trials(table, options)
    search_trials = list(make_lr_search_trials(list_lr_searched(table_trials, options)).values())
    trials = list({trial.name + trial.result_filename: trial for trial in (*search_trials, *table_trials)}.values())
    seconds, failed = estimate_seconds([trial for trial in trials if trial.get_state(launch.folder) != "done"])
    rows = []
    for trial in trials:
        estimate = "unknown" if trial.name in failed else ""
        if trial.name in seconds:
            estimate = format_duration(seconds[trial.name])
        rows.append((trial.name, trial.label, trial.get_state(launch.folder), estimate))
    show_table(("trial", "coordinates", "state", "estimated training"), rows)
    total = format_duration(sum(seconds.values()) / launch.jobs)
    note = f", without {len(failed)} of unknown duration" if failed else ""
    print_lines(f"{len(trials)} trials, about {total} of training with {launch.jobs} at once{note}")
    for reason in dict.fromkeys(failed.values()):
        print_lines(f"unknown: {reason}")
    if search_trials:
        print_lines("the first trials search the learning rate; the others then use the best one, not the one shown")
