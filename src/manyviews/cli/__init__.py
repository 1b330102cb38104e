"""The command line: `manyviews train`, `evaluate`, `report`, `reproduce`, `embed`, `search`, `export`, ..."""

import os
import signal
import sys
from typing import TextIO


def main() -> None:
    """Run a command. Its imports happen in here, so that Ctrl-C during them exits without a traceback too."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from manyviews.cli.app import run_command

    try:
        sys.exit(run_command())
    finally:
        for stream in (sys.stdout, sys.stderr):
            _flush(stream)


def _flush(stream: TextIO | None) -> None:
    """Flush a stream, or discard its buffer: otherwise the interpreter tries again at exit and prints an error."""
    if stream is None or stream.closed:
        return
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
