"""Images -> representations h and embeddings z of a model that is not trained meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from manyviews.data import ImageFiles
from manyviews.evaluation import geometry
from manyviews.evaluation.probe import Augment
from manyviews.evaluation.progress import tracked
from manyviews.evaluation.retrieve import retrieval
from manyviews.models import Embedder
from manyviews.views import SimCLRPolicy, ViewBatches
from manyviews.views.plain import batch_size, plain_batches

Images = Tensor | ImageFiles

NO_EPOCH = 2**31 - 1
"""Of the views that are looked at, which are the same each time: an epoch no training reaches."""


def representations(
    encoder: nn.Module, images: Images, index: Tensor, size: int, workers: int = 0
) -> tuple[Tensor, Tensor]:
    """Representations (n, dim) of images as they are, and which instances they are: those that can be read.

    Examples:
        >>> images = torch.zeros(10, 3, 4, 4, dtype=torch.uint8)
        >>> h, index = representations(nn.Flatten(), images, torch.arange(6), size=4)
        >>> h.shape, index
        (torch.Size([6, 48]), tensor([0, 1, 2, 3, 4, 5]))
    """
    found, places = [], []
    with evaluating(encoder) as like:
        batches = plain_batches(images, index, size, workers)
        for views, place in tracked(batches, "encoding images", len(index), lambda batch: len(batch[1])):
            found.append(encoder(views.to(like)).float())
            places.append(place)
    if not found:
        raise ValueError(f"none of {len(index)} images can be read")
    return torch.cat(found), torch.cat(places)


def embedded_views(
    embedder: Embedder, images: Images, index: Tensor, policy: SimCLRPolicy, views: int, seed: int, workers: int = 0
) -> tuple[Tensor, Tensor]:
    """H (M, N, dim) and z (M, N, d) of views of the instances in `index`; the next file stands for a broken one."""
    h: list[Tensor] = []
    z: list[Tensor] = []
    with evaluating(embedder) as like:
        batches = ViewBatches(images, policy, views, seed, workers, like.device)
        parts = batches(NO_EPOCH, list(index.split(max(1, batch_size(policy.size) // views))))
        for drawn, _ in tracked(parts, "embedding views", len(index), lambda batch: len(batch[1])):
            assert isinstance(drawn, Tensor)
            for rows, new in zip((h, z), embedder(drawn.to(like)), strict=True):
                rows.append(new.float())
    return torch.cat(h), torch.cat(z)


def augmented(encoder: nn.Module, images: Images, size: int, seed: int = 0, workers: int = 0) -> Augment:
    """For `linear_probe`: in each epoch the representations of other crops, half of them mirrored.

    Examples:
        >>> images = torch.randint(256, (8, 3, 4, 4), dtype=torch.uint8)
        >>> augment = augmented(nn.Flatten(), images, size=4)
        >>> for h, index in augment(0, [torch.tensor([0, 1, 2])]):
        ...     print(tuple(h.shape), index)
        (3, 48) tensor([0, 1, 2])
    """
    policy = SimCLRPolicy(size, strength=0, jitter=0, grey=0)

    def augment(epoch: int, batches: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        device = next((weight.device for weight in encoder.parameters()), None)
        for views, index in ViewBatches(images, policy, 1, seed, workers, device)(epoch, list(batches)):
            assert isinstance(views, Tensor)
            with evaluating(encoder) as like:
                h = encoder(views[:, 0].to(like)).float()
            yield h, index

    return augment


GEOMETRY = {
    "alignment": "distance² of two views, 0 best",
    "uniformity": "0 for one point, -4 spread evenly",
    "wasserstein": "1 for one point, 0 spread evenly",
    "recall@1": "another view is the nearest",
    "rank": "dimensions filled",
    "rankme": "dimensions used evenly",
}
"""What is found of embeddings, and what to think of it."""


def geometry_of(z: Tensor) -> dict[str, Any]:
    """The geometry of embeddings (M, N, d), as numbers to write down.

    `recall@1` is the share of instances whose second view is, among those of all, the nearest to their first.

    Examples:
        >>> geometry_of(torch.eye(4)[:, None].expand(4, 2, 4))["alignment"]
        0.0
    """
    return {
        "alignment": geometry.alignment(z).item(),
        "uniformity": geometry.uniformity(z).item(),
        "wasserstein": geometry.wasserstein_uniformity(z).item(),
        "rank": geometry.numerical_rank(z),
        "rankme": geometry.rankme(z).item(),
        "dimensions": z.shape[2],
        "recall@1": retrieval(z[:, 0], z[:, 1], ks=[1])["recall@1"],
        "spectrum": geometry.spectrum(z).tolist(),
    }


@contextmanager
def evaluating(model: nn.Module) -> Iterator[Tensor]:
    """Evaluation mode without gradients, and back again. Gives a tensor of the model's device and precision."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield next(model.parameters(), torch.zeros(()))
    finally:
        for module, mode in modes:
            module.training = mode
