"""`manyviews report`."""

from pathlib import Path
from typing import Annotated

import tyro

from manyviews.cli.console import Device, Output, print_lines


def write_report_of(
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN [RUN ...]")],
    output: Annotated[Path, Output] = Path("report.html"),
    instances: int = 1000,
    workers: int = 2,
    device: Device = "auto",
) -> None:
    """Write one HTML file to look at: what was trained, curves, scores, views, neighbours and a map of each run.

    Args:
        runs: the directories of runs, finished or not; several stand side by side.
        output: the .html file to write; it needs no network.
        instances: of each run's test set that are on its map, and searched for neighbours.
        workers: processes that read images from disk.
        device: auto takes a GPU if there is one.
    """
    from manyviews.report import write_report

    size = write_report(runs, output, instances=instances, workers=workers, device=device)
    print_lines(f"{output}: {len(runs)} {'run' if len(runs) == 1 else 'runs'}, {size / 1e6:.1f} MB")
