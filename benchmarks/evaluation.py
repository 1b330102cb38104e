"""What evaluation costs beside the bare operations it cannot do without."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.measure import Row, interleaved, timed
from manyviews.metrics import (
    alignment,
    fit_linear_probe,
    knn_classify,
    numerical_rank,
    rankme,
    spectrum,
    uniformity,
    wasserstein_uniformity,
)
from manyviews.models import get_encoder
from manyviews.utils import hide_progress

DIM, EPOCHS = 512, 200


def measure(quick: bool) -> Iterator[Row]:
    scale, seconds = (50, 0.1) if quick else (1, 8.0)
    with hide_progress():
        yield neighbours(2_500 // scale, 50_000 // scale, seconds)
        yield probe(50_000 // scale, seconds)
        yield geometry(10_000 // scale, seconds)


def neighbours(asked: int, known: int, seconds: float) -> Row:
    """Beside the product and topk, in the same blocks of rows."""
    train, test = (normalize(torch.randn(rows, DIM), dim=1) for rows in (known, asked))
    labels = torch.randint(10, (known,))

    def bare() -> list[tuple[Tensor, Tensor]]:
        return [(rows @ train.T).topk(200) for rows in test.split(1024)]

    took = interleaved({"ours": lambda: knn_classify(train, labels, test, k=200), "bare": bare}, seconds)
    work = f"kNN of {asked:,} among {known:,}, {DIM} dimensions"
    return timed("evaluation", work, "bare product and topk", took["ours"], took["bare"], bar=1.6)


def probe(known: int, seconds: float) -> Row:
    """Five epochs of the SGD probe and encoding 256 images are measured, as parts of 200 and of the training set."""
    h, labels = torch.randn(known, DIM), torch.randint(10, (known,))
    encoder, images = get_encoder("resnet18", stem="small").eval(), torch.rand(256, 3, 32, 32)

    def encode() -> Tensor:
        with torch.no_grad():
            return encoder(images)

    took = interleaved({"ours": lambda: fit_linear_probe(h, labels, solver="sgd", epochs=5), "bare": encode}, seconds)
    work, times = f"SGD probe of {EPOCHS} epochs, {known:,} x {DIM}", (EPOCHS / 5, known / len(images))
    return timed(
        "evaluation", work, "encoding them once, ResNet-18", took["ours"], took["bare"], times=times, bar=1 / 20
    )


def geometry(count: int, seconds: float) -> Row:
    z = normalize(torch.randn(count, 128), dim=1)
    views = torch.stack([z, normalize(z + 0.1 * torch.randn_like(z), dim=1)], 1)

    def all_of_it() -> None:
        one = views[:, :1]
        alignment(views), uniformity(one), wasserstein_uniformity(one)
        spectrum(one), numerical_rank(one), rankme(one)

    took = interleaved({"ours": all_of_it, "bare": lambda: z @ z.T}, seconds)
    return timed(
        "evaluation", f"geometry of {count:,} x 128", "one product of all pairs", took["ours"], took["bare"], bar=3.0
    )
