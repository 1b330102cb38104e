"""The files of a table: what their heads state, and that a table of other options is not replaced."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from manyviews.data import as_path
from manyviews.reproduce import theorem
from manyviews.reproduce.claims import Claim
from manyviews.reproduce.experiments import EXPERIMENTS, ReproduceOptions
from manyviews.reproduce.pivot_tables import make_claims_table
from manyviews.reproduce.synergy import SCALE_SETTINGS
from manyviews.reproduce.synergy_table import describe_skipped
from manyviews.reproduce.trials import Coordinates, Trial
from manyviews.training import Config, ConfigError
from manyviews.utils import Table, write_atomic

ANALYSES = {
    "theorem": "limits of the losses as instances grow, and their minimizers",
    "principles": "the principles of Table I, measured for every loss",
    "synergy": "what pairs of views cannot see: XOR of two views, every loss",
}
SMOKE_NOTE = "Smoke runs are too short to test the paper's claims."


@dataclass(frozen=True)
class Outcome:
    """The setting as a sentence, the tables, the claims, the files written, and the trials without result."""

    setting: str
    tables: tuple[Table, ...]
    claims: tuple[Claim, ...]
    files: tuple[Path, ...]
    failed: dict[str, str] = field(default_factory=dict)
    """The reason of each failed trial."""
    missing: tuple[Trial, ...] = ()
    """Trials that are not finished, including those that failed."""


def check_table_files(name: str, options: ReproduceOptions, runs: Path, output: Path, overwrite: bool) -> None:
    """Raise if files of this table exist that were made with other or unknown options."""
    files = [path for suffix in ("md", "csv", "tex", "png", "pdf") if (path := output / f"{name}.{suffix}").exists()]
    if overwrite or not files:
        return
    text = files[0].read_text(errors="replace") if files[0].suffix == ".md" else ""
    if format_provenance(name, options) not in text:
        provenance = next(
            (line for line in text.splitlines() if line.startswith("Made by ")), "Its options are unknown."
        )
        raise ConfigError(
            f"{files[0]} was not made by `{options.format_command(name)}`. {provenance} Choose another --output "
            f"(with --runs {runs} to reuse finished trials), or pass --overwrite"
        )


def format_provenance(name: str, options: ReproduceOptions) -> str:
    return f"Made by `{options.format_command(name)}`."


def describe_missing(missing: Sequence[Trial], total: int) -> str:
    """List the trials of a table that are not finished, by coordinates.

    Examples:
        >>> from manyviews.training import Config
        >>> trial = Trial(Config(seed=1), coordinates=Coordinates(loss="pvc", views=2))
        >>> describe_missing([trial], 6)
        'Not finished: 1 of 6 trials: loss pvc, views 2 (seed 1).'
    """
    seeds: dict[Coordinates, list[str]] = {}
    for trial in missing:
        seeds.setdefault(trial.coordinates, []).append(str(trial.config.seed))
    texts = [
        f"{coords} ({'seed' if len(values) == 1 else 'seeds'} {', '.join(values)})" for coords, values in seeds.items()
    ]
    return f"Not finished: {len(missing)} of {total} trials: {'; '.join(texts)}."


def write_table_files(
    name: str,
    options: ReproduceOptions,
    output: Path,
    tables: Sequence[Table],
    claims: Sequence[Claim],
    origin: str,
    trials: Sequence[Trial] = (),
    notes: Sequence[str] = (),
) -> Outcome:
    """Write the .md and .tex files, and for analyses the .csv; smoke runs test no claim.

    Args:
        name: of the table.
        options: of the table.
        output: the folder of the files.
        tables: tables of results.
        claims: the claims about them.
        origin: the commit, versions and machine of the results, as a sentence.
        trials: the trials of the table, which its setting describes.
        notes: trials that are missing or failed.
    """
    claims = () if options.scale == "smoke" else claims
    description = ANALYSES.get(name) or EXPERIMENTS[name].description
    setting = _describe_setting(name, options, trials)
    titles = () if _is_in_paper(name) else ("Claims, and whether they held here",)
    all_tables = (*tables, *([make_claims_table(claims, *titles)] if claims else []))
    head = [setting, format_provenance(name, options), origin, *notes]
    head += [SMOKE_NOTE] if options.scale == "smoke" else []
    lines = [f"# {name}: {description}", ""]
    for line in head:
        lines += [line, ""]
    if (output / f"{name}.png").exists():
        lines += [f"![{description}]({name}.png)", ""]
    for table in all_tables:
        lines += [table.to_markdown(), ""]
    files = [output / f"{name}.md", output / f"{name}.tex"]
    write_atomic(files[0], "\n".join(lines))
    write_atomic(files[1], "\n".join([*(f"% {line}" for line in head), *(table.to_latex() for table in all_tables)]))
    if name in ANALYSES:
        files.append(output / f"{name}.csv")
        write_atomic(files[-1], "\n".join(table.to_csv() for table in tables))
    return Outcome(setting, tuple(tables), tuple(claims), tuple(files))


def _describe_temperature(config: Config) -> str:
    """Return the temperature as a number, or "default" if it depends on the data; empty if there is none."""
    if config.supervised:
        return ""
    if config.temperature is None and as_path(config.data) is not None:
        return "default"
    temperature = config.with_loss_defaults().temperature
    return "" if temperature is None else f"{temperature:g}"


def _is_in_paper(name: str) -> bool:
    return EXPERIMENTS[name].is_in_paper if name in EXPERIMENTS else name != "synergy"


def _describe_setting(name: str, options: ReproduceOptions, trials: Sequence[Trial]) -> str:
    parts = [f"Scale {options.scale}"]
    if name == "theorem":
        parts.append(theorem.SETTING)
    if name == "synergy":
        parts += [SCALE_SETTINGS[options.scale].describe(), *([] if options.losses else [describe_skipped()])]
    if trials:
        parts.append(f"{options.seeds} {'seed' if options.seeds == 1 else 'seeds'}")
        kinds: dict[tuple[int | None, int], set[str]] = {}
        for trial in trials:
            temperatures = kinds.setdefault((trial.config.max_instances, trial.config.epochs), set())
            if temperature := _describe_temperature(trial.config):
                temperatures.add(temperature)
        for (max_instances, epochs), temperatures in sorted(kinds.items(), key=str):
            instances = f"the first {max_instances:,} training instances" if max_instances else "all training instances"
            used = ", ".join(sorted(temperatures))
            parts.append(f"{instances}, {epochs or 'default'} epochs" + (f", temperature {used}" if used else ""))
        precisions = {trial.resolved_config.precision for trial in trials}
        if precisions != {"32"}:
            parts.append(f"precision {' and '.join(sorted(precisions))}")
        if EXPERIMENTS[name].has_search:
            parts.append(f"{options.search_trials} search trials for each loss")
        parts.append(
            "losses "
            + (
                "as in the authors' released code"
                if options.released_variant
                else "by the paper's equations"
                if _is_in_paper(name)
                else "by the papers' equations"
            )
        )
        parts += [EXPERIMENTS[name].settings] if EXPERIMENTS[name].settings else []
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
