"""`reproduce_table`: run a table's trials and write its files."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from manyviews import __version__
from manyviews.reproduce import theorem
from manyviews.reproduce.claims import Claim
from manyviews.reproduce.experiments import EXPERIMENTS, Experiment, ReproduceOptions
from manyviews.reproduce.figures import draw_line_figure
from manyviews.reproduce.pivot_tables import format_long_csv, make_claims_table, make_pivot_tables
from manyviews.reproduce.principles_table import make_principles_table
from manyviews.reproduce.results import Results
from manyviews.reproduce.rivals import RIVALS
from manyviews.reproduce.runner import TrialRunner
from manyviews.reproduce.search import list_searched, select_candidates
from manyviews.reproduce.subset_tables import make_baseline_tables, make_subset_tables
from manyviews.reproduce.synergy import SCALE_SETTINGS, list_losses, measure_all
from manyviews.reproduce.synergy_table import (
    describe_skipped,
    draw_synergy_figure,
    make_synergy_claims,
    make_synergy_tables,
)
from manyviews.reproduce.trials import Trial
from manyviews.training import ConfigError
from manyviews.utils import Table, suggest, write_atomic

ANALYSES = {
    "theorem": "limits of the losses as instances grow, and their minimizers",
    "principles": "the principles of Table I, measured for every loss",
    "synergy": "what pairs of views cannot see: XOR of two views, every loss",
}
EXPERIMENTS["rivals"] = RIVALS
BEYOND_PAPER = ("synergy", "rivals")
"""Tables that the paper does not have."""
SMOKE_NOTE = "Smoke runs are too short to test the paper's claims."


@dataclass(frozen=True)
class Outcome:
    """The setting as a sentence, the tables, the claims, the files written, and the reason of each failed trial."""

    setting: str
    tables: tuple[Table, ...]
    claims: tuple[Claim, ...]
    files: tuple[Path, ...]
    failed: dict[str, str]


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
    _check_files(name, options, runner.folder, output, overwrite)
    if name == "principles":
        table, claims = make_principles_table()
        return _write_outputs(name, options, output, [table], claims)
    if name == "theorem":
        return _run_theorem(options, output)
    if name == "synergy":
        return _run_synergy(options, runner, output)
    experiment = EXPERIMENTS[name]
    tables: list[Table] = []
    failed: dict[str, str] = {}
    if searched := list_searched(trials):
        selected, search_table, failed = select_candidates(searched, runner)
        trials = [*(trial for trial in trials if trial not in searched), *selected]
        tables.append(search_table)
    failed |= runner.run(trials)
    results = Results.collect(trials, runner.store, experiment.metrics)
    if failed and not any(results.values.values()):
        trial, reason = next(iter(failed.items()))
        raise ConfigError(f"every trial of {name} failed, nothing was written; {trial}: {reason}")
    _check_files(name, options, runner.folder, output, overwrite)  # another process may have written them meanwhile
    with_paper = options.matches_paper
    baselines = make_baseline_tables(trials, runner.store) if experiment.is_multimodal else []
    subsets = make_subset_tables(trials, runner.store) if experiment.is_multimodal else []
    tables = [*make_pivot_tables(experiment, results, with_paper), *baselines, *subsets, *tables]
    figures = []
    if experiment.x_axis and any(results.values.values()):
        figures = draw_line_figure(results, experiment.x_axis, experiment.metrics, output / name)
    write_atomic(output / f"{name}.csv", format_long_csv(experiment, results, with_paper))
    messages = [f"{trial}: {reason}" for trial, reason in failed.items()]
    outcome = _write_outputs(name, options, output, tables, experiment.check_claims(results), trials, messages)
    return dataclasses.replace(outcome, files=(output / f"{name}.csv", *outcome.files, *figures), failed=failed)


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


def _check_files(name: str, options: ReproduceOptions, runs: Path, output: Path, overwrite: bool) -> None:
    """Raise if files of this table exist that were made with other or unknown options."""
    files = [path for suffix in ("md", "csv", "tex", "png", "pdf") if (path := output / f"{name}.{suffix}").exists()]
    if overwrite or not files:
        return
    text = files[0].read_text(errors="replace") if files[0].suffix == ".md" else ""
    if _format_provenance(name, options) not in text:
        provenance = next(
            (line for line in text.splitlines() if line.startswith("Made by ")), "Its options are unknown."
        )
        raise ConfigError(
            f"{files[0]} was not made by `{options.format_command(name)}`. {provenance} Choose another --output "
            f"(with --runs {runs} to reuse finished trials), or pass --overwrite"
        )


def _format_provenance(name: str, options: ReproduceOptions) -> str:
    return f"Made by `{options.format_command(name)}`."


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
    outcome = _write_outputs("theorem", options, output, [table, free_points], [*claims, *free_claims])
    return dataclasses.replace(outcome, files=(*outcome.files, *figures))


def _run_synergy(options: ReproduceOptions, runner: TrialRunner, output: Path) -> Outcome:
    losses, setting = options.losses or list_losses()[0], SCALE_SETTINGS[options.scale]
    results = measure_all(losses, setting, runner.folder, runner.jobs)
    figures = draw_synergy_figure(results, output / "synergy")
    outcome = _write_outputs("synergy", options, output, make_synergy_tables(results), make_synergy_claims(results))
    return dataclasses.replace(outcome, files=(*outcome.files, *figures))


def _write_outputs(
    name: str,
    options: ReproduceOptions,
    output: Path,
    tables: Sequence[Table],
    claims: Sequence[Claim],
    trials: Sequence[Trial] = (),
    failed: Sequence[str] = (),
) -> Outcome:
    """Write the .md and .tex files, and for analyses the .csv; smoke runs test no claim."""
    claims = () if options.scale == "smoke" else claims
    description = ANALYSES.get(name) or EXPERIMENTS[name].description
    setting = _describe_setting(name, options, trials)
    titles = ("Claims, and whether they held here",) if name in BEYOND_PAPER else ()
    all_tables = (*tables, *([make_claims_table(claims, *titles)] if claims else []))
    head = [setting, _format_provenance(name, options), *([SMOKE_NOTE] if options.scale == "smoke" else [])]
    lines = [f"# {name}: {description}", ""]
    for line in head:
        lines += [line, ""]
    if (output / f"{name}.png").exists():
        lines += [f"![{description}]({name}.png)", ""]
    for table in all_tables:
        lines += [table.to_markdown(), ""]
    if failed:
        lines += ["Failed: " + "; ".join(failed), ""]
    files = [output / f"{name}.md", output / f"{name}.tex"]
    write_atomic(files[0], "\n".join(lines))
    write_atomic(files[1], "\n".join([*(f"% {line}" for line in head), *(table.to_latex() for table in all_tables)]))
    if name in ANALYSES:
        files.append(output / f"{name}.csv")
        write_atomic(files[-1], "\n".join(table.to_csv() for table in tables))
    return Outcome(setting, tuple(tables), tuple(claims), tuple(files), {})


def _describe_setting(name: str, options: ReproduceOptions, trials: Sequence[Trial]) -> str:
    parts = [f"Scale {options.scale}", f"manyviews {__version__}"]
    if name == "theorem":
        parts.append(theorem.SETTING)
    if name == "synergy":
        parts += [SCALE_SETTINGS[options.scale].describe(), *([] if options.losses else [describe_skipped()])]
    if trials:
        parts.append(f"{options.seeds} {'seed' if options.seeds == 1 else 'seeds'}")
        configs = [trial.config.with_loss_defaults() for trial in trials]
        kinds: dict[tuple[int | None, int], set[float]] = {}
        for config in configs:
            temperatures = kinds.setdefault((config.max_instances, config.epochs), set())
            if config.temperature is not None and not config.supervised:
                temperatures.add(config.temperature)
        for (max_instances, epochs), temperatures in sorted(kinds.items(), key=str):
            instances = f"the first {max_instances:,} training instances" if max_instances else "all training instances"
            used = ", ".join(f"{temperature:g}" for temperature in sorted(temperatures))
            parts.append(f"{instances}, {epochs or 'default'} epochs" + (f", temperature {used}" if used else ""))
        if precisions := {trial.resolved_config.precision for trial in trials} - {"32"}:
            parts.append(f"precision {', '.join(sorted(precisions))}")
        if EXPERIMENTS[name].has_search:
            parts.append(f"{options.search_trials} search trials for each loss")
        parts.append(
            "losses "
            + (
                "as in the authors' released code"
                if options.released_variant
                else "by the papers' equations"
                if name in BEYOND_PAPER
                else "by the paper's equations"
            )
        )
        if options.missing_rate:
            parts.append(f"{options.missing_rate:.0%} of the modalities removed from training")
        experiment = EXPERIMENTS[name]
        values = (
            experiment.get_paper_value(trial.coordinates, metric) for trial in trials for metric in experiment.metrics
        )
        if options.scale == "paper" and not options.matches_paper and any(value is not None for value in values):
            parts.append(
                "without the paper's values, which need --released-variant and no --max-instances, --epochs or "
                "--missing-rate"
            )
    return "; ".join(parts) + "."
