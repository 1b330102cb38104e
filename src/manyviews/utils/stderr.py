"""Output to stderr that never raises: a closed pipe, a full disk or a lost terminal drops messages."""

from __future__ import annotations

import io
import sys
from contextlib import suppress
from typing import IO, Any, cast


class _BestEffortStderr:
    """The current sys.stderr as a file for rich consoles."""

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):  # ValueError: stderr is closed
            self._stream().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream().flush()

    def isatty(self) -> bool:
        with suppress(ValueError):
            return bool(self._stream().isatty())
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream(), name)

    @staticmethod
    def _stream() -> Any:
        # While rich shows a bar, sys.stderr is a proxy that writes to this file.
        return getattr(sys.stderr, "rich_proxied_file", sys.stderr) or io.StringIO()


STDERR = cast("IO[str]", _BestEffortStderr())


def print_stderr(text: str) -> None:
    """Print a line, above the progress bar if there is one."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            print(text, file=sys.stderr, flush=True)
