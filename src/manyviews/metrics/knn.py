"""Weighted k-nearest-neighbor classification (Wu et al. 2018): exact, in blocks."""

import re

import torch
from torch import Tensor
from torch.nn.functional import normalize

from manyviews.data import DatasetDict
from manyviews.utils import check_finite, check_labels, track

PAPER_K = 200
"""The paper's number of neighbors, and the maximum of `choose_k`."""
PAPER_DATA = ("cifar10", "cifar100", "imagenet100", "imagenet1k")

QUERY_BLOCK, KEY_BLOCK = 1024, 16384
"""Test and training representations in a block of cosines: 64 MB."""


def knn_classify(
    train: Tensor,
    labels: Tensor,
    test: Tensor,
    *,
    k: int | None = None,
    temperature: float = 0.07,
    num_classes: int | None = None,
) -> Tensor:
    """Classify test representations by a vote of the k nearest by cosine, weighted by exp(cosine / temperature).

    Args:
        train: training representations (n, d).
        labels: classes (n,), from 0.
        test: representations (m, d).
        k: number of neighbors, at most n; default: `choose_k(labels)`.
        temperature: temperature of the weights.
        num_classes: number of classes; default: the largest label + 1.

    Returns:
        classes (m,). Ties between classes and between neighbors go to the lowest index.

    Examples:
        >>> train = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
        >>> knn_classify(train, torch.tensor([0, 0, 1]), torch.tensor([[1.0, 0.2], [0.1, 1.0]]), k=2)
        tensor([0, 1])
    """
    labels = check_labels("train", train, labels, num_classes)
    check_finite("test", test)
    if test.dim() != 2 or test.shape[1] != train.shape[1]:
        raise ValueError(f"test must be (m, {train.shape[1]}) like train, got {tuple(test.shape)}")
    k = choose_k(labels, k=k)
    if not temperature > 0:
        raise ValueError(f"temperature must be > 0, got {temperature}")
    count = int(labels.max()) + 1 if num_classes is None else num_classes
    predictions = []
    for block in track(test.split(QUERY_BLOCK), "nearest neighbors", len(test), len):
        queries = normalize(block.float(), dim=1)
        cosine, nearest = _find_nearest(queries, train, k)
        votes = queries.new_zeros(len(queries), count)
        votes.scatter_add_(1, labels[nearest], torch.exp((cosine - 1) / temperature))
        predictions.append(votes.argmax(1))
    return torch.cat(predictions) if predictions else labels.new_zeros(0)


def choose_k(labels: Tensor, data: DatasetDict | None = None, k: int | None = None) -> int:
    """Return the number of neighbors for labels (n,), at most n.

    The default is a tenth of the mean class size, from 1 to 200, because neighbors beyond the class size can only be of
    another class. On the paper's datasets (CIFAR by name, ImageNet by name or class names) it is the paper's 200 if
    classes have at least 200 instances.

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
        is_imagenet = bool(data.class_names) and all(re.fullmatch(r"n\d{8}", name) for name in data.class_names)
        if data.name in PAPER_DATA or is_imagenet:
            return PAPER_K
    return max(1, min(PAPER_K, class_size // 10))


def score_knn(
    train: Tensor,
    labels: Tensor,
    test: Tensor,
    test_labels: Tensor,
    data: DatasetDict | None = None,
    k: int | None = None,
) -> dict[str, float]:
    """Return the accuracy of `knn_classify` on test representations (m, d) with labels (m,), and k.

    Examples:
        >>> h, labels = torch.eye(4), torch.arange(4)
        >>> score_knn(h, labels, h, labels)
        {'knn': 1.0, 'knn_k': 1}
    """
    k = choose_k(labels, data, k)
    predictions = knn_classify(train, labels, test, k=k)
    return {"knn": int((predictions == test_labels.to(predictions.device)).sum()) / len(test_labels), "knn_k": k}


def _find_nearest(queries: Tensor, train: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return cosines and indices (q, k) of the nearest neighbors; ties go to the lowest index."""

    def compute_cosines(queries: Tensor, block: Tensor) -> Tensor:
        # One block at a time: a normalized copy of a large training set would not fit into memory.
        return queries @ normalize(block.float(), dim=1).T

    cosines, indices = [], []
    for i, block in enumerate(train.split(KEY_BLOCK)):
        # k + 1 neighbors show whether the k-th is tied with one that was not selected.
        cosine, index = compute_cosines(queries, block).topk(min(k + 1, len(block)))
        cosines.append(cosine)
        indices.append(index + i * KEY_BLOCK)
    cosine, best = torch.cat(cosines, 1).topk(min(k + 1, len(train)))
    index = torch.cat(indices, 1).gather(1, best)
    if k < len(train):
        ties = (cosine[:, k - 1] == cosine[:, k]).nonzero().squeeze(1)
        for chunk in ties.split(max(1, QUERY_BLOCK * KEY_BLOCK // len(train))):
            all_cosines = torch.cat([compute_cosines(queries[chunk], block) for block in train.split(KEY_BLOCK)], 1)
            index[chunk, :k] = all_cosines.argsort(dim=1, descending=True, stable=True)[:, :k]
            cosine[chunk, :k] = all_cosines.gather(1, index[chunk, :k])
    return cosine[:, :k], index[:, :k]
