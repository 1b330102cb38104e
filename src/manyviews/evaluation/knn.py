"""Weighted k nearest neighbours (Wu et al. 2018): exact, in blocks."""

from __future__ import annotations

import re

import torch
from torch import Tensor
from torch.nn.functional import normalize

from manyviews.data import Dataset
from manyviews.evaluation.progress import tracked

PAPER_K = 200
"""The paper's number of neighbors, and the largest that `choose_k` chooses."""
PAPER_DATA = ("cifar10", "cifar100", "imagenet100", "imagenet1k")

ROWS, COLUMNS = 1024, 16384
"""Test and training representations whose cosines are held at once: 64 MB."""


def knn_classify(
    train: Tensor,
    labels: Tensor,
    test: Tensor,
    *,
    k: int | None = None,
    temperature: float = 0.07,
    classes: int | None = None,
) -> Tensor:
    """The class of each test representation: a vote of its k nearest by cosine, weighted by exp(cosine / temperature).

    Args:
        train: representations (n, d) whose labels are known.
        labels: classes (n,), from 0.
        test: representations (m, d).
        k: neighbors that vote; `choose_k(labels)` if not given, all of `train` if it is smaller.
        temperature: of the weights.
        classes: how many there are; one more than the largest label if not given.

    Returns:
        classes (m,); of classes with equal votes the first, of equally near neighbours the first.

    Examples:
        >>> train = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
        >>> knn_classify(train, torch.tensor([0, 0, 1]), torch.tensor([[1.0, 0.2], [0.1, 1.0]]), k=2)
        tensor([0, 1])
    """
    labels = check_labelled("train", train, labels, classes)
    check_finite("test", test)
    if test.dim() != 2 or test.shape[1] != train.shape[1]:
        raise ValueError(f"test must be (m, {train.shape[1]}) as train, got {tuple(test.shape)}")
    k = choose_k(labels, k=k)
    if not temperature > 0:
        raise ValueError(f"temperature must be > 0, got {temperature}")
    count = int(labels.max()) + 1 if classes is None else classes
    found = []
    for part in tracked(test.split(ROWS), "nearest neighbours", len(test), len):
        rows = _unit(part)
        cosine, nearest = _nearest(rows, train, k)
        votes = rows.new_zeros(len(rows), count)
        votes.scatter_add_(1, labels[nearest], torch.exp((cosine - 1) / temperature))
        found.append(votes.argmax(1))
    return torch.cat(found) if found else labels.new_zeros(0)


def choose_k(labels: Tensor, data: Dataset | None = None, k: int | None = None) -> int:
    """The number of neighbors that vote, never more than there are labels (n,).

    By itself a tenth of the mean number of instances in a class, from 1 to 200: neighbors beyond the size of a class
    can only vote for another one. On the paper's data sets (CIFAR by its name, ImageNet by its name or the names of
    its classes) it is the paper's 200, as long as a class has that many instances.

    Examples:
        >>> choose_k(torch.arange(10).repeat(48)), choose_k(torch.arange(10).repeat(48), k=200)
        (4, 200)
    """
    if k is not None:
        if k < 1:
            raise ValueError(f"k must be >= 1, got {k}")
        return min(k, len(labels))
    class_size = len(labels) // len(labels.unique())
    if data is not None and class_size >= PAPER_K:
        is_imagenet = bool(data.classes) and all(re.fullmatch(r"n\d{8}", name) for name in data.classes)
        if data.name in PAPER_DATA or is_imagenet:
            return PAPER_K
    return max(1, min(PAPER_K, class_size // 10))


def score_knn(
    train: Tensor, labels: Tensor, test: Tensor, answers: Tensor, data: Dataset | None = None, k: int | None = None
) -> dict[str, float]:
    """The accuracy of `knn_classify` on test representations (m, d) with labels (m,), and the k of `choose_k`.

    Examples:
        >>> h, labels = torch.eye(4), torch.arange(4)
        >>> score_knn(h, labels, h, labels)
        {'knn': 1.0, 'knn_k': 1}
    """
    k = choose_k(labels, data, k)
    predictions = knn_classify(train, labels, test, k=k)
    return {"knn": int((predictions == answers.to(predictions.device)).sum()) / len(answers), "knn_k": k}


def _unit(h: Tensor) -> Tensor:
    """A block at a time: of a large training set there is no room for a second one."""
    return normalize(h.float(), dim=1)


def _nearest(rows: Tensor, train: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Cosines and places (r, k) of the nearest, in blocks; of equally near ones the first."""
    cosines, places, first = [], [], 0
    for block in train.split(COLUMNS):
        # One more than asked for, to see whether the last one taken has an equal that was not.
        cosine, place = (rows @ _unit(block).T).topk(min(k + 1, len(block)))
        cosines.append(cosine)
        places.append(place + first)
        first += len(block)
    cosine, best = torch.cat(cosines, 1).topk(min(k + 1, len(train)))
    place = torch.cat(places, 1).gather(1, best)
    if k < len(train):
        unclear = (cosine[:, k - 1] == cosine[:, k]).nonzero().squeeze(1)
        for some in unclear.split(max(1, ROWS * COLUMNS // len(train))):
            whole = torch.cat([rows[some] @ _unit(block).T for block in train.split(COLUMNS)], 1)
            place[some, :k] = whole.argsort(dim=1, descending=True, stable=True)[:, :k]
            cosine[some, :k] = whole.gather(1, place[some, :k])
    return cosine[:, :k], place[:, :k]


def check_tensor(name: str, given: object) -> None:
    if not isinstance(given, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(given).__name__}: torch.as_tensor(...) makes one")


def check_finite(name: str, h: Tensor) -> None:
    """Raise if there is a NaN or an infinity, without a mask as large as h."""
    check_tensor(name, h)
    if not h.sum(dtype=None if h.dtype == torch.float64 else torch.float32).isfinite():
        raise ValueError(f"{name} must be finite, and {tuple(h.shape)} values hold NaN or infinity")


def check_labelled(name: str, h: Tensor, labels: Tensor, classes: int | None = None) -> Tensor:
    """The labels as int64; raise unless h is finite (n, d) with n labels from 0."""
    check_tensor(name, h)
    check_tensor("labels", labels)
    if h.dim() != 2 or labels.shape != h.shape[:1] or len(h) == 0:
        raise ValueError(f"{name} must be (n, d) with n labels, got {tuple(h.shape)} and {tuple(labels.shape)}")
    if labels.is_floating_point() or int(labels.min()) < 0 or (classes is not None and int(labels.max()) >= classes):
        most = "0, 1, ..." if classes is None else f"0 to {classes - 1}"
        raise ValueError(f"labels must be whole numbers {most}, got {labels.min()} to {labels.max()} ({labels.dtype})")
    check_finite(name, h)
    return labels.long()
