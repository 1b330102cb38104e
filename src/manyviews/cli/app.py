"""The list of commands. Errors and warnings are printed as one line, not as a traceback."""

import io
import os
import signal
import sys
from collections.abc import Callable

import tyro

import manyviews
from manyviews.cli.common import is_first_rank, print_error, print_lines
from manyviews.cli.embed import embed_command
from manyviews.cli.evaluate_command import evaluate_command
from manyviews.cli.export_run import export_command
from manyviews.cli.inspect_command import inspect_command
from manyviews.cli.list_losses import list_losses_command
from manyviews.cli.preview_views import preview_views_command
from manyviews.cli.report_command import report_command
from manyviews.cli.reproduce_command import reproduce_command
from manyviews.cli.search import search_command
from manyviews.cli.train_command import train_command
from manyviews.utils import PARENT_PID, ConsoleHandler, handle_logs

COMMANDS: dict[str, Callable[..., None]] = {
    "inspect": inspect_command,
    "preview-views": preview_views_command,
    "list-losses": list_losses_command,
    "embed": embed_command,
    "search": search_command,
    "export": export_command,
    "report": report_command,
}


def run_command() -> int:
    """Run the command in sys.argv and return the exit code. Rank zero prints warnings."""
    with handle_logs(*([ConsoleHandler("manyviews: ")] if is_first_rank() else [])):
        return _run_command()


def _run_command() -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as for stderr, so that no file name can end a command
    if sys.argv[1:] == ["--version"]:
        print_lines(f"manyviews {manyviews.__version__}")
        return 0
    try:
        app = tyro.extras.SubcommandApp()
        factories = {"train": train_command, "evaluate": evaluate_command, "reproduce": reproduce_command}
        for name, command in ({name: make(sys.argv[1:]) for name, make in factories.items()} | COMMANDS).items():
            app.command(name=name)(command)
        _catch_signals()
        app.cli(
            prog="manyviews",
            description="Contrastive learning from any number of views.",
            config=(tyro.conf.DisallowNone,),
        )
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        return 141  # as after SIGPIPE
    except ChildProcessError as error:
        print_error(error)
        if "torch.distributed" in sys.modules and sys.modules["torch.distributed"].is_initialized():
            os._exit(2)  # threads of the process group still wait for the lost rank: a normal exit aborts in them
        return 2
    except (ValueError, OSError) as error:
        print_error(error)
        return 2
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        print_error(f"a data loading worker died, possibly out of memory: {error}. Try fewer --num-workers")
        return 2
    except KeyboardInterrupt as stop:
        print_error(str(stop) or "interrupted")
        # Fabric kills rank zero when a rank that it started fails, and rank zero has the better message.
        is_child = not is_first_rank() and PARENT_PID in os.environ
        return 0 if is_child else getattr(stop, "exit_code", 130)
    return 0


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
