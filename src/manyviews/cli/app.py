"""The list of commands. Errors and warnings are printed as one line, not as a traceback."""

import functools
import inspect
import io
import logging
import os
import re
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import tyro

import manyviews
from manyviews.cli.common import is_rank_zero, print_error, print_lines
from manyviews.utils import PARENT_PID, ConsoleHandler, handle_logs

NAMES = (
    "train",
    "evaluate",
    "embed",
    "search",
    "export",
    "extract",
    "report",
    "inspect",
    "preview",
    "losses",
    "reproduce",
)
COMMANDS: dict[str, Callable[..., None]] = {
    name: getattr(import_module(f"manyviews.cli.{name}_command"), f"{name}_command") for name in NAMES
}
TYRO_CONFIG = (tyro.conf.DisallowNone, tyro.conf.OmitArgPrefixes)
"""Flags do not take None, and flags of a group are not prefixed by its name."""


def run_command() -> int:
    """Run the command in sys.argv and return the exit code. Rank zero prints warnings."""
    with handle_logs(*([ConsoleHandler("manyviews: ")] if is_rank_zero() else [])):
        return _run_command()


def _run_command() -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as for stderr, so that no file name can end a command
    if sys.argv[1:] == ["--version"]:
        print_lines(f"manyviews {manyviews.__version__}")
        return 0
    try:
        description = f"Contrastive learning from any number of views. This is version {manyviews.__version__}."
        app = tyro.extras.SubcommandApp()
        for name, command in COMMANDS.items():
            app.command(name=name)(_prepare(command))
        app.cli(prog="manyviews", description=description, config=TYRO_CONFIG)
        if sys.stdout is not None:
            sys.stdout.flush()
        _leave_process_group()
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        return 141  # as after SIGPIPE
    except (ValueError, OSError) as error:
        print_error(error)
        distributed = sys.modules.get("torch.distributed")
        if isinstance(error, ChildProcessError) and distributed and distributed.is_initialized():
            os._exit(2)  # threads of the process group still wait for the lost rank: a normal exit aborts in them
        return 2
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        print_error(f"a data loading worker died, possibly out of memory: {error}. Try fewer --num-workers")
        return 2
    except KeyboardInterrupt as stop:
        print_error(str(stop) or "interrupted")
        # Fabric kills rank zero when a rank that it started fails, and rank zero has the better message.
        is_child = not is_rank_zero() and PARENT_PID in os.environ
        return 0 if is_child else getattr(stop, "exit_code", 130)
    return 0


def _leave_process_group() -> None:
    """Leave the process group of a finished training; a rank other than zero, which has nothing left to do, exits.

    A normal exit would sometimes abort, in threads of the group that still run while the interpreter is torn down.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    rank = distributed.get_rank()
    distributed.destroy_process_group()
    if rank:
        logging.shutdown()
        if sys.stderr is not None:
            sys.stderr.flush()
        os._exit(0)


def _prepare(command: Callable[..., None]) -> Callable[..., None]:
    """Catch signals when the command starts: while tyro imports its types, Ctrl-C still exits at once."""
    command.__doc__ = re.sub(r"\n {8} *", " ", inspect.getdoc(command) or "")  # tyro would keep these line breaks

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        _catch_signals()
        command(*args, **kwargs)

    return run


class _Terminated(KeyboardInterrupt):
    def __init__(self, signum: int) -> None:
        super().__init__("terminated" if signum == signal.SIGTERM else "hung up")
        self.exit_code = 128 + signum


def _catch_signals() -> None:
    """Make SIGTERM and SIGHUP clean up like Ctrl-C; training has its own handlers."""

    def stop(signum: int, _: object) -> None:
        raise _Terminated(signum)

    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, stop)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # ignored under nohup
        signal.signal(signal.SIGHUP, stop)
