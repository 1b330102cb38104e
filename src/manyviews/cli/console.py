"""What the commands share: kinds of arguments, and what is said once, on the first rank."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from manyviews.utils.stderr import print_stderr
from manyviews.utils.text import escape_control_characters

Device = Literal["auto", "cpu", "cuda", "mps"]
RunPath = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
ImagesName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="IMAGES")]
Output = tyro.conf.arg(aliases=["-o"])


@dataclass(frozen=True)
class Reading:
    """How images are read and encoded."""

    workers: int = 2
    """Processes that read images from disk."""
    device: Device = "auto"
    """auto takes a GPU if there is one."""
    follow_links: bool = False
    """Take images behind links that lead out of the folder."""


AS_USUAL = Reading()
ReadingFlags = Annotated[Reading, tyro.conf.arg(name="")]


def unasked(summary: str) -> Callable[..., None]:
    """Stands for a command in the list of commands: its flags, which take seconds to import, are not asked for."""

    def command() -> None: ...

    command.__doc__ = summary
    return command


def print_lines(*lines: object) -> None:
    """Print lines in which control characters are escaped: names of files and classes are a stranger's."""
    for line in lines:
        print(escape_control_characters(line), flush=True)


def show_table(header: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> None:
    """A table of texts, taken to the letter: names of data and modalities are a stranger's.

    Numbers stand to the right, and a table that is wider than the terminal is not cut.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    texts = [[escape_control_characters(cell) for cell in row] for row in rows]
    table, console = Table(title=None if title is None else Text(escape_control_characters(title))), Console()
    for place, name in enumerate(header):
        shown = "\n".join(map(escape_control_characters, name.split("\n")))
        numbers = all(row[place][:1] in "0123456789+-" for row in texts)
        table.add_column(Text(shown), justify="right" if place and numbers else "left")
    for row in texts:
        table.add_row(*(Text(cell) for cell in row))
    wide = console.options.update(max_width=500)
    Console(width=max(console.width, console.measure(table, options=wide).maximum)).print(table)


def first_rank() -> bool:
    """Whether this process is the first of those that torchrun, SLURM or we have started."""
    return all(os.environ.get(name, "0") == "0" for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"))


def complain(message: object) -> None:
    if first_rank():
        print_stderr(f"manyviews: {escape_control_characters(message)}")
