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
TIE_MARGIN = 8
"""Neighbors searched in addition to k, which show whether the k-th is tied with others."""
GROUP_SIZE = 8
"""Columns of which `select_largest` first compares the maximum only."""
MAX_NORMALIZED = 2**26
"""Numbers of a training set that is normalized in memory: 256 MB."""
MIN_NORM = 1e-12
"""Smallest norm that representations are divided by."""


@torch.no_grad()
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
    search, predictions = _NeighborSearch(train), []
    for block in track(test.split(QUERY_BLOCK), "nearest neighbors", len(test), len):
        queries = normalize(block.float(), dim=1)
        cosine, nearest = search.find(queries, k)
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


class _NeighborSearch:
    """Search of the nearest training representations (n, d) by cosine, in blocks.

    The memory of a block is used for all blocks: new memory of this size takes a third of the time of a product.
    """

    def __init__(self, train: Tensor) -> None:
        # Small training sets are normalized once; a normalized copy of a large one would not fit into memory.
        self.is_normalized = train.numel() <= MAX_NORMALIZED
        self.blocks = (normalize(train.float(), dim=1, eps=MIN_NORM) if self.is_normalized else train).split(KEY_BLOCK)
        num_keys = min(KEY_BLOCK, len(train))
        if not self.is_normalized:
            self.norms = [torch.linalg.vector_norm(block.float(), dim=1, keepdim=True) for block in self.blocks]
            self.keys = train.new_empty(num_keys, train.shape[1], dtype=torch.float)
        self.cosines = train.new_empty(QUERY_BLOCK * num_keys, dtype=torch.float)

    def compute_cosines(self, queries: Tensor, i: int) -> Tensor:
        """Return the cosines (q, b) of queries and the i-th block, valid until the next call."""
        block = self.blocks[i]
        keys = block
        if not self.is_normalized:
            keys = torch.div(block.float(), self.norms[i].clamp_min(MIN_NORM), out=self.keys[: len(block)])
        cosines = self.cosines[: len(queries) * len(block)].view(len(queries), len(block))
        return torch.mm(queries, keys.T, out=cosines)

    def find(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return cosines and indices (q, k) of the nearest neighbors; ties go to the lowest index."""
        total, cosines, indices = sum(map(len, self.blocks)), [], []
        for i in range(len(self.blocks)):
            cosine, index = select_largest(self.compute_cosines(queries, i), k + TIE_MARGIN)
            cosines.append(cosine)
            indices.append(index + i * KEY_BLOCK)
        cosine, best = torch.cat(cosines, 1).topk(min(k + TIE_MARGIN, total))
        index = torch.cat(indices, 1).gather(1, best)
        if k < total:
            is_tied = cosine[:, k - 1] == cosine[:, k]
            # All neighbors that are as near as the k-th were selected, unless the last one selected is.
            is_open = (cosine[:, k - 1] == cosine[:, -1]) & (cosine.shape[1] < total)
            tied, unknown = (mask.nonzero().squeeze(1) for mask in (is_tied & ~is_open, is_open))
            cosine[tied], index[tied] = _sort_ties(cosine[tied], index[tied])
            for chunk in unknown.split(max(1, QUERY_BLOCK * KEY_BLOCK // total)):
                rows = [self.compute_cosines(queries[chunk], i).clone() for i in range(len(self.blocks))]
                every = torch.cat(rows, 1)
                index[chunk, :k] = every.argsort(dim=1, descending=True, stable=True)[:, :k]
                cosine[chunk, :k] = every.gather(1, index[chunk, :k])
        return cosine[:, :k], index[:, :k]


def _sort_ties(cosine: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Sort rows by descending cosine, and by index where cosines are equal."""
    order = index.argsort(1)
    order = order.gather(1, cosine.gather(1, order).argsort(dim=1, descending=True, stable=True))
    return cosine.gather(1, order), index.gather(1, order)


def select_largest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` largest values of each row (q, n) and their indices, in any order; all if there are fewer.

    The largest values are in the groups of columns with the largest maxima, so `topk` has to search only these.

    Examples:
        >>> select_largest(torch.tensor([[0.1, 0.4, 0.3]]), 1)
        (tensor([[0.4000]]), tensor([[1]]))
    """
    length = values.shape[1]
    width = length // GROUP_SIZE
    if 2 * count > width:  # groups would not save much
        largest, index = values.topk(min(count, length), sorted=False)
        return largest, index
    maxima = values[:, : GROUP_SIZE * width].unflatten(1, (GROUP_SIZE, width)).amax(1)
    groups = maxima.topk(count, sorted=False).indices
    first_columns = torch.arange(0, GROUP_SIZE * width, width, device=values.device)
    columns = (groups[:, None] + first_columns[:, None]).flatten(1)
    if GROUP_SIZE * width < length:
        rest = torch.arange(GROUP_SIZE * width, length, device=values.device)
        columns = torch.cat([columns, rest.expand(len(values), -1)], 1)
    largest, index = values.gather(1, columns).topk(count, sorted=False)
    return largest, columns.gather(1, index)
