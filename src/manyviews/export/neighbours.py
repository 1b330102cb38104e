"""The images that an encoder finds most like others."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import normalize

from manyviews.data import DatasetError, read_image
from manyviews.data.files import LeftOut
from manyviews.evaluation.knn import check_finite
from manyviews.export.pictures import Pictures, warn
from manyviews.models import ImageEncoder
from manyviews.utils.text import encode_file_name


@dataclass(frozen=True)
class Query:
    """An image to look for, and its id if it is itself one of those that are searched."""

    name: str
    image: Tensor
    own: str | None


def query_of(name: str, pictures: Pictures) -> Query:
    """A file, or the id of one of the pictures.

    Examples:
        >>> query_of("test/3", Pictures.of("digits")).own
        'test/3'

    Raises:
        DatasetError: it is neither, or no image.
    """
    path = Path(name).expanduser()
    if path.is_file():
        own = None
        if pictures.folder is not None:
            # By its place, not by what a link leads to: as the folder is listed.
            place, folder = path.parent.resolve() / path.name, pictures.folder.resolve()
            inside = place.is_relative_to(folder)
            own = encode_file_name(place.relative_to(folder).as_posix()) if inside else None
        return Query(name, read_image(path), own)
    try:
        return Query(name, pictures[name], name)
    except KeyError as error:
        raise DatasetError(f"the query {name} is neither a file nor an image of {pictures.source}") from error


def nearest(
    encoder: ImageEncoder,
    queries: Sequence[Query],
    pictures: Pictures,
    *,
    count: int = 8,
    workers: int = 0,
    left_out: LeftOut = warn,
) -> Mapping[str, list[tuple[str, float]]]:
    """For each query the ids of the pictures nearest to it, and their cosines, the nearest first.

    The query itself is not among them. No more representations are held than those of a batch.

    Examples:
        >>> from manyviews.models import get_encoder
        >>> pictures = Pictures.of("digits")
        >>> encoder = ImageEncoder(get_encoder("resnet-small"), size=8)
        >>> found = nearest(encoder, [query_of("test/3", pictures)], pictures, count=2)
        >>> [len(near) for near in found.values()]
        [2]
    """
    if count < 1:
        raise ValueError(f"count must be >= 1, got {count}")
    wanted = normalize(torch.cat([encoder([query.image]) for query in queries]).float().cpu(), dim=1)
    check_finite("representations of the queries", wanted)
    found: dict[str, list[tuple[str, float]]] = {query.name: [] for query in queries}
    for names, h in pictures.encoded(encoder, workers, left_out):
        cosines = wanted @ normalize(h, dim=1).T
        for query, row in zip(queries, cosines, strict=True):
            # One more than asked for: the query may be among them.
            cosine, place = row.topk(min(count + 1, len(names)))
            new = [(names[p], c) for p, c in zip(place.tolist(), cosine.tolist(), strict=True) if names[p] != query.own]
            found[query.name] = heapq.nlargest(count, found[query.name] + new, key=lambda pair: pair[1])
    return found
