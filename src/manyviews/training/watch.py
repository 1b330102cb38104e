"""Looking at a model while it trains and when it is done: kNN, linear probe, geometry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from manyviews.data import Dataset, ImageFiles
from manyviews.evaluation import alignment, knn_classify, linear_probe, numerical_rank, rankme, uniformity
from manyviews.models import Embedder
from manyviews.views import SimCLRPolicy, plain_views
from manyviews.views.keyed import permutation

Images = Tensor | ImageFiles

WATCHED = 250
"""Instances watched when none are held out."""
NEIGHBOURS = 1000
"""Training instances among which the watched ones look for their nearest."""
EPOCH = 2**31 - 1
"""Of the views of watched instances, which are the same each time: an epoch no training reaches."""
MOST_PIXELS = 64
"""Height and width up to which pixels are compared too: a linear probe of more is a large thing."""
PIECE = 256
"""Views encoded at once."""


@dataclass(frozen=True)
class Watch:
    """Instances that are looked at again and again.

    `trained` are the indices to train on. Without held-out instances some trained ones are watched: their labels are
    still unseen.
    """

    images: Images
    labels: Tensor | None
    policy: SimCLRPolicy
    views: int
    seed: int
    trained: Tensor
    watched: Tensor
    bank: Tensor

    @classmethod
    def over(
        cls, images: Images, labels: Tensor | None, policy: SimCLRPolicy, views: int, seed: int, held_out: int
    ) -> Watch:
        # A key of its own: epochs are numbered from 0.
        order = permutation(len(images), seed, EPOCH)
        count = held_out or min(WATCHED, max(2, len(images) // 2))
        watched, rest = order[:count], order[count:]
        trained = rest.sort().values if held_out else torch.arange(len(images))
        return cls(images, labels, policy, views, seed, trained, watched, rest[:NEIGHBOURS])

    def __call__(self, model: Embedder) -> dict[str, float]:
        """KNN of representations, and the geometry of the embeddings of views."""
        with evaluating(model) as like:
            z = torch.cat([model(views.to(like)).z.float() for views in self._views()])
            if not z.isfinite().all():
                raise FloatingPointError("the embeddings of watched instances are not finite")
            found = {
                "alignment": alignment(z).item(),
                "uniformity": uniformity(z).item(),
                "rank": numerical_rank(z),
                "rankme": rankme(z).item(),
            }
            if self.labels is None or not len(self.bank):
                return found
            size = self.policy.size
            bank, watched = (
                representations(model.encoder, self.images, part, size) for part in (self.bank, self.watched)
            )
            guess = knn_classify(bank, self.labels[self.bank].to(like.device), watched)
            return {"knn": (guess == self.labels[self.watched].to(like.device)).double().mean().item(), **found}

    def _views(self) -> Iterator[Tensor]:
        for index in self.watched.split(max(1, PIECE // self.views)):
            images = chosen(self.images, index)
            yield self.policy(images, views=self.views, seed=self.seed, epoch=EPOCH, index=index)


def collapsed(found: dict[str, float]) -> str | None:
    """What to say if embeddings of different instances have become one, or nearly lie on a line."""
    if found["uniformity"] > -0.05:
        what = f"all instances have nearly the same embedding (uniformity {found['uniformity']:.3f}, spread is -4)"
    elif found["rankme"] < 2:
        what = f"the embeddings use hardly more than one dimension (effective rank {found['rankme']:.2f})"
    else:
        return None
    return f"COLLAPSE: {what}. Try a smaller --learning-rate, a smaller --temperature or a larger --batch-size."


def compare(encoders: dict[str, nn.Module], data: Dataset, size: int, limit: int | None) -> dict[str, Any] | None:
    """KNN and linear probe on the test set: of pixels, and of each encoder's representations.

    None without labels or a test set.
    """
    train = data["train"]
    if "test" not in data.splits or train.labels is None or data["test"].labels is None:
        return None
    test = data["test"]
    labels = train.labels[:limit]
    assert test.labels is not None
    parts = [(train.images, torch.arange(len(labels))), (test.images, torch.arange(len(test)))]
    scores: dict[str, dict[str, float]] = {}
    pixels: dict[str, nn.Module] = {"pixels": nn.Flatten()} if size <= MOST_PIXELS else {}
    for name, encoder in {**pixels, **encoders}.items():
        with evaluating(encoder) as like:
            h, queries = (representations(encoder, images, index, size) for images, index in parts)
            truth, answers = labels.to(like.device), test.labels.to(like.device)
            guess = knn_classify(h, truth, queries)
            scores[name] = {
                "knn": (guess == answers).double().mean().item(),
                "linear": linear_probe(h, truth).accuracy(queries, answers),
            }
    return {"data": data.name, "train_instances": len(labels), "test_instances": len(test), "scores": scores}


def representations(encoder: nn.Module, images: Images, index: Tensor, size: int) -> Tensor:
    """(n, dim) of images as they are; the next file stands for a broken one."""
    like = _like(encoder)
    parts = index.split(PIECE)
    return torch.cat([encoder(plain_views(chosen(images, part), size).to(like)).float() for part in parts])


def chosen(images: Images, index: Tensor) -> Tensor | Sequence[Tensor]:
    if isinstance(images, Tensor):
        return images[index.to(images.device)]
    return [images.whole(int(number))[0] for number in index]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[Tensor]:
    """Evaluation mode without gradients, and back again. Gives a tensor of the model's device and precision."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield _like(model)
    finally:
        for module, mode in modes:
            module.training = mode


def _like(model: nn.Module) -> Tensor:
    return next(model.parameters(), torch.zeros(()))
