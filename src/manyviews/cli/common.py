"""Argument types and output functions that the commands share."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from manyviews.utils import Table, escape_control_characters, print_stderr

Device = Literal["auto", "cpu", "cuda", "mps"]
RunArg = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
DataArg = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
OutputFlag = tyro.conf.arg(aliases=["-o"])
Unset = tyro.conf.arg(help_behavior_hint="")
"""For a default that the help text describes, or that is empty."""
OptionalPath = Annotated[Path | None, Unset]
OptionalText = Annotated[str | None, Unset]


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


def show_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    Table.from_texts("", header, rows).print()


def is_rank_zero() -> bool:
    """Return whether this process is rank zero of those started by torchrun, SLURM or `--devices`."""
    return all(os.environ.get(name, "0") == "0" for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"))


def print_error(message: object) -> None:
    """Print a message to stderr, on rank zero only."""
    if is_rank_zero():
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
