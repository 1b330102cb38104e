"""The command line: `manyviews train`, `evaluate`, `reproduce`, `embed`, `neighbours`, `export`, `data`, ..."""

import signal
import sys
import warnings
from collections.abc import Callable

import tyro

import manyviews
from manyviews.cli.console import complain
from manyviews.cli.data import show_data
from manyviews.cli.evaluate import evaluate_command
from manyviews.cli.losses import losses
from manyviews.cli.report import write_report_of
from manyviews.cli.reproduce import reproduce_command
from manyviews.cli.train import train_command
from manyviews.cli.use import embed, export_run, neighbours
from manyviews.cli.views import draw_views

COMMANDS: dict[str, Callable[..., None]] = {
    "embed": embed,
    "neighbours": neighbours,
    "export": export_run,
    "data": show_data,
    "views": draw_views,
    "losses": losses,
    "report": write_report_of,
}


def main() -> None:
    """Run a command; a mistake of the user's is one line, not a traceback, and so is a warning."""
    warnings.showwarning = lambda message, *_: complain(message)
    # Told to stop, a command cleans up as after Ctrl-C; training has its own way.
    signal.signal(signal.SIGTERM, _stop)
    if sys.argv[1:] == ["--version"]:
        print(f"manyviews {manyviews.__version__}")
        return
    try:
        app = tyro.extras.SubcommandApp()
        heavy = {"train": train_command, "evaluate": evaluate_command, "reproduce": reproduce_command}
        for name, command in ({name: made(sys.argv[1:]) for name, made in heavy.items()} | COMMANDS).items():
            app.command(name=name)(command)
        app.cli(
            prog="manyviews",
            description="Contrastive learning from any number of views.",
            config=(tyro.conf.DisallowNone,),
        )
    except (ValueError, OSError) as error:
        complain(error)
        sys.exit(2)
    except KeyboardInterrupt as stop:
        complain(str(stop) or "interrupted")
        sys.exit(getattr(stop, "exit_code", 130))


class _Terminated(KeyboardInterrupt):
    exit_code = 128 + signal.SIGTERM


def _stop(*_: object) -> None:
    raise _Terminated("terminated")
