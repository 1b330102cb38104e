"""What a run's directory says about it, whole or not."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyviews.training import ConfigError, Run
from manyviews.training.run import CONFIG, made_with_in
from manyviews.utils.untrusted import read_text

MOST_WARNINGS = 5


@dataclass(frozen=True)
class Account:
    """A run as it was found: what could not be read is left out, and `troubles` says so."""

    run: Run
    name: str
    """Which no other run of the report has."""
    number: int
    """In the report: gives its colour, dashes and marks."""
    metrics: list[dict[str, float]]
    evaluation: dict[str, Any]
    made_with: dict[str, str]
    troubles: list[str]

    @property
    def data(self) -> str:
        """The name of its data."""
        return str(self.evaluation.get("data") or Path(self.run.config.data).name or self.run.config.data)

    @property
    def views(self) -> str:
        config = self.run.config
        return str(len(config.modalities) or config.views) if config.policy == "modalities" else str(config.views)

    @property
    def objective(self) -> str:
        return "supervised" if self.run.config.supervised else self.run.config.objective

    @property
    def trained_on(self) -> bool:
        """Whether the instances that were monitored are trained on."""
        return not self.run.config.held_out

    def geometry(self, kind: str) -> dict[str, Any]:
        """Of representations h or embeddings z, all modalities together; empty if it was not looked at."""
        shape = (self.evaluation.get("geometry") or {}).get(kind) or {}
        found: dict[str, Any] = shape.get("all", shape)
        return found

    def watched(self, name: str) -> float | None:
        """The last look at the watched instances in training."""
        return next((row[name] for row in reversed(self.metrics) if name in row), None)


def whom(accounts: Sequence[Account]) -> str:
    """Whether the metrics of the training are of held-out instances or of instances that are trained on."""
    names = [account.name for account in accounts if account.trained_on]
    if len(names) == len(accounts):
        return "Of instances that are trained on, not of new ones."
    if not names:
        return "Of held-out instances."
    return f"Of held-out instances; in {', '.join(names)} of instances that are trained on, not of new ones."


def accounts(paths: Sequence[str | Path]) -> list[Account]:
    """All that is known of some runs.

    Raises:
        ConfigError: a path is no run, or is given twice.
    """
    if not paths:
        raise ConfigError("a report needs a run: name the directory of one")
    runs = [Run.open(path) for path in paths]
    places = [run.path.resolve() for run in runs]
    for number, place in enumerate(places):
        if place in places[:number]:
            raise ConfigError(f"{runs[number].path} is given twice: name each run once")
    names = _names(runs, places)
    return [_account(run, names[number], number) for number, run in enumerate(runs)]


def _names(runs: Sequence[Run], places: Sequence[Path]) -> list[str]:
    """The names of their directories, or the paths where names are not enough."""
    short = [place.name for place in places]
    return [name if short.count(name) == 1 else str(run.path) for name, run in zip(short, runs, strict=True)]


def _account(run: Run, name: str, number: int) -> Account:
    metrics: list[dict[str, float]] = []
    evaluation: dict[str, Any] = {}
    troubles = []
    try:
        metrics = [
            {key: value for key, value in row.items() if math.isfinite(value)} for row in run.metrics if "step" in row
        ]
    except FileNotFoundError:
        troubles.append("There is no metrics.csv yet.")
    except (OSError, ValueError, TypeError) as error:
        troubles.append(f"metrics.csv cannot be read: {error}.")
    try:
        evaluation = run.evaluation or {}
    except (OSError, ValueError) as error:
        evaluation = {}
        troubles.append(f"evaluation.json cannot be read: {error}.")
    if run.finished and not (run.path / "evaluation.json").exists():
        troubles.append(f"It was not evaluated: `manyviews evaluate {shlex.quote(str(run.path))}` does that.")
    if not run.finished:
        epochs = [int(row["epoch"]) for row in metrics if "epoch" in row]
        done = f", in epoch {epochs[-1] + 1} of {run.config.epochs}" if epochs else ""
        troubles.insert(0, f"Not finished{done}: `manyviews train --resume {shlex.quote(str(run.path))}` goes on.")
    return Account(run, name, number, metrics, evaluation, _made_with(run.path), troubles + _warnings(run.path))


def _made_with(path: Path) -> dict[str, str]:
    return made_with_in(read_text(path / CONFIG))


def _warnings(path: Path) -> list[str]:
    """What the run was warned of, the last of each kind of line."""
    try:
        lines = read_text(path / "log.txt", errors="replace").splitlines()
    except (OSError, ValueError):
        return []
    said = dict.fromkeys(line.partition("  warning: ")[2] for line in lines if "  warning: " in line)
    return [f"Warned in training: {line}" for line in list(said)[-MOST_WARNINGS:]]
