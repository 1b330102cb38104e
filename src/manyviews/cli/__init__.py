"""The command line: `manyviews train`, `evaluate`, `embed`, `neighbours`, `export`, `views`, `losses`."""

import sys
import warnings

from manyviews.cli import evaluate, losses, use, views  # noqa: F401 (each registers its commands)
from manyviews.cli.app import app, complain
from manyviews.cli.train import train_command


def main() -> None:
    """Run a command; a mistake of the user's is one line, not a traceback, and so is a warning."""
    warnings.showwarning = lambda message, *_: complain(message)
    try:
        app.command(name="train")(train_command(sys.argv[1:]))
        app.cli(prog="manyviews", description="Contrastive learning from any number of views.")
    except (ValueError, OSError) as error:
        complain(error)
        sys.exit(2)
    except KeyboardInterrupt as stop:
        complain(str(stop) or "interrupted")
        sys.exit(getattr(stop, "exit_code", 130))
