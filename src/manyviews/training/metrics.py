"""Metrics of a run: `metrics.csv` always, TensorBoard and Weights & Biases when asked.

The file holds nothing that depends on the clock, so that a resumed run's equals an uninterrupted one's byte for byte.
"""

from __future__ import annotations

import csv
import io
import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from manyviews.training.config import Config, ConfigError
from manyviews.training.files import write_atomically
from manyviews.utils.untrusted import read_text

COLUMNS = (
    "step", "epoch", "loss", "learning_rate", "temperature", "knn", "alignment", "uniformity", "rank", "rankme",
    "knn_k",
)  # fmt: skip
"""A new column goes last: rows that an earlier version wrote then still fit the header."""

Row = Mapping[str, float]


class Sink(Protocol):
    def write(self, row: Row) -> None: ...
    def close(self) -> None: ...


class Metrics:
    """Rows, held in memory until `flush` puts them on the disk and into the other sinks.

    A full disk loses no row: those not written stay until there is room. A file that was cut or deleted is rewritten.
    """

    def __init__(self, path: Path, step: int, sinks: list[Sink]) -> None:
        """Go on after `step`: later rows are dropped, as is one that was cut off."""
        self.path = path
        self.sinks = sinks
        self.rows: list[Row] = []
        kept = [",".join(COLUMNS) + "\n"]
        if path.exists():
            for line in read_text(path, errors="replace").splitlines(keepends=True)[1:]:
                number = line.partition(",")[0]
                if line.endswith("\n") and re.fullmatch(r"[0-9]{1,18}", number) and int(number) <= step:
                    kept.append(line)
        if len(kept) != step + 1:
            warnings.warn(f"{path} has {len(kept) - 1} rows of the {step} steps that were made", stacklevel=2)
        self.written = bytearray("".join(kept).encode())
        write_atomically(path, bytes(self.written))

    def flush(self) -> None:
        """Raise an OSError if the disk takes no more; the rows then wait for the next flush."""
        if not self.rows:
            return
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, COLUMNS, restval="", lineterminator="\n")
        writer.writerows(self.rows)
        new = buffer.getvalue().encode()
        if self.path.exists() and self.path.stat().st_size >= len(self.written):
            with self.path.open("r+b") as file:
                file.seek(len(self.written))
                file.truncate()  # what a full disk left of a row
                file.write(new)
                file.flush()
                os.fsync(file.fileno())
        else:
            write_atomically(self.path, bytes(self.written + new))
        self.written += new
        rows, self.rows = self.rows, []
        for sink in self.sinks:
            _pour(rows, sink)

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()


def _pour(rows: list[Row], sink: Sink) -> None:
    try:
        for row in rows:
            sink.write(row)
    except (OSError, RuntimeError) as error:
        warnings.warn(f"{type(sink).__name__} has lost rows: {error}", stacklevel=3)


def read_metrics(path: Path) -> list[dict[str, float]]:
    """Rows of a metrics file: whole numbers as int, the rest as float, empty cells left out."""
    whole = {"step", "epoch", "rank", "knn_k"}
    try:
        rows = csv.DictReader(io.StringIO(read_text(path), newline=""))
        return [{k: int(v) if k in whole else float(v) for k, v in row.items() if v} for row in rows]
    except (ValueError, TypeError, csv.Error) as error:
        raise ConfigError(f"{path} is damaged: {error}") from error


def check_loggers(config: Config) -> None:
    """Raise if a logger is asked for that is not installed."""
    for name in config.loggers:
        package = name.partition("-")[0]
        try:
            __import__(package)
        except ImportError as error:
            raise ConfigError(f"the logger {name} needs: pip install 'manyviews[{package}]' ({error})") from error


def log_in(loggers: tuple[str, ...]) -> None:
    """Raise, before a run's directory is made, if a logger needs an account and there is none."""
    if "wandb" in loggers:
        import wandb

        try:
            wandb.login()
        except wandb.Error as error:
            raise _without_wandb(error) from error


def _without_wandb(error: Exception) -> ConfigError:
    return ConfigError(f"the logger wandb cannot begin: {error} Call `wandb login`, or take --loggers wandb-offline")


def sinks(config: Config, folder: Path, identity: str, step: int) -> list[Sink]:
    """Where rows go besides the file, from the step after `step` on."""
    return [
        TensorBoard(folder, step) if name == "tensorboard" else WandB(config, folder, identity, name == "wandb-offline")
        for name in config.loggers
    ]


class TensorBoard:
    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def write(self, row: Row) -> None:
        for name, value in row.items():
            if name != "step":
                self.writer.add_scalar(name, value, int(row["step"]))

    def close(self) -> None:
        self.writer.close()


class WandB:
    """One run on the site however often it is resumed; it leaves out steps it already has."""

    def __init__(self, config: Config, folder: Path, identity: str, offline: bool) -> None:
        import wandb

        try:
            self.run: Any = wandb.init(
                project="manyviews",
                name=folder.name,
                dir=str(folder),
                id=identity,
                resume="allow",
                mode="offline" if offline else "online",
                config=vars(config),
            )
        except wandb.Error as error:  # no connection, above all
            raise _without_wandb(error) from error

    def write(self, row: Row) -> None:
        self.run.log({name: value for name, value in row.items() if name != "step"}, step=int(row["step"]))

    def close(self) -> None:
        self.run.finish()
