"""Retrieval of another view of an instance among the views of all instances."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize

from manyviews.utils import check_finite, track

RETRIEVAL_BLOCK = 1024
"""Queries per block of cosines."""


def compute_retrieval(
    queries: Tensor, gallery: Tensor, ks: Sequence[int] = (1, 5, 10), mask: Tensor | None = None
) -> dict[str, float]:
    """Compute recall at k and the median rank of retrieving another view (or modality) of an instance.

    Args:
        queries: embeddings (M, d) of one view.
        gallery: embeddings (M, d) of another view of the same instances, in the same order.
        ks: recall at k is the fraction of queries whose instance is among the k nearest by cosine.
        mask: bool (M,), true for instances that have both views; the others are ignored.

    Returns:
        `recall@k` for each k, and `median_rank`, from 1. Ties count as nearer, so the recall of collapsed embeddings
        is 0.

    Examples:
        >>> compute_retrieval(torch.eye(4), torch.eye(4), ks=[1])
        {'recall@1': 1.0, 'median_rank': 1.0}
    """
    if queries.dim() != 2 or queries.shape != gallery.shape:
        got = f"{tuple(queries.shape)} and {tuple(gallery.shape)}"
        raise ValueError(f"queries and gallery must both be (M, d), got {got}")
    if mask is not None:
        if mask.dtype != torch.bool or mask.shape != queries.shape[:1]:
            raise ValueError(f"mask must be bool (M,) = ({len(queries)},), got {mask.dtype} {tuple(mask.shape)}")
        queries, gallery = queries[mask], gallery[mask]
    if not len(queries) or not ks or min(ks) < 1:
        got = f"{len(queries)} instances and k {tuple(ks)}"
        raise ValueError(f"retrieval needs at least one instance and k >= 1, got {got}")
    check_finite("queries", queries)
    check_finite("gallery", gallery)
    queries, gallery = normalize(queries.float(), dim=1), normalize(gallery.float(), dim=1)
    ranks = []
    blocks = range(0, len(queries), RETRIEVAL_BLOCK)
    for first in track(blocks, "blocks of queries", len(blocks)):
        cosine = queries[first : first + RETRIEVAL_BLOCK] @ gallery.T
        positive = cosine.diagonal(first).unsqueeze(1)
        ranks.append((cosine >= positive).sum(1))
    rank = torch.cat(ranks)
    scores = {f"recall@{k}": int((rank <= k).sum()) / len(rank) for k in ks}
    return {**scores, "median_rank": rank.cpu().double().quantile(0.5).item()}
