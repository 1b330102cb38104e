"""Progress of long work: a bar on a terminal, or plain lines elsewhere, after a few seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from manyviews.utils.logs import STDERR, print_stderr

if TYPE_CHECKING:
    from rich.progress import Progress


T = TypeVar("T")
SHOW_AFTER_SECONDS = 3.0
"""Seconds before progress is shown."""
LOG_EVERY_SECONDS = 10.0
"""Seconds between two lines of progress without a terminal."""

_is_hidden: ContextVar[bool] = ContextVar("hidden", default=False)


@contextmanager
def hide_progress() -> Iterator[None]:
    """Suppress nested progress displays within the context."""
    token = _is_hidden.set(True)
    try:
        yield
    finally:
        _is_hidden.reset(token)


def start_progress_bar(description: str, total: int | None, done: int = 0) -> Progress | None:
    """Start a bar with one task; return None without a terminal or where progress is hidden."""
    return _start_bar(description, total, done) if STDERR.isatty() and not _is_hidden.get() else None


def _start_bar(description: str, total: int | None, done: int) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    before, after = (TextColumn(f"{{task.{field}}}", markup=False) for field in ("description", "fields[text]"))
    columns = before, BarColumn(), MofNCompleteColumn(), after, TimeRemainingColumn()
    bar = Progress(*columns, console=Console(file=STDERR), transient=True)
    bar.add_task(description, total=total, completed=done, text="")
    bar.start()
    return bar


def track(
    steps: Iterable[T], description: str, total: int | None = None, amount: Callable[[T], int] = lambda _: 1
) -> Iterator[T]:
    """Iterate over steps and show progress on stderr if they take long; nested calls show nothing.

    `total` is the sum of `amount(step)` over all steps.

    Examples:
        >>> sum(track(range(4), "adding", 4))
        6
    """
    if _is_hidden.get():
        yield from steps
        return
    bar, done = None, 0
    started = last_shown = monotonic()
    try:
        with hide_progress():
            for step in steps:
                yield step
                done += amount(step)
                now = monotonic()
                if bar:
                    bar.update(bar.task_ids[0], completed=done)
                elif now - started > SHOW_AFTER_SECONDS and STDERR.isatty():
                    bar = _start_bar(description, total, done)
                elif now - last_shown > LOG_EVERY_SECONDS and not STDERR.isatty():
                    last_shown = now
                    seconds_left = 0 if total is None else (now - started) * (total / max(done, 1) - 1)
                    rest = "" if total is None else f" of {total:,}, {format_duration(seconds_left)} left"
                    print_stderr(f"{description}: {done:,}{rest}")
    finally:
        if bar:
            bar.stop()


def format_duration(seconds: float) -> str:
    """Format seconds as h:mm:ss or m:ss.

    Examples:
        >>> format_duration(3661), format_duration(75)
        ('1:01:01', '1:15')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
