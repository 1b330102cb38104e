"""Several pictures of a thing, and its name: retrieval between artists, and between words and pictures.

The table has a row for each emoji: columns with the paths of pictures, and columns with names. Every run is trained on
the training split and searches the test split, which it has not seen. Finished runs are not trained again, and `--jobs`
runs are trained at once.

    python -m benchmarks.emoji emoji.csv --precision bf16-mixed --jobs 2 --write docs/results/emoji.md
"""

import argparse
import dataclasses
import hashlib
import shlex
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

import manyviews as mv
from manyviews.evaluation import EvaluationResult
from manyviews.reproduce.origin import Origin, describe_origins
from manyviews.utils import Table, format_mean_std, write_atomic

EVALUATION = mv.EvaluationConfig(label_fractions=(), baselines=False, modality_subsets=False)
SETTINGS: dict[str, Any] = {
    "crop_scale": (0.6, 1.0),
    "jitter_strength": 0.1,
    "transformer_layers": 1,
    "learning_rate": 0.004,
}
"""Weak augmentation: the colors and the whole of a picture are what its name is about. And a training that is fast."""


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", help="a .csv file")
    parser.add_argument("--pictures", nargs="+", default=["twemoji", "noto", "openmoji", "fluent"])
    parser.add_argument("--names", nargs="+", default=["en"])
    parser.add_argument("--losses", nargs="+", default=["mv-dhel", "mv-infonce", "pvc", "pwe-ntxent", "avg-ntxent"])
    parser.add_argument("--encoders", nargs="+", choices=["shared", "separate"], default=["shared", "separate"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.5])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--size", type=int, default=32, help="height and width of the pictures")
    parser.add_argument("--precision", default="32")
    parser.add_argument("--split", choices=["test", "valid"], default="test")
    parser.add_argument("--jobs", type=int, default=1, help="number of runs at once, each with one CPU thread")
    parser.add_argument("--output", type=Path, default=Path("runs/emoji"), help="folder of the runs")
    parser.add_argument("--write", type=Path, help="file of the table, with its origin; default: print only the table")
    return parser


def format_command(parser: argparse.ArgumentParser, options: argparse.Namespace) -> str:
    """Format the command with the options that change the table."""
    words = ["python", "-m", "benchmarks.emoji", Path(options.table).name]
    for name, value in vars(options).items():
        if name not in ("table", "output", "jobs", "write") and value != parser.get_default(name):
            words += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
    return shlex.join(words)


def train(options: argparse.Namespace, loss: str, temperature: float, encoders: str, seed: int) -> Path:
    """Train and evaluate a run, as far as it is not finished; return its directory."""
    torch.set_num_threads(1)
    settings = [options.table, options.pictures, options.names, options.epochs, options.size, options.precision]
    digest = hashlib.sha256(repr([*settings, SETTINGS]).encode()).hexdigest()[:8]
    output = options.output / f"{loss}-{temperature}-{encoders}-{seed}-{digest}"
    file = f"evaluation-{options.split}.json"
    if (output / file).exists():
        return output
    run = (
        mv.train(resume=output, quiet=True)
        if output.exists()
        else mv.train(
            options.table,
            views=(*options.pictures, *options.names),
            loss=loss,
            temperature=temperature,
            separate_encoders=encoders == "separate",
            epochs=options.epochs,
            image_size=options.size,
            precision=options.precision,
            seed=seed,
            cpu_threads=1,
            num_workers=1,
            evaluate_at_end=False,
            output=output,
            quiet=True,
            **SETTINGS,
        )
    )
    config = dataclasses.replace(EVALUATION, split=options.split)
    run.save_evaluation(mv.evaluate(run, config=config).to_json(), file)
    return output


def read_recall(run: Path, split: str) -> dict[tuple[str, str], dict[str, float]]:
    """Read the recall at k by source and target, then by k."""
    result = EvaluationResult.from_json((run / f"evaluation-{split}.json").read_text())
    return {(pair.source, pair.target): pair.recall for pair in result.retrieval}


def main() -> None:
    parser = make_parser()
    options = parser.parse_args()
    groups = {
        "picture to picture": list(product(options.pictures, options.pictures)),
        "name to picture": list(product(options.names, options.pictures)),
        "picture to name": list(product(options.pictures, options.names)),
        "all pictures to name": [("all others", name) for name in options.names],
    }
    rows = []
    settings = list(product(options.losses, options.temperatures, options.encoders))
    calls = [(options, *setting, seed) for seed in options.seeds for setting in settings]
    with get_context("spawn").Pool(options.jobs, maxtasksperchild=1) as pool:
        runs = dict(zip([call[1:] for call in calls], pool.starmap(train, calls, chunksize=1), strict=True))
    for loss, temperature, encoders in settings:
        results = []
        for seed in options.seeds:
            recall = read_recall(runs[loss, temperature, encoders, seed], options.split)
            results.append(
                [
                    fmean(recall[pair][k] for pair in pairs if pair in recall)
                    for pairs in groups.values()
                    for k in ("1", "10")
                ]
            )
        cells = [format_mean_std([100 * value for value in column]) for column in zip(*results, strict=True)]
        rows.append((loss, f"{temperature:g}", encoders, *cells))
    header = ("loss", "temperature", "image encoder", *(f"{name}, R@{k}" for name in groups for k in (1, 10)))
    table = Table.from_texts("Recall (%) among unseen emoji", header, rows).to_markdown()
    print(table)
    if options.write:
        origins = [Origin.from_provenance(mv.Run.open(run).provenance) for run in runs.values()]
        command = format_command(parser, options)
        head = f"# Emoji\n\nMade by `{command}`.\n\n{describe_origins(origins, 'runs')}\n\n"
        write_atomic(options.write, head + table)


if __name__ == "__main__":
    main()
