"""Summaries of run directories, complete or not."""

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from manyviews.evaluation import EvaluationResult, load_evaluation
from manyviews.runs import Run
from manyviews.training import ConfigError

MAX_WARNINGS = 5


@dataclass(frozen=True)
class RunSummary:
    """The content of a run directory; unreadable files are listed in `problems`."""

    run: Run
    name: str
    """Unique in the report."""
    index: int
    """Position in the report: selects color, dashes and markers."""
    metrics: list[dict[str, float]]
    evaluation: EvaluationResult | None
    problems: list[str]

    @property
    def data(self) -> str:
        """Name of the dataset."""
        path = self.run.config.data
        return self.evaluation.dataset if self.evaluation else Path(path).name or path

    @property
    def views(self) -> str:
        return str(self.run.config.num_views)

    @property
    def loss(self) -> str:
        return "supervised" if self.run.config.supervised else self.run.config.loss

    @property
    def trains_on_monitored(self) -> bool:
        """Whether the monitored instances are training instances."""
        return not self.run.config.monitor_size

    def get_last_monitored(self, name: str) -> float | None:
        """Get the last value of a metric in metrics.csv."""
        return next((row[name] for row in reversed(self.metrics) if name in row), None)


def describe_monitored(summaries: Sequence[RunSummary]) -> str:
    """Describe whether monitored instances are training instances."""
    names = [summary.name for summary in summaries if summary.trains_on_monitored]
    if len(names) == len(summaries):
        return "Measured on training instances."
    if not names:
        return "Measured on instances that are not trained on."
    return f"Measured on instances that are not trained on; in {', '.join(names)} on training instances."


def load_summaries(paths: Sequence[str | Path]) -> list[RunSummary]:
    """Load the summaries of runs.

    Raises:
        ConfigError: a path is not a run, or is given twice.
    """
    if not paths:
        raise ConfigError("a report needs at least one run directory")
    runs = [Run.open(path) for path in paths]
    resolved = [run.path.resolve() for run in runs]
    for i, path in enumerate(resolved):
        if path in resolved[:i]:
            raise ConfigError(f"{runs[i].path} is given twice: name each run once")
    # Directory names, or paths where names are not unique.
    short = [path.name for path in resolved]
    names = [name if short.count(name) == 1 else str(run.path) for name, run in zip(short, runs, strict=True)]
    return [_load_summary(run, names[i], i) for i, run in enumerate(runs)]


def _load_summary(run: Run, name: str, index: int) -> RunSummary:
    metrics: list[dict[str, float]] = []
    evaluation = None
    problems = []
    try:
        metrics = [
            {key: value for key, value in row.items() if math.isfinite(value)}
            for row in run.read_metrics()
            if "step" in row
        ]
    except FileNotFoundError:
        problems.append("There is no metrics.csv yet.")
    except (OSError, ValueError, TypeError) as error:
        problems.append(f"Cannot read metrics.csv: {error}.")
    try:
        evaluation = load_evaluation(run)
    except ConfigError as error:
        problems.append(f"{str(error)[0].upper()}{str(error)[1:]}.")
    if run.is_finished and not (run.path / "evaluation.json").exists():
        problems.append(f"Not evaluated: run `manyviews evaluate {shlex.quote(str(run.path))}`.")
    if not run.is_finished:
        epochs = [int(row["epoch"]) for row in metrics if "epoch" in row]
        done = f", in epoch {epochs[-1] + 1} of {run.config.epochs}" if epochs else ""
        problems.insert(0, f"Not finished{done}: resume with `manyviews train --resume {shlex.quote(str(run.path))}`.")
    return RunSummary(run, name, index, metrics, evaluation, problems + _read_warnings(run))


def _read_warnings(run: Run) -> list[str]:
    """Return the last warnings in the log, without duplicates."""
    try:
        entries = run.read_log()
    except (OSError, ValueError):
        return []
    messages = dict.fromkeys(entry.message for entry in entries if entry.level == "WARNING")
    return [f"Warning in training: {message}" for message in list(messages)[-MAX_WARNINGS:]]
