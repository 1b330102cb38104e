"""What a person sees of a run: a bar on a terminal, plain lines elsewhere, and all of it in log.txt."""

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

from manyviews.evaluation.progress import PLAIN_SECONDS, duration, quiet
from manyviews.utils.stderr import STDERR, print_stderr
from manyviews.utils.text import escape_control_characters


@contextmanager
def overheard() -> Iterator[list[str]]:
    """What is warned of in here, as it is shown, for a journal that is yet to come."""
    heard: list[str] = []
    with warnings.catch_warnings():
        shown = warnings.showwarning

        def hear(message: Warning | str, *rest: Any, **more: Any) -> None:
            heard.append(str(message))
            shown(message, *rest, **more)

        warnings.showwarning = hear
        yield heard


class Journal:
    """Says things on rank 0; other ranks are silent."""

    def __init__(self, path: Path, *, silent: bool, quiet: bool) -> None:
        self.path = None if silent else path
        self.shown = not (silent or quiet)
        self.console = Console(file=STDERR, highlight=False, soft_wrap=True)
        self.bar: Progress | None = None

    def begin(self, steps: int, done: int) -> None:
        """Show progress from here on: `done` of so many steps."""
        self.steps, self.first = steps, done
        self.started = self.last = time.monotonic()
        if self.shown and self.console.is_terminal:
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

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        if self.bar:
            self.bar.stop()
        if error is not None:
            self.keep(f"{type(error).__name__}: {error}")

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Others may show their progress in here, unless this one shows nothing."""
        if self.bar:
            self.bar.stop()
            self.bar = None
        with nullcontext() if self.shown else quiet():
            yield

    def say(self, text: str, style: str = "") -> None:
        self.keep(text)
        if self.shown:
            self.console.print(escape_control_characters(text), style=style, markup=False)

    def warn(self, message: object, *_: Any, **__: Any) -> None:
        """Said loudly; also what `warnings.showwarning` may be set to."""
        self.say(f"warning: {message}", "bold yellow")

    def step(self, step: int, epoch: int, loss: float, rate: float, instances: int) -> None:
        """After `step` steps of so many instances each."""
        now = time.monotonic()
        speed = (step - self.first) * instances / max(now - self.started, 1e-9)
        if self.bar:
            self.bar.update(self.task, completed=step, epoch=epoch, loss=loss, rate=rate, speed=speed)
        if now - self.last < PLAIN_SECONDS and step != self.steps:
            return
        self.last = now
        left = (self.steps - step) * instances / speed
        line = (
            f"step {step}/{self.steps}  epoch {epoch}  loss {loss:.4f}  rate {rate:.4g}  "
            f"{speed:,.0f} instances/s  {duration(left)} left"
        )
        self.keep(line)
        if self.shown and not self.bar:
            print_stderr(line)

    def keep(self, text: str) -> None:
        """In log.txt alone."""
        if self.path is None:
            return
        stamp = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(f"{stamp}  {escape_control_characters(text)}\n")
        except OSError as error:  # a full disk must not end a run over its log
            if self.shown:
                self.console.print(escape_control_characters(f"cannot write {self.path}: {error}"), markup=False)
