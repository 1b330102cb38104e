"""Finding the other view of an instance among those of all instances."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize

from manyviews.evaluation.knn import check_finite
from manyviews.evaluation.progress import tracked

ROWS = 1024
"""Queries whose cosines to the whole gallery are held at once."""


def retrieval(
    queries: Tensor, gallery: Tensor, ks: Sequence[int] = (1, 5, 10), present: Tensor | None = None
) -> dict[str, float]:
    """How well one view (or modality) of an instance finds another of its views: recall at k, and the median rank.

    Args:
        queries: (M, d) of one view.
        gallery: (M, d) of another view of the same instances, in the same order.
        ks: recall at k is the share of queries whose own instance is among the k nearest by cosine.
        present: (M,) which instances have both views; the others are left out.

    Returns:
        `recall@k` for each k, and `median_rank`, from 1. An equally near other instance counts as nearer: when all
        embeddings are one, nothing is found.

    Examples:
        >>> retrieval(torch.eye(4), torch.eye(4), ks=[1])
        {'recall@1': 1.0, 'median_rank': 1.0}
    """
    if queries.dim() != 2 or queries.shape != gallery.shape:
        raise ValueError(
            f"queries and gallery must both be (M, d), got {tuple(queries.shape)} and {tuple(gallery.shape)}"
        )
    if present is not None:
        if present.dtype != torch.bool or present.shape != queries.shape[:1]:
            raise ValueError(
                f"present must be a bool (M,) = ({len(queries)},), got {present.dtype} {tuple(present.shape)}"
            )
        queries, gallery = queries[present], gallery[present]
    if not len(queries) or not ks or min(ks) < 1:
        raise ValueError(f"retrieval needs an instance and k >= 1, got {len(queries)} instances and k {tuple(ks)}")
    check_finite("queries", queries)
    check_finite("gallery", gallery)
    queries, gallery = normalize(queries.float(), dim=1), normalize(gallery.float(), dim=1)
    ranks = []
    for first in tracked(range(0, len(queries), ROWS), "blocks of queries", -(-len(queries) // ROWS)):
        rows = queries[first : first + ROWS]
        cosine = rows @ gallery.T
        own = cosine.diagonal(first).unsqueeze(1)
        ranks.append((cosine >= own).sum(1))
    rank = torch.cat(ranks)
    scores = {f"recall@{k}": int((rank <= k).sum()) / len(rank) for k in ks}
    return {**scores, "median_rank": rank.cpu().double().quantile(0.5).item()}
