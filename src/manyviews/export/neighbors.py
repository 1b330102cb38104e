"""Nearest-neighbor search over images, by cosine similarity of representations."""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import normalize

from manyviews.data import DatasetError, SkipCallback, read_image
from manyviews.export.image_collection import ImageCollection, warn_skipped
from manyviews.models import ImageEncoder
from manyviews.utils import check_finite, encode_file_name


@dataclass(frozen=True)
class Query:
    """A query image, and its id if it is part of the searched collection."""

    name: str
    image: Tensor
    id: str | None


def make_query(name: str, images: ImageCollection) -> Query:
    """Make a query from a file or from the id of an image of the collection.

    Examples:
        >>> make_query("test/3", ImageCollection.open("digits")).id
        'test/3'

    Raises:
        DatasetError: the name is neither, or not an image.
    """
    path = Path(name).expanduser()
    if path.is_file():
        query_id = None
        if images.root is not None:
            # Keep a link's own path (not its target): ids are paths as the folder lists them.
            location, root = path.parent.resolve() / path.name, images.root.resolve()
            if location.is_relative_to(root):
                query_id = encode_file_name(location.relative_to(root).as_posix())
        return Query(name, read_image(path), query_id)
    try:
        return Query(name, images[name], name)
    except KeyError as error:
        raise DatasetError(f"query {name} is neither a file nor an image of {images.source}") from error


def find_nearest(
    encoder: ImageEncoder,
    queries: Sequence[Query],
    images: ImageCollection,
    *,
    k: int = 8,
    num_workers: int = 0,
    on_skip: SkipCallback = warn_skipped,
) -> Mapping[str, list[tuple[str, float]]]:
    """Find the `k` images nearest to each query: their ids and cosines, nearest first.

    A query is never its own neighbor. Only one batch of representations is in memory.

    Examples:
        >>> from manyviews.models import get_encoder
        >>> images = ImageCollection.open("digits")
        >>> encoder = ImageEncoder(get_encoder("resnet-small"), size=8)
        >>> neighbors = find_nearest(encoder, [make_query("test/3", images)], images, k=2)
        >>> len(neighbors["test/3"])
        2
    """
    if k < 1:
        raise ValueError(f"the number of neighbors (k) must be >= 1, got {k}")
    query_h = normalize(torch.cat([encoder([query.image]) for query in queries]).float().cpu(), dim=1)
    check_finite("representations of the queries", query_h)
    neighbors: dict[str, list[tuple[str, float]]] = {query.name: [] for query in queries}
    for names, h, _ in images.encode(encoder, num_workers, on_skip):
        cosines = query_h @ normalize(h, dim=1).T
        for query, row in zip(queries, cosines, strict=True):
            values, index = row.topk(min(k + 1, len(names)))  # k + 1: the query itself may be one of them
            new = [(names[i], c) for i, c in zip(index.tolist(), values.tolist(), strict=True) if names[i] != query.id]
            neighbors[query.name] = heapq.nlargest(k, neighbors[query.name] + new, key=lambda pair: pair[1])
    return neighbors
