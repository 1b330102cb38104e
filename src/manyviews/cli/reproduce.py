"""`manyviews reproduce`."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from manyviews.cli.console import Output, print_lines, show_table, unasked

if TYPE_CHECKING:
    from manyviews.experiments import Options
    from manyviews.experiments.launch import Launch

_SUMMARY = "Make a table or figure of the paper; `manyviews reproduce list` names them."


def reproduce_command(arguments: list[str]) -> Callable[..., None]:
    """The command, with the options of a table as flags."""
    if arguments[:1] != ["reproduce"]:
        return unasked(_SUMMARY)

    from manyviews.experiments import Options

    def command(
        table: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TABLE")],
        options: Annotated[Options, tyro.conf.arg(name="")] = Options(),  # noqa: B008 (frozen)
        output: Annotated[Path, Output] = Path("results"),
        overwrite: bool = False,
        runs: Path | None = None,
        launcher: Literal["local", "slurm"] = "local",
        jobs: int = 1,
        slurm: tuple[str, ...] = (),
        dry_run: bool = False,
    ) -> None:
        """Make a table or figure of the paper; `manyviews reproduce list` names them.

        Finished cells are never run again, killed ones go on, failed ones say why and stop no other.

        Args:
            table: list, table1, knn, multimodal, other-losses, memory, views, batch-size, fixed-batch, theorem,
                principles.
            options: parts of the table, and how much of it.
            output: the folder of the tables and figures. A table of other options that is there stays, with an error.
            overwrite: replace a table of other options.
            runs: the folder of the runs, which tables may share; OUTPUT/runs if not given.
            launcher: local processes, or jobs of SLURM (needs the extra slurm).
            jobs: local processes at once.
            slurm: parameters of SLURM's jobs as NAME=VALUE, as submitit names them (slurm_partition=gpu).
            dry_run: list the cells and about how long they will take, and run none.
        """
        reproduce_table(table, options, output, overwrite, runs, launcher, jobs, slurm, dry_run)

    return command


def reproduce_table(
    table: str,
    options: "Options",
    output: Path,
    overwrite: bool,
    runs: Path | None,
    launcher: Literal["local", "slurm"],
    jobs: int,
    slurm: tuple[str, ...],
    dry_run: bool,
) -> None:
    from manyviews.experiments import EXPERIMENTS
    from manyviews.experiments.launch import Launch
    from manyviews.experiments.start import MEASURED, UNJUDGED, experiment_of, reproduce

    if table == "list":
        tables = {**{name: one.about for name, one in EXPERIMENTS.items()}, **MEASURED}
        show_table(("table or figure", "what it shows"), list(tables.items()))
        return
    if table not in MEASURED:
        experiment_of(table)
    if jobs < 1 or options.seeds < 1:
        raise ValueError(f"jobs and seeds must be >= 1, got {jobs} and {options.seeds}")
    launch = Launch(runs or output / "runs", launcher, jobs, _parameters(slurm), say=print_lines)
    if dry_run:
        _show_cells(table, options, launch)
        return
    outcome = reproduce(table, options, launch, output, overwrite)
    print_lines(outcome.setting)
    for one in outcome.tables:
        show_table(one.header, one.rows, one.title)
    for claim in outcome.claims:
        basis = f"; {claim.basis}" if claim.basis else ""
        print_lines(f"{claim.verdict}: {claim.text}: {claim.numbers}{basis}")
    if options.scale == "smoke":
        print_lines(UNJUDGED)
    for name, reason in outcome.failed.items():
        print_lines(f"failed: {name}: {reason}")
    print_lines("written to " + ", ".join(str(path) for path in outcome.files))
    if outcome.failed:
        raise ValueError(f"{len(outcome.failed)} cells failed; the same command tries them again")


def _parameters(given: tuple[str, ...]) -> dict[str, str | int]:
    found: dict[str, str | int] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals:
            raise ValueError(f"--slurm takes NAME=VALUE, got {one!r}")
        found[name] = int(value) if value.isdigit() else value
    return found


def _show_cells(table: str, options: "Options", launch: "Launch") -> None:
    from manyviews.evaluation.progress import duration
    from manyviews.experiments.estimate import seconds_of
    from manyviews.experiments.start import MEASURED, cells_of, rate_cells, searched

    if table in MEASURED:
        print_lines(f"{table} has no cells: it is measured here and now")
        return
    asked = cells_of(table, options)
    tried = list(rate_cells(searched(asked, options)).values())
    cells = list({cell.name + cell.file: cell for cell in (*tried, *asked)}.values())
    taken = seconds_of([cell for cell in cells if cell.state(launch.folder) != "done"])
    rows = []
    for cell in cells:
        time, state = taken.get(cell.name), cell.state(launch.folder)
        about = "unknown" if isinstance(time, str) else duration(time) if time else ""
        rows.append((cell.name, cell.told, state, about))
    show_table(("cell", "what", "state", "training, about"), rows)
    total = duration(sum(time for time in taken.values() if isinstance(time, float)) / launch.jobs)
    unknown = [time for time in taken.values() if isinstance(time, str)]
    beside = f", without {len(unknown)} of unknown length" if unknown else ""
    print_lines(f"{len(cells)} cells, about {total} of training with {launch.jobs} at once{beside}")
    for reason in dict.fromkeys(unknown):
        print_lines(f"unknown: {reason}")
    if tried:
        print_lines("the first ones try learning rates; the others then take the best, not the one that is shown")
