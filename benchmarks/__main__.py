"""Measure everything beside what one would use instead, and write one table: benchmarks.json and benchmarks.md.

    python -m benchmarks [losses] [views] [training] [evaluation] [--threads 2] [--output results] [--quick]

Under ten minutes on two cores. Ratios are ours / theirs (less is better), of medians, of calls interleaved in one
process; with quartiles of the rounds' ratios, and the bar that a ratio must not pass.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from dataclasses import asdict, replace
from datetime import datetime, timezone
from importlib import import_module
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import Row

ROOMS = ("losses", "views", "training", "evaluation")
PACKAGES = ("manyviews", "torch", "numpy", "pillow", "pytorch-metric-learning", "lightly")
COLUMNS = ("work", "beside", "threads", "ours", "theirs", "ratio", "quartiles", "bar")


def about() -> dict[str, Any]:
    """Machine, versions, date."""
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text().splitlines() if cpu.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    installed = {found.name.lower(): found.version for found in distributions()}
    return {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "machine": f"{names[0] if names else platform.processor()}, {platform.machine()}, {os.cpu_count()} cores",
        "system": platform.system(),
        "versions": {
            "python": platform.python_version(),
            **{name: installed.get(name, "not installed") for name in PACKAGES},
        },
    }


def cells(row: Row) -> tuple[str, ...]:
    spread = "" if row.low is None else f"{row.low:.3g} to {row.high:.3g}"
    bar = "" if row.bar is None else f"{row.bar:.3g}{', missed' if row.missed else ''}"
    amounts = (f"{amount:,.{0 if amount >= 100 else 1}f} {row.unit}" for amount in (row.ours, row.theirs))
    return row.work, row.beside, str(row.threads), *amounts, f"{row.ratio:.3g}", spread, bar


def markdown(told: dict[str, Any], rows: list[Row], notes: list[str]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in told["versions"].items())
    lines = [
        "# Benchmarks",
        "",
        f"`make bench`, {told['date']}, on {told['machine']}, {told['system']}; {versions}.",
        "",
        "Ratios are ours / theirs (less is better), of medians of calls interleaved in one process, with quartiles of",
        "the rounds' ratios and the bar a ratio must not pass. Objectives: forward and backward, d = 128, float32.",
    ]
    for room in dict.fromkeys(row.room for row in rows):
        lines += ["", f"## {room.capitalize()}", "", f"| {' | '.join(COLUMNS)} |", "|---|---|" + "---:|" * 6]
        lines += [f"| {' | '.join(cells(row))} |" for row in rows if row.room == room]
    if notes:
        lines += ["", *(f"- {note}" for note in notes)]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=f"some of {', '.join(ROOMS)}; all if none is named")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1), help="of torch, where it is not 1")
    parser.add_argument("--output", type=Path, default=Path("results"), help="folder for the two files")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs: numbers mean nothing")
    options = parser.parse_args()
    unknown = set(options.rooms) - set(ROOMS)
    if unknown:
        parser.error(f"no benchmarks of {', '.join(sorted(unknown))}: there are {', '.join(ROOMS)}")
    if options.threads < 1:
        parser.error(f"--threads must be >= 1, got {options.threads}")
    torch.set_num_threads(options.threads)
    rows, notes, start = [], [], time.perf_counter()
    for room in options.rooms or ROOMS:
        for found in import_module(f"benchmarks.{room}").measure(options.quick):
            if isinstance(found, str):
                notes.append(found)
                print(found)
                continue
            row = replace(found, bar=None) if options.quick else found
            rows.append(row)
            print(f"{row.ratio:8.3g}  {row.work} / {row.beside}{'  MISSED' if row.missed else ''}", flush=True)
    told = about()
    options.output.mkdir(parents=True, exist_ok=True)
    everything = {**told, "quick": options.quick, "rows": [asdict(row) for row in rows], "notes": notes}
    (options.output / "benchmarks.json").write_text(json.dumps(everything, indent=1) + "\n")
    (options.output / "benchmarks.md").write_text(markdown(told, rows, notes))
    missed = sum(row.missed for row in rows)
    print(f"{missed or 'no'} bars missed; {time.perf_counter() - start:.0f} s; see {options.output}/benchmarks.md")


if __name__ == "__main__":
    main()
