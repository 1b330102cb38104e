"""Argument types and output functions that the commands share."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from manyviews.utils import escape_control_characters, print_stderr

Device = Literal["auto", "cpu", "cuda", "mps"]
RunArg = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
DataArg = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
OutputFlag = tyro.conf.arg(aliases=["-o"])
Unset = tyro.conf.arg(help_behavior_hint="")
"""For a default that the help text describes, or that is empty."""
OptionalPath = Annotated[Path | None, Unset]


@dataclass(frozen=True)
class LoaderOptions:
    """Options for reading and encoding images."""

    num_workers: int = 2
    """Number of processes that read images from disk."""
    device: Device = "auto"
    """Device; auto uses a GPU if available."""
    follow_symlinks: bool = False
    """Follow symbolic links that lead out of the image folder."""


DEFAULT_LOADER = LoaderOptions()
LoaderFlags = Annotated[LoaderOptions, tyro.conf.arg(name="")]


def print_lines(*lines: object) -> None:
    """Print lines with control characters escaped: names of files and classes are untrusted."""
    for line in lines:
        print(escape_control_characters(line), flush=True)


def show_table(header: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> None:
    """Print a table of literal texts, without markup: names of data and modalities are untrusted.

    Columns of numbers are right-aligned. A table wider than the terminal is not truncated.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    texts = [[escape_control_characters(cell) for cell in row] for row in rows]
    table, console = Table(title=None if title is None else Text(escape_control_characters(title))), Console()
    for i, name in enumerate(header):
        heading = "\n".join(map(escape_control_characters, name.split("\n")))
        is_numeric = all(row[i][:1] in "0123456789+-" for row in texts)
        table.add_column(Text(heading), justify="right" if i and is_numeric else "left")
    for row in texts:
        table.add_row(*(Text(cell) for cell in row))
    options = console.options.update(max_width=500)
    Console(width=max(console.width, console.measure(table, options=options).maximum)).print(table)


def is_first_rank() -> bool:
    """Whether this process is rank zero of those started by torchrun, SLURM or `--devices`."""
    return all(os.environ.get(name, "0") == "0" for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"))


def print_error(message: object) -> None:
    """Print a message to stderr, on rank zero only."""
    if is_first_rank():
        print_stderr(f"manyviews: {escape_control_characters(message)}")


class SkipCounter:
    """Print each file that is skipped, and count them."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, line: str) -> None:
        self.count += 1
        print_error(f"skipped: {line}")

    def __str__(self) -> str:
        return f"; {self.count:,} {'file' if self.count == 1 else 'files'} skipped" if self.count else ""
