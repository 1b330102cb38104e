"""Cost of evaluation, compared with the bare operations that it cannot avoid."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.measure import Row, make_time_row, time_interleaved
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

DIM, EPOCHS, MEASURED_EPOCHS = 512, 200, 5


def measure(quick: bool) -> Iterator[Row]:
    scale, seconds = (50, 0.1) if quick else (1, 8.0)
    with hide_progress():
        yield measure_knn(2_500 // scale, 50_000 // scale, seconds)
        yield measure_probe(50_000 // scale, seconds)
        yield measure_geometry(10_000 // scale, seconds)


def measure_knn(queries: int, instances: int, seconds: float) -> Row:
    """Compare kNN with the product and topk, in the same blocks of queries."""
    train, test = (normalize(torch.randn(count, DIM), dim=1) for count in (instances, queries))
    labels = torch.randint(10, (instances,))

    def find_topk() -> list[tuple[Tensor, Tensor]]:
        return [(block @ train.T).topk(200) for block in test.split(1024)]

    times = time_interleaved({"knn": lambda: knn_classify(train, labels, test, k=200), "topk": find_topk}, seconds)
    workload = f"kNN of {queries:,} among {instances:,}, {DIM} dimensions"
    return make_time_row("evaluation", workload, "bare product and topk", times["knn"], times["topk"], max_ratio=1.2)


def measure_probe(instances: int, seconds: float) -> Row:
    """Compare the SGD probe with encoding; both times are extrapolated from a few epochs and from 256 images."""
    h, labels = torch.randn(instances, DIM), torch.randint(10, (instances,))
    encoder, images = get_encoder("resnet18", stem="small").eval(), torch.rand(256, 3, 32, 32)

    def encode() -> Tensor:
        with torch.no_grad():
            return encoder(images)

    def fit() -> object:
        return fit_linear_probe(h, labels, solver="sgd", epochs=MEASURED_EPOCHS)

    times = time_interleaved({"probe": fit, "encode": encode}, seconds)
    return make_time_row(
        "evaluation",
        f"SGD probe of {EPOCHS} epochs, {instances:,} x {DIM}",
        "encoding the instances once, ResNet-18",
        times["probe"],
        times["encode"],
        repeats=(EPOCHS / MEASURED_EPOCHS, instances / len(images)),
        max_ratio=1 / 20,
    )


def measure_geometry(instances: int, seconds: float) -> Row:
    z = normalize(torch.randn(instances, 128), dim=1)
    views = torch.stack([z, normalize(z + 0.1 * torch.randn_like(z), dim=1)], 1)

    def compute_all() -> None:
        first = views[:, :1]
        alignment(views), uniformity(first), wasserstein_uniformity(first)
        spectrum(first), numerical_rank(first), rankme(first)

    times = time_interleaved({"geometry": compute_all, "product": lambda: z @ z.T}, seconds)
    workload = f"geometry of {instances:,} x 128"
    return make_time_row(
        "evaluation", workload, "one product of all pairs", times["geometry"], times["product"], max_ratio=3.0
    )
