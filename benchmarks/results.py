"""Make the tables of docs/results, and claims.md with the claims of all of them.

    python -m benchmarks.results [--only TABLE ...] [--jobs 2] [--tables-only] [--files FOLDER]

Finished trials are lines of OUTPUT/trials.jsonl and are not run again, on any machine. After an interruption the same
command resumes, and the tables contain what is finished. Decisive tables come first.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.claims_page import write_claims_page
from benchmarks.guides import GUIDE_METRICS, GUIDES
from manyviews.reproduce import ANALYSES, EXPERIMENTS, ReproduceOptions, TrialRunner, reproduce_table
from manyviews.reproduce.origin import Origin
from manyviews.reproduce.results import METRICS
from manyviews.training import TrainingInterrupted

ROOT = Path(__file__).parents[1]
STORE_FILE = "trials.jsonl"
FILES_VARIABLE = "MANYVIEWS_FILES"
"""The environment variable with the folder of the tables' files."""


@dataclass(frozen=True)
class Entry:
    """A table and its options."""

    table: str
    options: ReproduceOptions = field(default_factory=ReproduceOptions)
    seeds: int = 3
    files: tuple[str, ...] = ()
    """Files that become its datasets; the table is skipped without them."""
    folder: str = ""
    """Subfolder of the output, for a second table of the same name."""

    @property
    def name(self) -> str:
        return f"{self.folder}/{self.table}" if self.folder else self.table


RIVALS = ("mv-dhel", "mv-infonce", "pvc", "pwe-infonce", "mmcr", "emp-ssl", "lejepa", "mv-dhel+0.5*prod-dhel")
MODALITIES = ("mosi_3modal.npz", "Mfeat.mat", "100leaves.mat")
IMAGES = ReproduceOptions(precision="bf16-mixed")
ENTRIES = (
    # Differences of a point, which three seeds do not decide.
    Entry("table1", IMAGES, seeds=5),
    Entry("knn", IMAGES, seeds=5),
    Entry("multimodal", ReproduceOptions(modality_subsets=True), seeds=5, files=MODALITIES),
    Entry("temperature", IMAGES, seeds=5),
    Entry("precision"),
    Entry("rivals", replace(IMAGES, datasets=("cifar10",), losses=RIVALS)),
    Entry("other-losses", IMAGES),
    Entry("memory", IMAGES),
    Entry("fixed-batch", replace(IMAGES, views=(2, 4, 8), losses=("pwe", "mv-infonce", "mv-dhel"))),
    Entry("views", replace(IMAGES, views=(2, 4, 6, 8), losses=("pwe", "pvc", "mv-infonce", "mv-dhel"))),
    Entry("longer", IMAGES),
    Entry("batch-size", replace(IMAGES, losses=("pwe", "avg", "mv-dhel"))),
    Entry("multimodal", ReproduceOptions(missing_rate=0.3), files=MODALITIES, folder="missing"),
    Entry("rivals", ReproduceOptions(losses=RIVALS), files=MODALITIES, folder="modalities"),
    Entry("principles"),
    Entry("theorem"),
    Entry("synergy"),
    Entry("emoji", IMAGES, files=("emoji.csv",)),
    Entry("objects", IMAGES, files=("one-color.csv", "own-color.csv")),
    Entry("multi-crop", IMAGES),
    Entry("transfer", IMAGES),
    Entry("sensors", files=("synthetic.npz", "watch.npz", "vowels.npz")),
)  # fmt: skip
TABLES = [entry.name for entry in ENTRIES]


def list_tables(arguments: argparse.Namespace) -> Iterator[tuple[Entry, ReproduceOptions]]:
    """Yield the selected tables and their options; print why a table is skipped."""
    EXPERIMENTS.update(GUIDES)
    METRICS.update(GUIDE_METRICS)
    for entry in ENTRIES:
        if arguments.only and entry.name not in arguments.only:
            continue
        options = replace(entry.options, scale=arguments.scale)
        if entry.table not in ANALYSES:
            options = replace(options, seeds=arguments.seeds or entry.seeds)
        if entry.files:
            folder = arguments.files
            if missing := [name for name in entry.files if folder is None or not (folder / name).is_file()]:
                where = f"set --files or ${FILES_VARIABLE}" if folder is None else f"not in {folder}"
                print(f"{entry.name}: skipped, it needs {', '.join(missing)} ({where})", flush=True)
                continue
            options = replace(options, datasets=tuple(str((folder / name).resolve()) for name in entry.files))
        if arguments.scale == "smoke":
            options = shrink(entry.table, options)
        yield entry, options


def shrink(table: str, options: ReproduceOptions) -> ReproduceOptions:
    """Change options to those that the scale smoke has: digits, and 2 and 3 views."""
    if table == "rivals":
        return replace(options, datasets=("digits",))
    return replace(options, views=tuple(count for count in options.views if count == 2))


def is_measured_already(table: str, options: ReproduceOptions, output: Path) -> bool:
    """Return whether a table without trials was made with these options by the current commit of the package."""
    path = output / f"{table}.md"
    text = path.read_text() if path.exists() else ""
    origin = Origin.of_this_process()
    is_known = origin.commit is not None and "+" not in origin.commit
    is_same = f"`{options.format_command(table)}`" in text and f"commit {origin.short_commit}," in text
    return table in ("principles", "theorem") and is_known and is_same


def make_tables(arguments: argparse.Namespace) -> int:
    """Make the selected tables, and return the number of those that are incomplete."""
    output: Path = arguments.output
    launcher = "none" if arguments.tables_only else "local"
    runner = TrialRunner(
        arguments.runs, launcher, arguments.jobs, store_path=output / STORE_FILE, keep_runs=arguments.keep_runs
    )
    num_incomplete = 0
    for entry, options in list_tables(arguments):
        name, table = entry.name, entry.table
        if table in ("principles", "theorem") and (
            arguments.tables_only or is_measured_already(table, options, output)
        ):
            print(f"{name}: kept", flush=True)
            continue
        print(f"{name}: {options.format_command(table)}", flush=True)
        try:
            outcome = reproduce_table(table, options, runner, output / entry.folder, overwrite=True)
        except TrainingInterrupted:
            write_claims_page(output, TABLES)
            raise
        except (ValueError, OSError, RuntimeError) as error:
            print(f"{name}: {error}", flush=True)
            num_incomplete += 1
            continue
        num_incomplete += bool(outcome.missing)
        print(f"{name}: written, {len(outcome.missing)} trials are missing", flush=True)
        write_claims_page(output, TABLES)
    write_claims_page(output, TABLES)
    return num_incomplete


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=TABLES, metavar="TABLE", help=f"some of {', '.join(TABLES)}")
    parser.add_argument("--jobs", type=int, default=1, help="number of trials at once")
    parser.add_argument("--tables-only", action="store_true", help="train nothing: make the tables of finished trials")
    parser.add_argument("--output", type=Path, default=ROOT / "docs/results", help="folder of the tables and the store")
    parser.add_argument("--runs", type=Path, default=ROOT / "results/runs", help="folder of the runs")
    parser.add_argument("--keep-runs", action="store_true", help="keep the run directories of finished trials")
    parser.add_argument("--scale", choices=("smoke", "laptop", "paper"), default="laptop")
    parser.add_argument("--seeds", type=int, help="seeds of each table entry; default: those of the table")
    folder = os.environ.get(FILES_VARIABLE)
    parser.add_argument(
        "--files", type=Path, default=Path(folder) if folder else None,
        help=f"folder of the tables' files; default: ${FILES_VARIABLE}",
    )  # fmt: skip
    arguments = parser.parse_args(words)
    if arguments.jobs < 1 or (arguments.seeds is not None and arguments.seeds < 1):
        parser.error(f"--jobs and --seeds must be >= 1, got {arguments.jobs} and {arguments.seeds}")
    if arguments.tables_only:
        arguments.jobs = 1
    return arguments


def main() -> None:
    arguments = parse_arguments()
    try:
        num_incomplete = make_tables(arguments)
    except TrainingInterrupted as interrupt:
        print(f"interrupted: {interrupt}", flush=True)
        sys.exit(interrupt.exit_code)
    if num_incomplete:
        sys.exit(f"{num_incomplete} tables are incomplete; the same command resumes")


if __name__ == "__main__":
    main()
