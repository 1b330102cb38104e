"""`reproduce`: from the name of a table or figure to its files."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from manyviews import __version__
from manyviews.data import load_dataset
from manyviews.experiments import theorem as limits
from manyviews.experiments.cells import Cell
from manyviews.experiments.claims import Claim
from manyviews.experiments.figures import along_figure
from manyviews.experiments.grids import EXPERIMENTS, RATES, Experiment, Options
from manyviews.experiments.launch import Launch
from manyviews.experiments.principles import principles
from manyviews.experiments.results import METRICS, Results
from manyviews.experiments.subsets import compared_with, subset_tables
from manyviews.experiments.tables import Table, long_form, pivoted, table_of_claims
from manyviews.training import ConfigError, EvaluationConfig
from manyviews.training.config import nearest
from manyviews.training.files import write_atomically

MEASURED = {
    "theorem": "what the objectives tend to as instances grow, and what minimises them",
    "principles": "the principles table, measured by the audit",
}
UNJUDGED = "Smoke runs decide nothing: no claim of the paper is judged."


@dataclass(frozen=True)
class Outcome:
    """The setting in a sentence, tables, claims, and the files they were written to."""

    setting: str
    tables: tuple[Table, ...]
    claims: tuple[Claim, ...]
    files: tuple[Path, ...]
    failed: dict[str, str]


def experiment_of(name: str) -> Experiment:
    if name not in EXPERIMENTS:
        raise ConfigError(f"no table or figure {name!r}{nearest(name, [*EXPERIMENTS, *MEASURED])}")
    return EXPERIMENTS[name]


def reproduce(name: str, options: Options, launch: Launch, output: Path, overwrite: bool = False) -> Outcome:
    """Run what is missing of a table or figure, and write `output/NAME.csv`, `.md`, `.tex`, and its figure.

    Args:
        name: of `EXPERIMENTS`, or theorem or principles.
        options: scale, seeds and the like.
        launch: where the cells run.
        output: the folder of the files.
        overwrite: replace files of this name that were made with other options.

    Raises:
        ConfigError: the options mean nothing to the table, no cell could be run, or there are files of other options.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     outcome = reproduce("principles", Options(), Launch(Path(folder) / "runs"), Path(folder))
        >>> [file.name for file in outcome.files]
        ['principles.md', 'principles.tex', 'principles.csv']
    """
    output.mkdir(parents=True, exist_ok=True)
    if name in MEASURED and dataclasses.replace(options, scale="laptop") != Options():
        raise ConfigError(f"{name} is measured, not trained: it takes a --scale and nothing else")
    cells = [] if name in MEASURED else cells_of(name, options)
    _check_files(name, options, launch.folder, output, overwrite)
    if name == "principles":
        table, claims = principles()
        return _written(name, options, output, [table], claims)
    if name == "theorem":
        return _theorem(options, output)
    experiment = EXPERIMENTS[name]
    tables: list[Table] = []
    failed: dict[str, str] = {}
    if tried := searched(cells, options):
        chosen, rates, failed = with_best_rate(tried, launch)
        cells = [*(cell for cell in cells if cell not in tried), *chosen]
        tables.append(rates)
    failed |= launch(cells)
    results = Results.of(cells, launch.folder, experiment.metrics)
    if failed and not any(results.values.values()):
        cell, reason = next(iter(failed.items()))
        raise ConfigError(f"no cell of {name} could be run, and nothing was written; {cell}: {reason}")
    _check_files(name, options, launch.folder, output, overwrite)  # another process may have written meanwhile
    same = options.papers
    beside = compared_with(cells, launch.folder) if experiment.modalities else []
    subsets = subset_tables(cells, launch.folder) if experiment.modalities else []
    tables = [*pivoted(experiment, results, same), *beside, *subsets, *tables]
    figures = []
    if experiment.along and any(results.values.values()):
        figures = along_figure(results, experiment.along, experiment.metrics, output / name)
    write_atomically(output / f"{name}.csv", long_form(experiment, results, same))
    told = [f"{cell}: {reason}" for cell, reason in failed.items()]
    outcome = _written(name, options, output, tables, list(experiment.claims(results)), cells, told)
    return dataclasses.replace(outcome, files=(output / f"{name}.csv", *outcome.files, *figures), failed=failed)


def _check_files(name: str, options: Options, runs: Path, output: Path, overwrite: bool) -> None:
    """Raise if there are files of this name that other options have made, or nobody knows which."""
    files = [path for ending in ("md", "csv", "tex", "png", "pdf") if (path := output / f"{name}.{ending}").exists()]
    if overwrite or not files:
        return
    text = files[0].read_text(errors="replace") if files[0].suffix == ".md" else ""
    if _made_by(name, options) not in text:
        other = next((line for line in text.splitlines() if line.startswith("Made by ")), "Its settings are not known.")
        raise ConfigError(
            f"{files[0]} is of other settings than `{options.format_command(name)}`, and stays. {other} Name another "
            f"--output (with --runs {runs} it takes the cells that are done), or replace it with --overwrite"
        )


def _made_by(name: str, options: Options) -> str:
    return f"Made by `{options.format_command(name)}`."


def cells_of(name: str, options: Options) -> list[Cell]:
    """The cells of a table, each of which can be trained."""
    experiment = experiment_of(name)
    options.check(experiment)
    cells = list(experiment.cells(options))
    for cell in cells:
        cell.config.check()
    return cells


def searched(cells: Sequence[Cell], options: Options) -> list[Cell]:
    """The cells whose learning rate is chosen among several: at the paper's scale, those of modalities."""
    return [cell for cell in cells if options.scale == "paper" and cell.config.policy == "modalities"]


def rate_cells(cells: Sequence[Cell]) -> dict[tuple[object, float], Cell]:
    """Those that try a learning rate with the first seed, by place and rate."""
    how = EvaluationConfig(few=(), baselines=False, subsets=False, split="valid")
    return {
        (tuple(cell.place.items()), rate): Cell(dataclasses.replace(cell.config, learning_rate=rate), how, cell.place)
        for cell in cells
        if cell.config.seed == 0
        for rate in RATES
    }


def with_best_rate(cells: Sequence[Cell], launch: Launch) -> tuple[list[Cell], Table, dict[str, str]]:
    """The cells with the learning rate that did best on the validation split with the first seed, never on the test."""
    for source in {cell.config.data for cell in cells}:
        if not {"valid", "test"} <= set(load_dataset(source).splits):
            raise ConfigError(f"a learning rate is chosen on valid and judged on test, and {source} has not both")
    first = {tuple(cell.place.items()): cell for cell in cells if cell.config.seed == 0}
    tried = rate_cells(cells)
    failed = launch(list(tried.values()))
    chosen: dict[object, float] = {}
    rows = []
    for place, cell in first.items():
        scores = {rate: _worth(tried[place, rate], launch.folder) for rate in RATES}
        known = {rate: score for rate, score in scores.items() if score is not None}
        chosen[place] = max(known, key=lambda rate: known[rate]) if known else cell.config.learning_rate
        shown = [f"{scores[rate]:.3f}" if scores[rate] is not None else "failed" for rate in RATES]
        rows.append((*map(str, cell.place.values()), *shown, f"{chosen[place]:g}"))
    parts = next(iter(first.values())).place
    header = (*parts, *(f"{rate:g}" for rate in RATES), "chosen")
    table = Table("Learning rates by the validation split (accuracy in %, or -MAE)", header, tuple(rows))
    done = []
    for cell in cells:
        config = dataclasses.replace(cell.config, learning_rate=chosen[tuple(cell.place.items())])
        done.append(dataclasses.replace(cell, config=config))
    return done, table, failed


def _worth(cell: Cell, folder: Path) -> float | None:
    """On the validation split: more is better."""
    found = cell.found(folder)
    if found is None:
        return None
    own = "own-" if cell.config.supervised else ""
    if errors := METRICS[f"{own}mae"].of(found):
        return -statistics.fmean(errors)
    scores = METRICS["own" if cell.config.supervised else "linear"].of(found)
    return scores[0] if scores else None


def _theorem(options: Options, output: Path) -> Outcome:
    most, draws, steps = limits.EXTENT[options.scale]
    table, claims, curves = limits.convergence(most, draws)
    free, more = limits.free_points(steps, ("mv-infonce", "mv-dhel", "pwe-infonce", "pvc"))
    figures = limits.theorem_figure(curves, output / "theorem")
    outcome = _written("theorem", options, output, [table, free], [*claims, *more])
    return dataclasses.replace(outcome, files=(*outcome.files, *figures))


def _written(
    name: str,
    options: Options,
    output: Path,
    tables: Sequence[Table],
    claims: Sequence[Claim],
    cells: Sequence[Cell] = (),
    failed: Sequence[str] = (),
) -> Outcome:
    """The .md and .tex files; of what is measured the .csv too. Of smoke runs no claim is judged."""
    claims = () if options.scale == "smoke" else claims
    about, setting = MEASURED.get(name) or EXPERIMENTS[name].about, _setting(name, options, cells)
    all_of_them = (*tables, *([table_of_claims(claims)] if claims else []))
    head = [setting, _made_by(name, options), *([UNJUDGED] if options.scale == "smoke" else [])]
    lines = [f"# {name}: {about}", ""]
    for line in head:
        lines += [line, ""]
    if (output / f"{name}.png").exists():
        lines += [f"![{about}]({name}.png)", ""]
    for table in all_of_them:
        lines += [table.markdown(), ""]
    if failed:
        lines += ["Failed: " + "; ".join(failed), ""]
    files = [output / f"{name}.md", output / f"{name}.tex"]
    write_atomically(files[0], "\n".join(lines))
    write_atomically(files[1], "\n".join([*(f"% {line}" for line in head), *(table.latex() for table in all_of_them)]))
    if name in MEASURED:
        files.append(output / f"{name}.csv")
        write_atomically(files[-1], "\n".join(table.csv() for table in tables))
    return Outcome(setting, tuple(tables), tuple(claims), tuple(files), {})


def _setting(name: str, options: Options, cells: Sequence[Cell]) -> str:
    told = [f"Scale {options.scale}", f"manyviews {__version__}"]
    if name == "theorem":
        told.append(limits.SETTING)
    if cells:
        told.append(f"{options.seeds} {'seed' if options.seeds == 1 else 'seeds'} a cell")
        configs = [cell.config.settled() for cell in cells]
        kinds = {(config.limit, config.epochs, config.temperature) for config in configs}
        for limit, epochs, temperature in sorted(kinds, key=str):
            instances = f"the first {limit:,} training instances" if limit else "all training instances"
            told.append(f"{instances}, {epochs} epochs, temperature {temperature:g}")
        told.append("objectives " + ("as in the authors' released code" if options.released else "by the equations"))
        if options.missing:
            told.append(f"{options.missing:.0%} of the modalities left out of training")
        experiment = EXPERIMENTS[name]
        figures = (experiment.paper(cell.place, metric) for cell in cells for metric in experiment.metrics)
        if options.scale == "paper" and not options.papers and any(figure is not None for figure in figures):
            told.append("without the paper's figures, which are of --released and no --limit, --epochs or --missing")
    return "; ".join(told) + "."
