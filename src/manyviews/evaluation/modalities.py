"""Modalities -> representations, raw features to compare with, retrieval and geometry of each pair of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, permutations
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from manyviews.data import Split
from manyviews.evaluation import geometry
from manyviews.evaluation.progress import tracked
from manyviews.evaluation.represent import evaluating
from manyviews.evaluation.retrieve import retrieval
from manyviews.models import ModalityEmbedder, ModalityEncoder, Standardise
from manyviews.views import ModalityBatches

PIECE = 256
"""Instances that are encoded at once."""
MOST_NAMED = 6
"""Modalities of which every subset is looked at; of more only each alone, all but one, and all."""
SUMMARIES = ("mean", "mean and deviation", "min and max", "flattened")
"""Of a sequence over its steps, the simplest first: the raw features that an encoder is compared with."""
MAX_STEPS, MAX_FLATTENED_DIM = 32, 2048
"""Of a flattened sequence: a probe on more dimensions would take longer than what it is compared with."""

PROBES = {
    "raw": "raw features, own probe",
    "own": "own probe",
    "filled": "one probe, mean filled in",
    "common": "one probe, common space",
}
"""How a subset of modalities is asked, in words."""


def embedded(model: ModalityEmbedder, rows: ModalityBatches, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """H (M, N, dim), what the head makes of it, and what is there (M, N), of the instances in `index`."""
    h, z = [], []
    with evaluating(model) as like:
        for piece in tracked(index.split(PIECE), "embedding instances", -(-len(index) // PIECE)):
            found = model([part.to(like.device) for part in rows.of(piece)])
            h.append(found.h.float())
            z.append(found.z.float())
    return torch.cat(h), torch.cat(z), rows.present(index).to(h[0].device)


def represented(encoder: ModalityEncoder, rows: ModalityBatches, index: Tensor) -> tuple[Tensor, Tensor]:
    """H (M, N, dim) and what is there (M, N), of the instances in `index`."""
    with evaluating(encoder) as like:
        pieces = tracked(index.split(PIECE), "encoding instances", -(-len(index) // PIECE))
        h = torch.cat([encoder([part.to(like.device) for part in rows.of(piece)]).float() for piece in pieces])
    return h, rows.present(index).to(h.device)


def mean_embedding(z: Tensor, present: Tensor) -> Tensor:
    """The mean (M, d) of the unit embeddings (M, N, d) that are there: an instance in the common space.

    Examples:
        >>> mean_embedding(torch.eye(2)[None], torch.tensor([[True, False]]))
        tensor([[1., 0.]])
    """
    return (normalize(z, dim=2) * present[..., None]).sum(1) / present.sum(1, keepdim=True).clamp_min(1)


def set_centre(encoder: ModalityEncoder, rows: ModalityBatches, index: Tensor) -> None:
    """Let the mean representation of the instances that were trained on stand for what is missing."""
    h, present = represented(encoder, rows, index)
    encoder.centre.copy_(h.double().sum(0) / present.sum(0).clamp_min(1)[:, None])


def raw_features(
    split: Split, names: Sequence[str], train: Split, summaries: Mapping[str, str] | None = None
) -> list[Tensor]:
    """Features (n, d) of each modality without any encoder, standardised to the training split.

    Images are their pixels. Sequences are summarized over their steps as `summaries` says, by one of SUMMARIES for each
    name (the mean if not given); padding does not count. What is missing is the training mean, zero.

    Examples:
        >>> from manyviews.data import load_dataset
        >>> digits = load_dataset("digits")
        >>> [tuple(rows.shape) for rows in raw_features(digits["test"], ("pixels", "fourier"), digits["train"])]
        [(360, 64), (360, 40)]
    """
    found = []
    for name in names:
        summary, steps = (summaries or {}).get(name, SUMMARIES[0]), count_flattened_steps(train, name)
        known = _summarize(train, name, summary, steps)
        fitted = Standardise(known.shape[1]).fit(known[train.present[name]] if name in train.present else known)
        rows = fitted(_summarize(split, name, summary, steps))
        found.append(torch.where(split.present[name][:, None], rows, 0) if name in split.present else rows)
    return found


def count_flattened_steps(train: Split, name: str) -> int:
    """The number of even steps at which a modality is flattened: all of them if they are few and narrow."""
    rows = train.modalities[name]
    assert isinstance(rows, Tensor)
    return max(1, min(rows.shape[1], MAX_STEPS, MAX_FLATTENED_DIM // rows.shape[2])) if rows.dim() == 3 else 1


def _summarize(split: Split, name: str, summary: str, steps: int) -> Tensor:
    rows = split.modalities[name]
    assert isinstance(rows, Tensor)
    if rows.dim() != 3:
        return rows.flatten(1) / 255 if rows.dim() == 4 else rows
    lengths = split.lengths.get(name, torch.full((len(rows),), rows.shape[1]))
    chunks = zip(rows.split(PIECE), lengths.split(PIECE), strict=True)
    return torch.cat([_summarize_sequences(*chunk, summary, steps) for chunk in chunks])


def _summarize_sequences(rows: Tensor, lengths: Tensor, summary: str, steps: int) -> Tensor:
    """(n, T, d) of `lengths` (n,) steps each to (n, d), (n, 2 d) or (n, steps * d)."""
    if summary == "flattened":
        middles = (2 * torch.arange(steps) + 1) * lengths[:, None] // (2 * steps)  # of even parts of a sequence
        return rows.take_along_dim(middles[..., None], 1).flatten(1)
    mask = (torch.arange(rows.shape[1]) < lengths[:, None])[..., None]
    if summary == "min and max":
        low, high = rows.masked_fill(~mask, torch.inf).amin(1), rows.masked_fill(~mask, -torch.inf).amax(1)
        return torch.cat([low, high], 1)
    mean = (rows * mask).sum(1) / lengths[:, None]
    if summary == "mean":
        return mean
    variance = ((rows - mean[:, None]) * mask).square().sum(1) / lengths[:, None]
    return torch.cat([mean, variance.sqrt()], 1)


def subsets(count: int) -> list[tuple[int, ...]]:
    """The subsets of so many modalities that are looked at, the smallest first.

    Examples:
        >>> subsets(3)
        [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)]
    """
    sizes = range(1, count + 1) if count <= MOST_NAMED else (1, count - 1, count)
    return [chosen for size in sizes for chosen in combinations(range(count), size)]


def retrieval_between(z: Tensor, present: Tensor, names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Recall at 1, 5 and 10 for every ordered pair of modalities, from embeddings (M, N, d).

    Examples:
        >>> z = torch.eye(20)[:, None].expand(20, 2, 20)
        >>> found = retrieval_between(z, torch.ones(20, 2, dtype=torch.bool), ["text", "audio"])
        >>> list(found), found["text to audio"]["recall@1"]
        (['text to audio', 'audio to text'], 1.0)
    """
    found = {}
    for one, other in permutations(range(len(names)), 2):
        both = present[:, one] & present[:, other]
        if int(both.sum()) > 1:
            scores = retrieval(z[:, one], z[:, other], present=both)
            found[f"{names[one]} to {names[other]}"] = {"instances": int(both.sum()), **scores}
    return found


def geometry_between(z: Tensor, present: Tensor, names: Sequence[str]) -> dict[str, Any]:
    """Alignment and uniformity of all modalities (M, N, d), of each pair, and of each one, with its rank.

    Examples:
        >>> z = torch.eye(20)[:, None].expand(20, 2, 20)
        >>> found = geometry_between(z, torch.ones(20, 2, dtype=torch.bool), ["text", "audio"])
        >>> found["pairs"]["text and audio"]["alignment"], found["each"]["text"]["rank"]
        (0.0, 19)
    """
    found: dict[str, Any] = {"pairs": {}, "each": {}}
    several = (present.sum(1) >= 2).any()
    found["all"] = {
        "alignment": geometry.alignment(z, present).item() if several else None,
        "uniformity": geometry.uniformity(z, present).item(),
        "wasserstein": geometry.wasserstein_uniformity(z, present).item(),
        "rank": geometry.numerical_rank(z, present),
        "rankme": geometry.rankme(z, present).item(),
        "dimensions": z.shape[2],
        "spectrum": geometry.spectrum(z, present).tolist(),
    }
    for one, other in combinations(range(len(names)), 2):
        both = present[:, one] & present[:, other]
        if int(both.sum()) > 1:
            pair = z[both][:, [one, other]]
            found["pairs"][f"{names[one]} and {names[other]}"] = {
                "alignment": geometry.alignment(pair).item(),
                "uniformity": geometry.uniformity(pair).item(),
            }
    for number, name in enumerate(names):
        own = z[present[:, number], number][:, None]
        if len(own) > 1:
            found["each"][name] = {
                "uniformity": geometry.uniformity(own).item(),
                "rank": geometry.numerical_rank(own),
                "rankme": geometry.rankme(own).item(),
            }
    return found
