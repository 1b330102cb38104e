"""Run a command in this process: starting Python and importing torch takes longer than most commands."""

import contextlib
import io
import signal
import sys
import warnings
from dataclasses import dataclass
from unittest import mock

from manyviews.cli.app import run_command

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass
class Finished:
    """What a command has printed, and its exit code."""

    returncode: int
    stdout: str
    stderr: str


def manyviews(*arguments: str) -> Finished:
    """Run `manyviews ARGUMENTS` and leave signal handlers and warning filters as they were."""
    # Not StringIO: a text file with an encoding, as in a terminal or a pipe.
    files = [io.BytesIO(), io.BytesIO()]
    stdout, stderr = (io.TextIOWrapper(file, encoding="utf-8", write_through=True) for file in files)
    handlers = {signum: signal.getsignal(signum) for signum in SIGNALS}
    try:
        with (
            mock.patch.object(sys, "argv", ["manyviews", *arguments]),
            warnings.catch_warnings(),
            contextlib.redirect_stdout(stdout),
            contextlib.redirect_stderr(stderr),
        ):
            warnings.simplefilter("default")
            code = run_command()
    except SystemExit as stop:
        code = int(stop.code or 0)
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
    return Finished(code, *(file.getvalue().decode() for file in files))
