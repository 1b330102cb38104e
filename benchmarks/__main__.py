"""Compare time and memory with common alternatives; write benchmarks.json and benchmarks.md.

    python -m benchmarks [losses] [views] [training] [evaluation] [--threads 2] [--output results] [--quick]

All suites take under ten minutes on two cores. A ratio is cost / baseline cost (lower is better), of medians of calls
interleaved in one process. It is reported with the quartiles of the ratios per round and its upper bound, if any.
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
from manyviews.utils import describe_machine

SUITES = ("losses", "views", "training", "evaluation")
PACKAGES = ("manyviews", "torch", "numpy", "pillow", "pytorch-metric-learning", "lightly")
COLUMNS = ("workload", "baseline", "threads", "cost", "baseline cost", "ratio", "quartiles", "max ratio")


def describe_environment() -> dict[str, Any]:
    """Return date, machine, system and versions."""
    installed = {distribution.name.lower(): distribution.version for distribution in distributions()}
    return {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "machine": describe_machine(),
        "system": platform.system(),
        "versions": {
            "python": platform.python_version(),
            **{name: installed.get(name, "not installed") for name in PACKAGES},
        },
    }


def format_row(row: Row) -> tuple[str, ...]:
    quartiles = "" if row.ratio_q1 is None else f"{row.ratio_q1:.3g} to {row.ratio_q3:.3g}"
    bound = "" if row.max_ratio is None else f"{row.max_ratio:.3g}{', exceeded' if row.exceeds_max_ratio else ''}"
    costs = (f"{cost:,.{0 if cost >= 100 else 1}f} {row.unit}" for cost in (row.cost, row.baseline_cost))
    return row.workload, row.baseline, str(row.threads), *costs, f"{row.ratio:.3g}", quartiles, bound


def render_markdown(environment: dict[str, Any], rows: list[Row], notes: list[str]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items())
    lines = [
        "# Benchmarks",
        "",
        f"`make bench`, {environment['date']}, on {environment['machine']}, {environment['system']}; {versions}.",
        "",
        "A ratio is cost / baseline cost (lower is better), of medians of calls interleaved in one process, with the",
        "quartiles of the ratios per round and its upper bound, if any. Losses are measured forward and backward, with",
        "d = 128 and float32.",
    ]
    for suite in dict.fromkeys(row.suite for row in rows):
        lines += ["", f"## {suite.capitalize()}", "", f"| {' | '.join(COLUMNS)} |", "|---|---|" + "---:|" * 6]
        lines += [f"| {' | '.join(format_row(row))} |" for row in rows if row.suite == suite]
    if notes:
        lines += ["", *(f"- {note}" for note in notes)]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"some of {', '.join(SUITES)}; default: all")
    parser.add_argument(
        "--threads", type=int, default=min(2, os.cpu_count() or 1), help="threads of torch, except where one is used"
    )
    parser.add_argument("--output", type=Path, default=Path("results"), help="folder for the two files")
    parser.add_argument(
        "--quick", action="store_true", help="use tiny sizes, to check that everything runs; ignore the numbers"
    )
    options = parser.parse_args()
    unknown = set(options.suites) - set(SUITES)
    if unknown:
        parser.error(f"unknown suites: {', '.join(sorted(unknown))}; choose from {', '.join(SUITES)}")
    if options.threads < 1:
        parser.error(f"--threads must be >= 1, got {options.threads}")
    torch.set_num_threads(options.threads)
    rows, notes, start = [], [], time.perf_counter()
    for suite in options.suites or SUITES:
        for result in import_module(f"benchmarks.{suite}").measure(options.quick):
            if isinstance(result, str):
                notes.append(result)
                print(result)
                continue
            row = replace(result, max_ratio=None) if options.quick else result
            rows.append(row)
            print(
                f"{row.ratio:8.3g}  {row.workload} / {row.baseline}{'  EXCEEDED' if row.exceeds_max_ratio else ''}",
                flush=True,
            )
    environment = describe_environment()
    options.output.mkdir(parents=True, exist_ok=True)
    content = {**environment, "quick": options.quick, "rows": [asdict(row) for row in rows], "notes": notes}
    (options.output / "benchmarks.json").write_text(json.dumps(content, indent=1) + "\n")
    (options.output / "benchmarks.md").write_text(render_markdown(environment, rows, notes))
    exceeded, seconds = sum(row.exceeds_max_ratio for row in rows), time.perf_counter() - start
    print(f"max ratio exceeded in {exceeded} rows; {seconds:.0f} s; wrote {options.output}/benchmarks.md")


if __name__ == "__main__":
    main()
