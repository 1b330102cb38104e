"""The logger of the library, its output on stderr and in the log.txt of a run, and output to stderr that never raises.

The library logs to `logging.getLogger("manyviews")`, which is silent by default. A command or a training shows the
records on stderr, and a training writes them to log.txt, both on rank zero only. Python warnings take the same way.
"""

import io
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO, NamedTuple, cast

from manyviews.utils.text import escape_control_characters
from manyviews.utils.untrusted import read_text

logger = logging.getLogger("manyviews")
logger.addHandler(logging.NullHandler())

FILE_ONLY = {"target": "file"}
"""Value of `extra` for a record that is written to log.txt and not shown."""
_CONSOLE_ONLY = {"target": "console"}
_PYTHON_WARNING = re.compile(r".*?:\d+: \w+: (?P<text>.*?)\n(  [^\n]*\n)?", re.DOTALL)
"""Format of the records of `logging.captureWarnings`: file, line number, category, text, source line."""
_LINE = re.compile(r"(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\S*)  (?P<level>[A-Z ]{8})  (?P<message>.*)")


class ConsoleHandler(logging.Handler):
    """Prints records to stderr, warnings in yellow after the prefix."""

    def __init__(self, prefix: str = "") -> None:
        super().__init__(logger.level)
        self.prefix = prefix

    def emit(self, record: logging.LogRecord) -> None:
        """Print a line."""
        if getattr(record, "target", "console") != "console":
            return
        text = record.getMessage()
        if record.levelno >= logging.WARNING:
            text = f"{self.prefix}warning: {text}"
            if STDERR.isatty() and "NO_COLOR" not in os.environ:
                text = f"\x1b[1;33m{text}\x1b[0m"
        print_stderr(text)


class LogFileHandler(logging.Handler):
    """Appends records to a file, with those from before it was opened. A full disk does not raise."""

    def __init__(self) -> None:
        super().__init__()
        self.path: Path | None = None
        self.lines: list[str] = []

    def open(self, path: Path) -> None:
        """Write the records so far and all later ones to this file."""
        self.path = path
        self._write()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line with time, level and text."""
        if getattr(record, "target", "file") == "file":
            time = datetime.fromtimestamp(record.created).astimezone().isoformat(sep=" ", timespec="seconds")
            self.lines.append(f"{time}  {record.levelname:<8}  {record.getMessage()}\n")
            self._write()

    def _write(self) -> None:
        if self.path is None or not self.lines:
            return
        lines, self.lines = self.lines, []
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.writelines(lines)
        except OSError as error:
            logger.warning(f"cannot write {self.path}: {error}", extra=_CONSOLE_ONLY)


class _RootHandler(logging.Handler):
    """Passes records on to the handlers that the user gave the root logger, if its level allows them."""

    def emit(self, record: logging.LogRecord) -> None:
        if logging.root.handlers and logging.root.isEnabledFor(record.levelno):
            logging.root.handle(record)


def _simplify(record: logging.LogRecord) -> bool:
    """Reduce a record to one line of printable text, so that every handler can write it; a filter of loggers."""
    text = record.getMessage()
    if record.name == "py.warnings" and (match := _PYTHON_WARNING.fullmatch(text)):
        text = match["text"]
    record.msg, record.args = escape_control_characters(text), ()
    return True


@contextmanager
def handle_logs(*handlers: logging.Handler) -> Iterator[None]:
    """Pass records of the library and Python warnings to these handlers, and not to former console handlers."""
    if handlers and logger.propagate:
        handlers = (*handlers, _RootHandler(logger.level))
    consoles = _list_consoles()
    loggers = [logger, logging.getLogger("py.warnings")]
    states = [(log.level, log.propagate, log.filters.copy()) for log in loggers]
    show = warnings.showwarning
    logging.captureWarnings(True)
    is_captured_before = warnings.showwarning is show
    try:
        for log in loggers:
            log.setLevel(logging.INFO)
            log.propagate = False
            log.addFilter(_simplify)
            _replace_handlers(log, consoles, handlers)
        yield
    finally:
        for log, (level, log.propagate, log.filters) in zip(loggers, states, strict=True):
            log.setLevel(level)
            _replace_handlers(log, handlers, consoles)
        if not is_captured_before:
            logging.captureWarnings(False)


def _list_consoles() -> list[logging.Handler]:
    return [handler for handler in logger.handlers if isinstance(handler, ConsoleHandler)]


def _replace_handlers(log: logging.Logger, old: Iterable[logging.Handler], new: Iterable[logging.Handler]) -> None:
    for handler in old:
        log.removeHandler(handler)
    for handler in new:
        log.addHandler(handler)


@contextmanager
def log_training(is_rank_zero: bool, quiet: bool) -> Iterator[LogFileHandler]:
    """Log to stderr, unless `quiet` is true or the user gave the logger handlers, and to the file once it is opened.

    An exception is logged to the file and raised.
    """
    file = LogFileHandler()
    is_configured = not all(isinstance(handler, logging.NullHandler) for handler in logger.handlers)
    consoles = [] if quiet else _list_consoles() if is_configured else [ConsoleHandler()]
    with handle_logs(*((*consoles, file) if is_rank_zero else ())):
        try:
            yield file
        except BaseException as error:
            logger.error(f"{type(error).__name__}: {error}", extra=FILE_ONLY)
            raise


class LogEntry(NamedTuple):
    """A line of log.txt."""

    time: str
    level: str
    message: str


def read_log(path: Path) -> list[LogEntry]:
    """Read the entries of a log.txt; lines of another format are left out."""
    matches = map(_LINE.fullmatch, read_text(path, errors="replace").splitlines())
    return [LogEntry(match["time"], match["level"].strip(), match["message"]) for match in matches if match]


class _BestEffortStderr(io.TextIOBase):
    """The current sys.stderr as a file for rich; a closed pipe, a full disk or a lost terminal drops the output."""

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):  # ValueError: stderr is closed
            self._get_stream().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._get_stream().flush()

    def isatty(self) -> bool:
        with suppress(ValueError):
            return self._get_stream().isatty()
        return False

    @staticmethod
    def _get_stream() -> IO[str]:
        # While rich shows a bar, sys.stderr is a proxy that writes to this file.
        return getattr(sys.stderr, "rich_proxied_file", sys.stderr) or io.StringIO()


STDERR = cast("IO[str]", _BestEffortStderr())


def print_stderr(text: str) -> None:
    """Print a line, above the progress bar if there is one."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            print(text, file=sys.stderr, flush=True)
