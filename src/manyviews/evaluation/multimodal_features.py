"""Raw features as a baseline, mean embeddings, and the retrieval and geometry of each pair of modalities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, permutations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from manyviews.data import Dataset
from manyviews.evaluation.evaluation_result import Geometry, RetrievalScore
from manyviews.loading import CHUNK_INSTANCES
from manyviews.metrics import GEOMETRY_METRICS, compute_geometry, compute_retrieval
from manyviews.models import Standardize

MAX_FOR_ALL_SUBSETS = 6
"""With more modalities, only single ones, all but one, and all together are evaluated."""
SUMMARIES = ("mean", "mean and deviation", "min and max", "flattened")
"""Summaries of a sequence over its steps, the simplest first, used as raw features."""
RECALL_KS = (1, 5, 10)
MAX_STEPS, MAX_FLATTENED_DIM = 32, 2048
"""Limits of a flattened sequence: a probe on more dimensions would take longer than the rest of the evaluation."""


def average_embeddings(z: Tensor, mask: Tensor) -> Tensor:
    """Average the unit embeddings (M, N, d) of each instance over its available modalities to (M, d).

    Examples:
        >>> average_embeddings(torch.eye(2)[None], torch.tensor([[True, False]]))
        tensor([[1., 0.]])
    """
    return (normalize(z, dim=2) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp_min(1)


def make_raw_features(
    split: Dataset, names: Sequence[str], train: Dataset, summaries: Mapping[str, str] | None = None
) -> list[Tensor]:
    """Make features (n, d) of each modality without an encoder, standardized with the statistics of `train`.

    Images are flattened. Sequences are summarized over their steps, without padding, by one of SUMMARIES for each name
    in `summaries` (default: the mean). Missing modalities are zero, the training mean.

    Examples:
        >>> from manyviews.data import load_dataset
        >>> digits = load_dataset("digits")
        >>> features = make_raw_features(digits["test"], ("pixels", "fourier"), digits["train"])
        >>> [tuple(x.shape) for x in features]
        [(360, 64), (360, 40)]
    """
    result = []
    for name in names:
        summary, steps = (summaries or {}).get(name, SUMMARIES[0]), count_flattened_steps(train, name)
        reference = _summarize(train, name, summary, steps)
        scaler = Standardize(reference.shape[1]).fit(reference[train.masks[name]] if name in train.masks else reference)
        features = scaler(_summarize(split, name, summary, steps))
        result.append(torch.where(split.masks[name][:, None], features, 0) if name in split.masks else features)
    return result


def count_flattened_steps(train: Dataset, name: str) -> int:
    """Count the evenly spaced steps kept of a flattened sequence: all of them if the result is small enough."""
    x = train.modalities[name]
    assert isinstance(x, Tensor)
    return max(1, min(x.shape[1], MAX_STEPS, MAX_FLATTENED_DIM // x.shape[2])) if x.dim() == 3 else 1


def _summarize(split: Dataset, name: str, summary: str, steps: int) -> Tensor:
    x = split.modalities[name]
    assert isinstance(x, Tensor)
    if x.dim() != 3:
        return x.flatten(1) / 255 if x.dim() == 4 else x
    lengths = split.lengths.get(name, torch.full((len(x),), x.shape[1]))
    chunks = zip(x.split(CHUNK_INSTANCES), lengths.split(CHUNK_INSTANCES), strict=True)
    return torch.cat([_summarize_sequences(*chunk, summary, steps) for chunk in chunks])


def _summarize_sequences(x: Tensor, lengths: Tensor, summary: str, steps: int) -> Tensor:
    """Summarize sequences (n, T, d) with `lengths` (n,) valid steps to (n, d), (n, 2 d) or (n, steps * d)."""
    if summary == "flattened":
        # The middle of each of `steps` equal parts.
        middles = (2 * torch.arange(steps) + 1) * lengths[:, None] // (2 * steps)
        return x.take_along_dim(middles[..., None], 1).flatten(1)
    mask = (torch.arange(x.shape[1]) < lengths[:, None])[..., None]
    if summary == "min and max":
        low, high = x.masked_fill(~mask, torch.inf).amin(1), x.masked_fill(~mask, -torch.inf).amax(1)
        return torch.cat([low, high], 1)
    mean = (x * mask).sum(1) / lengths[:, None]
    if summary == "mean":
        return mean
    variance = ((x - mean[:, None]) * mask).square().sum(1) / lengths[:, None]
    return torch.cat([mean, variance.sqrt()], 1)


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

    Examples:
        >>> z = torch.eye(20)[:, None].expand(20, 2, 20)
        >>> for score in compute_cross_modal_retrieval(z, torch.ones(20, 2, dtype=torch.bool), ["text", "audio"]):
        ...     print(score.source, score.target, score.recall["1"])
        text audio 1.0
        audio text 1.0
    """
    scores = []
    for one, other in permutations(range(len(names)), 2):
        both = mask[:, one] & mask[:, other]
        if int(both.sum()) > 1:
            metrics = compute_retrieval(z[:, one], z[:, other], ks=RECALL_KS, mask=both)
            recall = {str(k): metrics[f"recall@{k}"] for k in RECALL_KS}
            pair = RetrievalScore(names[one], names[other], int(both.sum()), recall, metrics["median_rank"])
            scores.append(pair)
    return tuple(scores)


def compute_modality_geometry(z: Tensor, mask: Tensor, names: Sequence[str]) -> tuple[Geometry, ...]:
    """Compute the geometry of embeddings (M, N, d): of all modalities, then of each pair, then of each one.

    Examples:
        >>> z = torch.eye(20)[:, None].expand(20, 2, 20)
        >>> overall, pair, text, audio = compute_modality_geometry(z, torch.ones(20, 2).bool(), ["text", "audio"])
        >>> pair.modalities, pair.alignment, text.rank
        (('text', 'audio'), 0.0, 19)
    """
    groups = [Geometry(**compute_geometry(z, mask, [name for name in GEOMETRY_METRICS if name != "recall_at_1"]))]
    for one, other in combinations(range(len(names)), 2):
        pair = z[mask[:, one] & mask[:, other]][:, [one, other]]
        if len(pair) > 1:
            metrics = compute_geometry(pair, metrics=["alignment", "uniformity"])
            groups.append(Geometry((names[one], names[other]), **metrics))
    for i, name in enumerate(names):
        single = z[mask[:, i], i][:, None]
        if len(single) > 1:
            groups.append(Geometry((name,), **compute_geometry(single, metrics=["uniformity", "rank", "rankme"])))
    return tuple(groups)
