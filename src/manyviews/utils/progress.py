"""Progress of long work: a bar on a terminal, or plain lines elsewhere, after a few seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from manyviews.utils.stderr import STDERR, print_stderr

if TYPE_CHECKING:
    from rich.progress import Progress


T = TypeVar("T")
SHOW_AFTER_SECONDS = 3.0
"""Seconds before progress is shown."""
LOG_EVERY_SECONDS = 10.0
"""Seconds between two lines of progress without a terminal."""

_is_silent: ContextVar[bool] = ContextVar("silent", default=False)


@contextmanager
def hide_progress() -> Iterator[None]:
    """Suppress nested progress displays within the context."""
    token = _is_silent.set(True)
    try:
        yield
    finally:
        _is_silent.reset(token)


def track(
    steps: Iterable[T], what: str, total: int | None = None, amount: Callable[[T], int] = lambda _: 1
) -> Iterator[T]:
    """Iterate over steps and show progress on stderr if they take long; nested calls show nothing.

    `total` is the sum of `amount(step)` over all steps.

    Examples:
        >>> sum(track(range(4), "adding", 4))
        6
    """
    if _is_silent.get():
        yield from steps
        return
    display, done = _ProgressDisplay(what, total), 0
    try:
        with hide_progress():
            for step in steps:
                yield step
                done += amount(step)
                display.show(done)
    finally:
        display.end()


class _ProgressDisplay:
    def __init__(self, what: str, total: int | None) -> None:
        self.what, self.total = what, total
        self.started = self.last_logged = monotonic()
        self.bar: Progress | None = None

    def show(self, done: int) -> None:
        now = monotonic()
        if self.bar:
            self.bar.update(self.bar.task_ids[0], completed=done)
        elif now - self.started > SHOW_AFTER_SECONDS and STDERR.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = TextColumn(self.what, markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
            self.bar = Progress(*columns, console=Console(file=STDERR), transient=True)
            self.bar.add_task("", total=self.total, completed=done)
            self.bar.start()
        elif now - self.last_logged > LOG_EVERY_SECONDS and not STDERR.isatty():
            self.last_logged = now
            line = f"{self.what}: {done:,}"
            if self.total is not None:
                seconds_left = (now - self.started) * (self.total / max(done, 1) - 1)
                line += f" of {self.total:,}, {format_duration(seconds_left)} left"
            print_stderr(line)

    def end(self) -> None:
        if self.bar:
            self.bar.stop()


def format_duration(seconds: float) -> str:
    """Format seconds as h:mm:ss or m:ss.

    Examples:
        >>> format_duration(3661), format_duration(75)
        ('1:01:01', '1:15')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
