"""Several pictures of a thing, and its name: retrieval between artists, and between words and pictures.

The table has a row for each emoji: columns with the paths of pictures, and columns with names. Every run is trained on
the training split and searches the test split, which it has not seen. Finished runs are not trained again.

    python -m benchmarks.emoji emoji.csv --pictures twemoji noto openmoji fluent --names en --seeds 0 1 2
"""

import argparse
import dataclasses
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import manyviews as mv
from manyviews.utils import Table, format_mean_std

EVALUATION = mv.EvaluationConfig(label_fractions=(), baselines=False, modality_subsets=False)
SETTINGS: dict[str, Any] = {
    "crop_scale": (0.6, 1.0),
    "jitter_strength": 0.1,
    "transformer_layers": 1,
    "learning_rate": 0.004,
}
"""Weak augmentation: the colors and the whole of a picture are what its name is about. And a training that is fast."""


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", help="a .csv file")
    parser.add_argument("--pictures", nargs="+", default=["twemoji", "noto", "openmoji", "fluent"])
    parser.add_argument("--names", nargs="+", default=["en"])
    parser.add_argument("--losses", nargs="+", default=["mv-dhel", "mv-infonce", "pvc", "pwe-ntxent"])
    parser.add_argument("--encoders", nargs="+", choices=["shared", "separate"], default=["shared", "separate"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.2, 0.5])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--size", type=int, default=32, help="height and width of the pictures")
    parser.add_argument("--precision", default="32")
    parser.add_argument("--split", choices=["test", "valid"], default="test")
    parser.add_argument("--output", type=Path, default=Path("runs/emoji"))
    return parser.parse_args()


def train(options: argparse.Namespace, loss: str, temperature: float, encoders: str, seed: int) -> mv.Run:
    output = options.output / f"{loss}-{temperature}-{encoders}-{seed}"
    if output.exists():
        return mv.train(resume=output)
    return mv.train(
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
        **SETTINGS,
    )


def main() -> None:
    options = parse_options()
    groups = {
        "picture to picture": list(product(options.pictures, options.pictures)),
        "name to picture": list(product(options.names, options.pictures)),
        "picture to name": list(product(options.pictures, options.names)),
        "all pictures to name": [("all others", name) for name in options.names],
    }
    rows = []
    config = dataclasses.replace(EVALUATION, split=options.split)
    for loss, temperature, encoders in product(options.losses, options.temperatures, options.encoders):
        results = []
        for seed in options.seeds:
            run = train(options, loss, temperature, encoders, seed)
            retrieval = mv.evaluate(run, config=config).retrieval
            recall = {(pair.source, pair.target): pair.recall for pair in retrieval}
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
    print(Table.from_texts("Recall (%) among unseen emoji", header, rows).to_markdown())


if __name__ == "__main__":
    main()
