"""Console output of a run: a progress bar on a terminal, plain lines elsewhere, and everything in log.txt."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from manyviews.utils import (
    LOG_EVERY_SECONDS,
    STDERR,
    escape_control_characters,
    format_duration,
    hide_progress,
    print_stderr,
)


@contextmanager
def capture_warnings() -> Iterator[list[str]]:
    """Collect warnings raised in this block (they are still shown), so that they can be logged later."""
    messages: list[str] = []
    with warnings.catch_warnings():
        original = warnings.showwarning

        def record(message: Warning | str, *args: Any, **kwargs: Any) -> None:
            messages.append(str(message))
            original(message, *args, **kwargs)

        warnings.showwarning = record
        yield messages


class RunLogger:
    """Logs to the console and to log.txt on rank 0; other ranks are silent."""

    def __init__(self, path: Path, *, silent: bool, quiet: bool) -> None:
        self.path = None if silent else path
        self.is_shown = not (silent or quiet)
        self.console = Console(file=STDERR, highlight=False, soft_wrap=True)
        self.bar: Progress | None = None

    def start_progress(self, steps: int, done: int) -> None:
        """Show progress, starting at `done` of `steps` steps."""
        self.steps, self.first = steps, done
        self.started = self.last = time.monotonic()
        if self.is_shown and self.console.is_terminal:
            fields = "loss {task.fields[loss]:.4f}  rate {task.fields[rate]:.4g}  {task.fields[speed]:,.0f} instances/s"
            self.bar = Progress(
                TextColumn("epoch {task.fields[epoch]}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn(fields),
                TimeRemainingColumn(),
                console=self.console,
            )
            self.task = self.bar.add_task("", total=steps, completed=done, epoch=0, loss=0.0, rate=0.0, speed=0.0)
            self.bar.start()

    def __enter__(self) -> RunLogger:
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        if self.bar:
            self.bar.stop()
        if error is not None:
            self.log_to_file(f"{type(error).__name__}: {error}")

    @contextmanager
    def pause_progress(self) -> Iterator[None]:
        """Stop the progress bar, so that other progress can be shown in this block."""
        if self.bar:
            self.bar.stop()
            self.bar = None
        with nullcontext() if self.is_shown else hide_progress():
            yield

    def info(self, text: str, style: str = "") -> None:
        """Print a line, and write it to log.txt."""
        self.log_to_file(text)
        if self.is_shown:
            self.console.print(escape_control_characters(text), style=style, markup=False)

    def warning(self, message: object, *_: Any, **__: Any) -> None:
        """Print a warning; the signature fits `warnings.showwarning`."""
        self.info(f"warning: {message}", "bold yellow")

    def log_step(self, step: int, epoch: int, loss: float, rate: float, instances: int) -> None:
        """Report the progress after `step` steps; `instances` is the number per step."""
        now = time.monotonic()
        speed = (step - self.first) * instances / max(now - self.started, 1e-9)
        if self.bar:
            self.bar.update(self.task, completed=step, epoch=epoch, loss=loss, rate=rate, speed=speed)
        if now - self.last < LOG_EVERY_SECONDS and step != self.steps:
            return
        self.last = now
        seconds_left = (self.steps - step) * instances / speed
        line = (
            f"step {step}/{self.steps}  epoch {epoch}  loss {loss:.4f}  rate {rate:.4g}  "
            f"{speed:,.0f} instances/s  {format_duration(seconds_left)} left"
        )
        self.log_to_file(line)
        if self.is_shown and not self.bar:
            print_stderr(line)

    def log_to_file(self, text: str) -> None:
        """Write a line to log.txt only."""
        if self.path is None:
            return
        stamp = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(f"{stamp}  {escape_control_characters(text)}\n")
        except OSError as error:  # a full disk must not stop the run
            if self.is_shown:
                self.console.print(escape_control_characters(f"cannot write {self.path}: {error}"), markup=False)
