"""The commands, and what is said of a mistake: one line, not a traceback; the same of a warning."""

import io
import os
import signal
import sys
import warnings
from collections.abc import Callable

import tyro

import manyviews
from manyviews.cli.console import complain, first_rank, print_lines
from manyviews.cli.data import show_data
from manyviews.cli.evaluate import evaluate_command
from manyviews.cli.losses import losses
from manyviews.cli.report import write_report_of
from manyviews.cli.reproduce import reproduce_command
from manyviews.cli.train import train_command
from manyviews.cli.use import embed, export_run, neighbours
from manyviews.cli.views import draw_views
from manyviews.utils.processes import PARENT_PID

COMMANDS: dict[str, Callable[..., None]] = {
    "embed": embed,
    "neighbours": neighbours,
    "export": export_run,
    "data": show_data,
    "views": draw_views,
    "losses": losses,
    "report": write_report_of,
}


def run_command() -> int:
    """Run the command that the arguments name; the exit code."""
    warnings.showwarning = lambda message, *_: complain(message)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr is: no name ends a command
    if sys.argv[1:] == ["--version"]:
        print_lines(f"manyviews {manyviews.__version__}")
        return 0
    try:
        app = tyro.extras.SubcommandApp()
        heavy = {"train": train_command, "evaluate": evaluate_command, "reproduce": reproduce_command}
        for name, command in ({name: made(sys.argv[1:]) for name, made in heavy.items()} | COMMANDS).items():
            app.command(name=name)(command)
        _catch_signals()
        app.cli(
            prog="manyviews",
            description="Contrastive learning from any number of views.",
            config=(tyro.conf.DisallowNone,),
        )
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:  # whoever read the results, such as `head`, has enough
        return 141  # as if SIGPIPE had ended it
    except ChildProcessError as error:
        complain(error)
        if "torch.distributed" in sys.modules and sys.modules["torch.distributed"].is_initialized():
            os._exit(2)  # threads of the process group still wait for the lost rank: a normal exit aborts in them
        return 2
    except (ValueError, OSError) as error:
        complain(error)
        return 2
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        complain(f"a process that reads images has died, maybe for want of memory: {error}. Try fewer --workers")
        return 2
    except KeyboardInterrupt as stop:
        complain(str(stop) or "interrupted")
        # Fabric kills the first rank when one that it started fails, and the first has more to say.
        started = not first_rank() and PARENT_PID in os.environ
        return 0 if started else getattr(stop, "exit_code", 130)
    return 0


class _Terminated(KeyboardInterrupt):
    def __init__(self, number: int) -> None:
        super().__init__("terminated" if number == signal.SIGTERM else "hung up")
        self.exit_code = 128 + number


def _catch_signals() -> None:
    """Told to stop, a command cleans up as after Ctrl-C; training has its own way."""

    def stop(number: int, _: object) -> None:
        raise _Terminated(number)

    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, stop)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        signal.signal(signal.SIGHUP, stop)
