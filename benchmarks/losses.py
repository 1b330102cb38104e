"""Time and memory of the objectives, forward and backward, d = 128, float32.

    python -m benchmarks.losses            about four minutes on two cores

Times are medians of calls interleaved in one process, printed as ratios: against the same
objective through dense autograd, and against three bare products (Z Z^T, S Z, S^T Z) of as many rows.
Memory is what the peak of a fresh process grows by.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.timing import interleaved
from manyviews import get_objective

D = 128
SIZES = [(64, 2), (64, 8), (256, 2), (256, 4), (1024, 2), (1024, 4), (2048, 4)]
OBJECTIVES: dict[str, dict[str, bool]] = {
    "mv-infonce": {},
    "mv-infonce, same view": {"same_view": True},  # reads the energies that PVC reads
    "pvc": {},
    "pwe-ntxent": {},
    "mv-dhel": {},
}
LARGE = (4096, 8192)
BARS = {"speedup": 2.5, "all pairs": 0.95, "mv-dhel": 0.35, "dhel cheaper": 2.0, "pvc dearer": 1.1}
NOISE = 0.97
"""A ratio of medians that should be 1 comes out as low as this on a shared machine."""
MEMORY = [(name, M, bar) for M, bar in ((2048, 64), (8192, 256)) for name in ("mv-infonce", "pvc", "mv-dhel")]


def step(name: str, z: torch.Tensor, implementation: str) -> Callable[[], object]:
    objective = get_objective(name.split(",", maxsplit=1)[0], implementation=implementation, **OBJECTIVES[name])
    return lambda: torch.autograd.grad(objective(z), z)


def bare_products(z: torch.Tensor) -> Callable[[], object]:
    rows = z.detach().flatten(0, 1)

    def three() -> None:
        s = rows @ rows.T
        s @ rows
        s.T @ rows

    return three


def speed(threads: int, seconds: float, console: Console) -> list[str]:
    """Print the table for so many threads; return the bars that were missed."""
    torch.set_num_threads(threads)
    table = Table(title=f"{threads} thread{'s' * (threads > 1)}: dense autograd / ours | ours / bare products")
    table.add_column("M x N")
    for name in OBJECTIVES:
        table.add_column(name, justify="right")
    missed = []
    for M, N in SIZES:
        rows = M * N
        z = torch.randn(M, N, D, generator=torch.Generator().manual_seed(0), requires_grad=True)
        work = {(name, i): step(name, z, i) for name in OBJECTIVES for i in ("auto", "dense")}
        median = interleaved({**work, ("bare", ""): bare_products(z)}, len(OBJECTIVES) * seconds)
        cost = {name: median[name, "auto"] / median["bare", ""] for name in OBJECTIVES}
        cells = [f"{M} x {N}"]
        for name in OBJECTIVES:
            faster = median[name, "dense"] / median[name, "auto"]
            cells.append(f"{faster:.2f}x | {cost[name]:.2f}")
            large = rows in LARGE
            bar = BARS["mv-dhel" if name == "mv-dhel" else "all pairs"]
            if faster < (BARS["speedup"] if large and name != "mv-dhel" else NOISE):
                missed.append(f"{name} {M} x {N}, {threads} threads: {faster:.2f}x dense")
            if large and threads == 2 and cost[name] > bar:
                missed.append(f"{name} {M} x {N}, {threads} threads: {cost[name]:.2f} bare products, bar {bar}")
        if rows in LARGE:
            close = interleaved({name: work[name, "auto"] for name in OBJECTIVES}, 8 * seconds)
            cheaper = close["mv-infonce"] / close["mv-dhel"]
            dearer = close["pvc"] / close["mv-infonce, same view"]
            console.print(
                f"{M} x {N}: mv-infonce takes {cheaper:.2f} times mv-dhel's time; "
                f"pvc {dearer:.2f} times that of mv-infonce with the same negatives"
            )
            if cheaper < BARS["dhel cheaper"]:
                missed.append(f"mv-dhel {M} x {N}, {threads} threads: {cheaper:.2f}x cheaper than mv-infonce")
            if dearer > BARS["pvc dearer"]:
                missed.append(f"pvc {M} x {N}, {threads} threads: {dearer:.2f}x as dear as mv-infonce")
        table.add_row(*cells)
    console.print(table)
    return missed


def peak() -> float:
    """Largest resident memory of this process so far, MB."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 1024


def grown(name: str, instances: int, implementation: str) -> float:
    """MB by which one forward and backward pass raises the peak of this process, N = 4."""
    objective = get_objective(name, implementation=implementation)
    small = torch.randn(64, 4, D, requires_grad=True)
    torch.autograd.grad(objective(small), small)
    z = torch.randn(instances, 4, D, requires_grad=True)
    before = peak()
    torch.autograd.grad(objective(z), z)
    return peak() - before


def memory(console: Console) -> list[str]:
    table = Table(title="memory beyond the embeddings, MB, N = 4")
    for column in ("objective", "rows", "ours", "bar", "dense autograd"):
        table.add_column(column, justify="left" if column == "objective" else "right")
    missed = []
    for name, instances, bar in MEMORY:
        found = {}
        for implementation in ("auto", "dense"):
            if implementation == "dense" and instances > 2048:
                continue
            call = [
                sys.executable,
                "-m",
                "benchmarks.losses",
                "--grown",
                name,
                str(instances),
                implementation,
            ]
            found[implementation] = float(subprocess.run(call, check=True, capture_output=True, text=True).stdout)
        dense = f"{found['dense']:.0f}" if "dense" in found else "-"
        table.add_row(name, str(4 * instances), f"{found['auto']:.0f}", str(bar), dense)
        if found["auto"] > bar:
            missed.append(f"{name} at {4 * instances} rows: {found['auto']:.0f} MB, bar {bar}")
    console.print(table)
    return missed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long to measure each cell, at least 5 rounds")
    parser.add_argument("--grown", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.grown:
        name, instances, implementation = arguments.grown
        torch.set_num_threads(2)
        print(grown(name, int(instances), implementation))
        return
    console = Console(width=120)
    console.print(f"torch {torch.__version__}, {platform.machine()}, {torch.get_num_threads()} cores")
    missed = [bar for threads in (1, 2) for bar in speed(threads, arguments.seconds, console)]
    missed += memory(console)
    console.print("\n".join(["bars missed:", *missed]) if missed else "all bars met")


if __name__ == "__main__":
    main()
