"""Metrics of a run: `metrics.csv`, and optionally TensorBoard and Weights & Biases.

The file has no times, so that a resumed and an uninterrupted run have the same bytes.
"""

import csv
import io
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from manyviews.training.config import Config, ConfigError
from manyviews.utils import logger, read_text, write_atomic

COLUMNS = (
    "step", "epoch", "loss", "learning_rate", "temperature", "knn", "alignment", "uniformity", "rank", "rankme",
    "knn_k", "grad_norm",
)  # fmt: skip
"""New columns are appended at the end, so that rows written by an earlier version still fit the header."""

Row = Mapping[str, float]


class MetricLogger(Protocol):
    """Destination of metrics."""

    def write(self, row: Row) -> None: ...
    def close(self) -> None: ...


class MetricsFile:
    """Metrics file: `flush` writes the collected rows to disk and passes them to the other loggers.

    If the disk is full, rows stay in memory. If the file was truncated or deleted, it is written again.
    """

    def __init__(self, path: Path, step: int, loggers: list[MetricLogger]) -> None:
        """Continue after `step`; rows of later steps and truncated rows are removed."""
        self.path = path
        self.loggers = loggers
        self.rows: list[Row] = []
        kept = [",".join(COLUMNS) + "\n"]
        if path.exists():
            for line in read_text(path, errors="replace").splitlines(keepends=True)[1:]:
                line_step = line.partition(",")[0]
                if line.endswith("\n") and re.fullmatch(r"[0-9]{1,18}", line_step) and int(line_step) <= step:
                    kept.append(line)
        if len(kept) != step + 1:
            logger.warning(f"{path} has {len(kept) - 1} rows for {step} steps")
        self.written = bytearray("".join(kept).encode())
        write_atomic(path, bytes(self.written))

    def flush(self) -> None:
        """Write the rows; if this raises an OSError, they are kept for the next flush."""
        if not self.rows:
            return
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, COLUMNS, restval="", lineterminator="\n")
        writer.writerows(self.rows)
        new = buffer.getvalue().encode()
        if self.path.exists() and self.path.stat().st_size >= len(self.written):
            with self.path.open("r+b") as file:
                file.seek(len(self.written))
                file.truncate()  # a partial row left by a full disk
                file.write(new)
                file.flush()
                os.fsync(file.fileno())
        else:
            write_atomic(self.path, bytes(self.written + new))
        self.written += new
        rows, self.rows = self.rows, []
        for metric_logger in self.loggers:
            _write_rows(rows, metric_logger)

    def close(self) -> None:
        for metric_logger in self.loggers:
            metric_logger.close()


def _write_rows(rows: list[Row], metric_logger: MetricLogger) -> None:
    try:
        for row in rows:
            metric_logger.write(row)
    except (OSError, RuntimeError) as error:
        logger.warning(f"{type(metric_logger).__name__} lost rows: {error}")


def read_metrics(path: Path) -> list[dict[str, float]]:
    """Read the rows of a metrics file; empty cells are left out."""
    integers = {"step", "epoch", "rank", "knn_k"}
    try:
        rows = csv.DictReader(io.StringIO(read_text(path), newline=""))
        return [{k: int(v) if k in integers else float(v) for k, v in row.items() if v} for row in rows]
    except (ValueError, TypeError, csv.Error) as error:
        raise ConfigError(f"cannot parse {path}: {error}") from error


def check_loggers(config: Config) -> None:
    """Raise a ConfigError if a logger of the config is not installed."""
    for name in config.loggers:
        package = name.partition("-")[0]
        try:
            __import__(package)
        except ImportError as error:
            raise ConfigError(f"the logger {name} requires: pip install 'manyviews[{package}]' ({error})") from error


def check_wandb_login(loggers: tuple[str, ...]) -> None:
    """Raise a ConfigError if Weights & Biases needs a login and there is none."""
    if "wandb" in loggers:
        with _explain_wandb_error() as wandb:
            wandb.login()


@contextmanager
def _explain_wandb_error() -> Iterator[Any]:
    import wandb

    try:
        yield wandb
    except wandb.Error as error:
        raise ConfigError(
            f"cannot start the logger wandb: {error} Run `wandb login`, or use --loggers wandb-offline"
        ) from error


def make_loggers(config: Config, folder: Path, run_id: str, step: int) -> list[MetricLogger]:
    """Create the loggers of a config; they continue after `step`."""
    return [
        TensorBoardLogger(folder, step)
        if name == "tensorboard"
        else WandBLogger(config, folder, run_id, name == "wandb-offline")
        for name in config.loggers
    ]


class TensorBoardLogger:
    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def write(self, row: Row) -> None:
        for name, value in row.items():
            if name != "step":
                self.writer.add_scalar(name, value, int(row["step"]))

    def close(self) -> None:
        self.writer.close()


class WandBLogger:
    """Logs a run and its resumptions as one W&B run; W&B ignores steps that it already has."""

    def __init__(self, config: Config, folder: Path, run_id: str, offline: bool) -> None:
        with _explain_wandb_error() as wandb:  # most often there is no connection
            self.run: Any = wandb.init(
                project="manyviews",
                name=folder.name,
                dir=str(folder),
                id=run_id,
                resume="allow",
                mode="offline" if offline else "online",
                config=vars(config),
            )

    def write(self, row: Row) -> None:
        self.run.log({name: value for name, value in row.items() if name != "step"}, step=int(row["step"]))

    def close(self) -> None:
        self.run.finish()
