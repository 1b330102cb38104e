"""Mean embeddings, and the retrieval and geometry of each pair of modalities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, permutations

from torch import Tensor
from torch.nn.functional import normalize

from manyviews.metrics import (
    ALL_OTHERS,
    GEOMETRY_METRICS,
    Geometry,
    RetrievalScore,
    compute_geometry,
    compute_retrieval,
)

MAX_FOR_ALL_SUBSETS = 6
"""With more modalities, only single ones, all but one, and all together are evaluated."""
RECALL_KS = (1, 5, 10)


def average_embeddings(z: Tensor, mask: Tensor) -> Tensor:
    """Average the unit embeddings (M, N, d) of each instance over its available modalities to (M, d).

    Examples:
        >>> import torch
        >>> average_embeddings(torch.eye(2)[None], torch.tensor([[True, False]]))
        tensor([[1., 0.]])
    """
    return (normalize(z, dim=2) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp_min(1)


def list_modality_subsets(count: int) -> list[tuple[int, ...]]:
    """List the subsets of `count` modalities to evaluate, the smallest first.

    Examples:
        >>> list_modality_subsets(3)
        [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)]
    """
    sizes = range(1, count + 1) if count <= MAX_FOR_ALL_SUBSETS else (1, count - 1, count)
    return [chosen for size in sizes for chosen in combinations(range(count), size)]


def compute_cross_modal_retrieval(z: Tensor, mask: Tensor, names: Sequence[str]) -> tuple[RetrievalScore, ...]:
    """Compute recall at 1, 5 and 10 for every ordered pair of modalities, from embeddings (M, N, d).

    With three and more modalities, also many-to-one: the mean embedding of all others finds each of them.

    Examples:
        >>> import torch
        >>> z = torch.eye(20)[:, None].expand(20, 2, 20)
        >>> for score in compute_cross_modal_retrieval(z, torch.ones(20, 2, dtype=torch.bool), ["text", "audio"]):
        ...     print(score.source, score.target, score.recall["1"])
        text audio 1.0
        audio text 1.0
    """
    count = len(names)
    searches = [(names[one], [one], other) for one, other in permutations(range(count), 2)]
    if count > 2:
        searches += [(ALL_OTHERS, [i for i in range(count) if i != target], target) for target in range(count)]
    scores = []
    for source, queries, target in searches:
        both = mask[:, queries].any(1) & mask[:, target]
        if int(both.sum()) > 1:
            mean = average_embeddings(z[:, queries], mask[:, queries])
            metrics = compute_retrieval(mean, z[:, target], ks=RECALL_KS, mask=both)
            recall = {str(k): metrics[f"recall@{k}"] for k in RECALL_KS}
            scores.append(RetrievalScore(source, names[target], int(both.sum()), recall, metrics["median_rank"]))
    return tuple(scores)


def compute_modality_geometry(z: Tensor, mask: Tensor, views: Mapping[str, Sequence[int]]) -> tuple[Geometry, ...]:
    """Compute the geometry of embeddings (M, N, d): of all views, then of each pair of modalities, then of each one.

    `views` has the positions of each modality's views; pairs and single modalities are those of the first ones.

    Examples:
        >>> import torch
        >>> z = torch.eye(20)[:, None].expand(20, 2, 20)
        >>> views = {"text": [0], "audio": [1]}
        >>> overall, pair, text, audio = compute_modality_geometry(z, torch.ones(20, 2).bool(), views)
        >>> pair.modalities, pair.alignment, text.rank
        (('text', 'audio'), 0.0, 19)
    """
    kept = [view for numbers in views.values() for view in numbers]
    metrics = [name for name in GEOMETRY_METRICS if name != "recall_at_1"]
    groups = [Geometry(**compute_geometry(z[:, kept], mask[:, kept], metrics))]
    firsts = {name: numbers[0] for name, numbers in views.items()}
    for (name, one), (other_name, other) in combinations(firsts.items(), 2):
        pair = z[mask[:, one] & mask[:, other]][:, [one, other]]
        if len(pair) > 1:
            values = compute_geometry(pair, metrics=["alignment", "uniformity"])
            groups.append(Geometry((name, other_name), **values))
    for name, i in firsts.items():
        single = z[mask[:, i], i][:, None]
        if len(single) > 1:
            groups.append(Geometry((name,), **compute_geometry(single, metrics=["uniformity", "rank", "rankme"])))
    return tuple(groups)
