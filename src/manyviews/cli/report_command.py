"""`manyviews report`: write one HTML page about some runs."""

from pathlib import Path
from typing import Annotated

import tyro

import manyviews as mv
from manyviews.cli.common import Device, OutputFlag, Unset, print_lines


def report_command(
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN [RUN ...]"), Unset],
    output: Annotated[Path, OutputFlag] = Path("report.html"),
    instances: int = 1000,
    num_workers: int = 2,
    device: Device = "auto",
) -> None:
    """Write one HTML page about runs: config, training curves, scores, views, nearest neighbors and a map.

    Args:
        runs: Directories of finished or unfinished runs; several are compared.
        output: .html file to write; it needs no network.
        instances: Number of test instances of each run to show on its map and to search for neighbors.
        num_workers: Number of processes that read images from disk.
        device: Device; auto uses a GPU if available.
    """
    size = mv.report.write_report(runs, output, instances=instances, num_workers=num_workers, device=device)
    print_lines(f"{output}: {len(runs)} {'run' if len(runs) == 1 else 'runs'}, {size / 1e6:.1f} MB")
