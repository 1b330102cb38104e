"""What evaluation costs beside the bare operations it cannot do without.

    python -m benchmarks.evaluation

Medians of calls interleaved in one process. The probe's 200 epochs are taken as 40 times 5 of them, and encoding the
training set as so many times encoding 256 images.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.timing import interleaved
from manyviews.evaluation import (
    alignment,
    knn_classify,
    linear_probe,
    numerical_rank,
    rankme,
    spectrum,
    uniformity,
    wasserstein_uniformity,
)
from manyviews.evaluation.progress import quiet
from manyviews.models import get_encoder

console = Console(width=110)
TRAIN, TEST, DIM, EPOCHS = 50_000, 10_000, 512, 200


def neighbours(seconds: float) -> tuple[float, float]:
    """KNN, and the bare product with topk, in the same blocks of test rows."""
    train, test = (normalize(torch.randn(rows, DIM), dim=1) for rows in (TRAIN, TEST))
    labels = torch.randint(10, (TRAIN,))

    def bare() -> list[tuple[Tensor, Tensor]]:
        return [(rows @ train.T).topk(200) for rows in test.split(1024)]

    took = interleaved({"ours": lambda: knn_classify(train, labels, test), "bare": bare}, seconds)
    return took["ours"], took["bare"]


def probe(seconds: float) -> tuple[float, float]:
    """The SGD probe of 200 epochs, and encoding its training set once."""
    h, labels = torch.randn(TRAIN, DIM), torch.randint(10, (TRAIN,))
    encoder, images = get_encoder("resnet18", stem="small").eval(), torch.rand(256, 3, 32, 32)

    def encode() -> Tensor:
        with torch.no_grad():
            return encoder(images)

    took = interleaved({"ours": lambda: linear_probe(h, labels, method="sgd", epochs=5), "bare": encode}, seconds)
    return took["ours"] * EPOCHS / 5, took["bare"] * TRAIN / len(images)


def geometry(seconds: float) -> tuple[float, float]:
    """All of the geometry, and one bare product of all embeddings."""
    z = normalize(torch.randn(TEST, 128), dim=1)
    views = torch.stack([z, normalize(z + 0.1 * torch.randn_like(z), dim=1)], 1)

    def all_of_it() -> None:
        one = views[:, :1]
        alignment(views), uniformity(one), wasserstein_uniformity(one)
        spectrum(one), numerical_rank(one), rankme(one)

    took = interleaved({"ours": all_of_it, "bare": lambda: z @ z.T}, seconds)
    return took["ours"], took["bare"]


WORK: tuple[tuple[str, str, Callable[[float], tuple[float, float]], float], ...] = (
    ("kNN of 10,000 against 50,000, 512 dimensions", "product and topk", neighbours, 1.6),
    ("200 epochs of the SGD probe, 50,000 x 512", "encoding them once, ResNet-18", probe, 1 / 20),
    ("geometry of 10,000 x 128", "one product", geometry, 3.0),
)


def main() -> None:
    table = Table(title="evaluation / what it cannot do without")
    for column in ("work", "bare", "threads", "work s", "bare s", "ratio", "bar"):
        table.add_column(column, justify="left" if column in ("work", "bare") else "right")
    missed = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for name, beside, measure, bar in WORK:
            with quiet():
                ours, bare = measure(10.0)
            ratio = ours / bare
            table.add_row(name, beside, str(threads), f"{ours:.2f}", f"{bare:.2f}", f"{ratio:.3f}", f"{bar:.4g}")
            if ratio > bar:
                missed.append(f"{name}, {threads} threads: {ratio:.3f}")
    console.print(table)
    console.print("\n".join(["bars missed:", *missed]) if missed else "all bars met")


if __name__ == "__main__":
    main()
