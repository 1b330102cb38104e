"""Weighted k nearest neighbours (Wu et al. 2018): exact, in blocks."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

BLOCK = 64 * 2**20
"""Bytes of cosines held at once."""


def knn_classify(
    train: Tensor, labels: Tensor, test: Tensor, *, k: int = 200, temperature: float = 0.07, classes: int | None = None
) -> Tensor:
    """The class of each test representation: a vote of its k nearest by cosine, weighted by exp(cosine / temperature).

    Args:
        train: representations (n, d) whose labels are known.
        labels: classes (n,), from 0.
        test: representations (m, d).
        k: neighbours that vote; all of `train` if it is smaller.
        temperature: of the weights.
        classes: how many there are; one more than the largest label if not given.

    Returns:
        classes (m,); of classes with equal votes the first.

    Example:
        >>> train = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
        >>> knn_classify(train, torch.tensor([0, 0, 1]), torch.tensor([[1.0, 0.2], [0.1, 1.0]]), k=2)
        tensor([0, 1])
    """
    check_labelled("train", train, labels, classes)
    if test.dim() != 2 or test.shape[1] != train.shape[1]:
        raise ValueError(f"test must be (m, {train.shape[1]}) as train, got {tuple(test.shape)}")
    if k < 1 or not temperature > 0:
        raise ValueError(f"k must be >= 1 and temperature > 0, got {k} and {temperature}")
    k = min(k, len(train))
    count = int(labels.max()) + 1 if classes is None else classes
    train, test = normalize(train.float(), dim=1), normalize(test.float(), dim=1)
    found = []
    for rows in test.split(max(1, BLOCK // (4 * len(train)))):
        cosine, nearest = (rows @ train.T).topk(k)
        votes = rows.new_zeros(len(rows), count)
        votes.scatter_add_(1, labels[nearest], torch.exp((cosine - 1) / temperature))
        found.append(votes.argmax(1))
    return torch.cat(found) if found else labels.new_zeros(0)


def check_labelled(name: str, h: Tensor, labels: Tensor, classes: int | None = None) -> None:
    """Raise unless h is (n, d) with n labels from 0."""
    if h.dim() != 2 or labels.shape != h.shape[:1] or len(h) == 0:
        raise ValueError(f"{name} must be (n, d) with n labels, got {tuple(h.shape)} and {tuple(labels.shape)}")
    if labels.is_floating_point() or int(labels.min()) < 0 or (classes is not None and int(labels.max()) >= classes):
        most = "0, 1, ..." if classes is None else f"0 to {classes - 1}"
        raise ValueError(f"labels must be whole numbers {most}, got {labels.min()} to {labels.max()} ({labels.dtype})")
