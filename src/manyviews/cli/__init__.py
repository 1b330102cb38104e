"""The command line: `manyviews train`, `evaluate`, `reproduce`, `embed`, `neighbours`, `export`, `data`, ..."""

import os
import signal
import sys
from typing import TextIO


def main() -> None:
    """Run a command. What it needs is imported in here, so that Ctrl-C ends that quietly too."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from manyviews.cli.commands import run_command

    try:
        sys.exit(run_command())
    finally:
        for stream in (sys.stdout, sys.stderr):
            _flush(stream)


def _flush(stream: TextIO | None) -> None:
    """Write what is left, or drop it: else the interpreter tries again when it ends, and complains."""
    if stream is None or stream.closed:
        return
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
