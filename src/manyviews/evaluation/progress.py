"""A sign of life from long work: nothing at first, then a bar on a terminal, or plain lines elsewhere."""

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
AFTER = 3.0
"""Seconds before anything is shown."""
PLAIN_SECONDS = 10.0
"""Between two lines of progress where there is no terminal."""

_silent: ContextVar[bool] = ContextVar("silent", default=False)


@contextmanager
def quiet() -> Iterator[None]:
    """Nothing is shown in here: somebody else shows progress, or nobody shall."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)


def tracked(
    steps: Iterable[T], what: str, total: int | None = None, amount: Callable[[T], int] = lambda _: 1
) -> Iterator[T]:
    """The steps, with progress on stderr when they take long; of work within work the outer one shows it.

    `total` counts what the `amount` of each step adds up to.

    Examples:
        >>> sum(tracked(range(4), "adding", 4))
        6
    """
    if _silent.get():
        yield from steps
        return
    sign, done = _Sign(what, total), 0
    try:
        with quiet():
            for step in steps:
                yield step
                done += amount(step)
                sign.show(done)
    finally:
        sign.end()


class _Sign:
    def __init__(self, what: str, total: int | None) -> None:
        self.what, self.total = what, total
        self.started = self.said = monotonic()
        self.bar: Progress | None = None

    def show(self, number: int) -> None:
        now = monotonic()
        if self.bar:
            self.bar.update(self.bar.task_ids[0], completed=number)
        elif now - self.started > AFTER and STDERR.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = TextColumn(self.what, markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
            self.bar = Progress(*columns, console=Console(file=STDERR), transient=True)
            self.bar.add_task("", total=self.total, completed=number)
            self.bar.start()
        elif now - self.said > PLAIN_SECONDS and not STDERR.isatty():
            self.said = now
            line = f"{self.what}: {number:,}"
            if self.total is not None:
                line += f" of {self.total:,}, {duration((now - self.started) * (self.total / max(number, 1) - 1))} left"
            print_stderr(line)

    def end(self) -> None:
        if self.bar:
            self.bar.stop()


def duration(seconds: float) -> str:
    """As a person writes it.

    Examples:
        >>> duration(3661), duration(75)
        ('1:01:01', '1:15')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
