"""Looking at a model while it trains: kNN of representations, geometry of embeddings."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from manyviews.data import ImageFiles
from manyviews.evaluation import alignment, knn_classify, numerical_rank, rankme, representations, uniformity
from manyviews.evaluation.progress import quiet
from manyviews.evaluation.represent import EPOCH, embedded_views
from manyviews.models import Embedder
from manyviews.views import SimCLRPolicy
from manyviews.views.keyed import permutation

Images = Tensor | ImageFiles

WATCHED = 250
"""Instances watched when none are held out."""
NEIGHBOURS = 1000
"""Training instances among which the watched ones look for their nearest."""


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
        with quiet():
            _, z = embedded_views(model, self.images, self.watched, self.policy, self.views, self.seed)
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
            bank, known = representations(model.encoder, self.images, self.bank, self.policy.size)
            watched, asked = representations(model.encoder, self.images, self.watched, self.policy.size)
            guess = knn_classify(bank, self.labels[known].to(bank.device), watched)
            return {"knn": (guess.cpu() == self.labels[asked]).double().mean().item(), **found}


def collapsed(found: dict[str, float]) -> str | None:
    """What to say if embeddings of different instances have become one, or nearly lie on a line."""
    if found["uniformity"] > -0.05:
        what = f"all instances have nearly the same embedding (uniformity {found['uniformity']:.3f}, spread is -4)"
    elif found["rankme"] < 2:
        what = f"the embeddings use hardly more than one dimension (effective rank {found['rankme']:.2f})"
    else:
        return None
    return f"COLLAPSE: {what}. Try a smaller --learning-rate, a smaller --temperature or a larger --batch-size."
