"""Nearest-neighbor search by cosine similarity: of representations or, between modalities, of embeddings."""

import heapq
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import normalize

from manyviews.data import (
    AUDIO_EXTENSIONS,
    VIDEO_EXTENSIONS,
    Audio,
    Dataset,
    DatasetError,
    Media,
    SkipCallback,
    Video,
    read_image,
)
from manyviews.export.collection import Collection, warn_skipped
from manyviews.export.vector_model import VectorModel
from manyviews.loading import make_eval_loader
from manyviews.models import Encoder
from manyviews.utils import encode_file_name

QueryContent: TypeAlias = tuple[Tensor | str, Any, str | None]
"""What is shown of a query, its value, and its id."""


@dataclass(frozen=True)
class Query:
    """What is searched for: an instance of the collection, a file of an image or a recording, or a text."""

    name: str
    shown: Tensor | str
    """The image (C, H, W), the spectrogram (T, d) or the text."""
    values: Mapping[str, Sequence[Any]] | None = None
    """Values of one instance by modality; None for an instance of a dataset."""
    id: str | None = None
    """Id of an instance of the collection, which is not its own neighbor."""
    instance: tuple[Dataset, int] | None = None
    modality: str | None = None
    """The modality of the instance that is searched with; None for all."""

    @property
    def modalities(self) -> tuple[str, ...]:
        """The modalities that are searched with; empty for all of an instance."""
        return tuple(self.values or ()) if self.modality is None else (self.modality,)


def make_query(name: str, collection: Collection, encoder: Encoder, modality: str | None = None) -> Query:
    """Make a query from a file, from the id of an instance or, if the encoder has a modality of texts, a text.

    A file is an image or, if the encoder has such a modality, audio or a video.

    `modality` is that of the file or the text, or the one of the instance that is searched with. Default: the first of
    images or of texts, or all of the instance.

    Examples:
        >>> from manyviews.models import EncoderConfig, EncoderSpec, MultiViewEncoder
        >>> config = EncoderConfig({"image": EncoderSpec("image", "resnet-small", size=8)}, {"image": "image"})
        >>> encoder = Encoder(MultiViewEncoder.from_config(config))
        >>> make_query("test/3", Collection.open("digits"), encoder).id
        'test/3'

    Raises:
        DatasetError: the name is none of them.
    """
    if modality is not None and modality not in encoder.modalities:
        raise DatasetError(f"there is no modality {modality!r}, only {', '.join(encoder.modalities)}")
    if collection.data is not None:
        with suppress(KeyError):
            return Query(name, collection.show(name), None, name, collection.find(name), modality)
    for kind, read in QUERY_READERS.items():
        names = [each for each in encoder.config.list_modalities(kind) if modality in (None, each)]
        if names and (content := read(name, collection)) is not None:
            shown, value, query_id = content
            return Query(name, shown, {names[0]: [value]}, query_id)
    modalities = ", ".join(encoder.modalities)
    raise DatasetError(f"query {name} is neither a file nor an instance of {collection.source} with {modalities}")


def _read_image(name: str, collection: Collection) -> QueryContent | None:
    """Read an image file, or a file of the collection, with its id if it is one of the collection."""
    path = Path(name).expanduser()
    if _is_file(path):
        query_id = None
        if collection.root is not None:
            # Keep a link's own path (not its target): ids are paths as the folder lists them.
            location, root = path.parent.resolve() / path.name, collection.root.resolve()
            if location.is_relative_to(root):
                query_id = encode_file_name(location.relative_to(root).as_posix())
        image = read_image(path)
        return image, image, query_id
    if collection.root is not None:
        with suppress(KeyError):
            shown = collection.show(name)
            return shown, shown, name
    return None


def _read_recording(column: type[Media], extensions: set[str], name: str) -> QueryContent | None:
    """Read a file of audio or video, which is recognized by its extension."""
    path = Path(name).expanduser()
    if path.suffix.lower() not in extensions or not _is_file(path):
        return None
    return column.from_values([path]).show(0), path, None


QUERY_READERS: dict[str, Callable[[str, Collection], QueryContent | None]] = {
    "video": lambda name, _: _read_recording(Video, VIDEO_EXTENSIONS, name),
    "audio": lambda name, _: _read_recording(Audio, AUDIO_EXTENSIONS | VIDEO_EXTENSIONS, name),
    "image": _read_image,
    "text": lambda name, _: (name, name, None),
}
"""Readers of queries by kind, in the order in which they are tried; None if the query is not of the kind."""


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a text that cannot be a path
        return False


def encode_query(model: VectorModel, query: Query) -> Tensor:
    """Return the vector (dim,) of a query.

    Raises:
        DatasetError: it has no modality that the model encodes.
    """
    # A query has its own modalities, whatever modalities the neighbors are compared by.
    if query.values is not None:
        batch = model.encoder.make_batch(query.values)
    else:
        assert query.instance is not None
        split, i = query.instance
        encoder = model.encoder.encoder
        reference = next(encoder.parameters(), torch.zeros(()))
        batch = make_eval_loader(split, encoder, device=reference.device).load(torch.tensor([i])).to(reference)
    names = query.modalities or model.encoder.modalities
    vectors, mask = VectorModel(model.model, model.kind, names)(batch, f"query {query.name}")
    if not mask.all():
        raise DatasetError(f"query {query.name} has none of the modalities {', '.join(names)}")
    return vectors[0]


def choose_target_modalities(model: VectorModel, query: Query) -> tuple[str, ...]:
    """Return the modalities that the neighbors of a query are compared by.

    These are the modalities of the model's vectors, if they were chosen, or all. But a text is not compared with texts
    if there are other modalities: its nearest instances would be those that have nothing but texts.
    """
    names = model.encoder.modalities
    texts = model.encoder.config.list_modalities("text")
    if model.modalities or model.kind != "z" or not query.modalities or not set(query.modalities) <= set(texts):
        return model.modalities or names
    others = tuple(name for name in names if name not in texts)
    return others or tuple(name for name in names if name not in query.modalities) or names


def find_nearest(
    model: VectorModel,
    queries: Sequence[Query],
    collection: Collection,
    *,
    k: int = 8,
    num_workers: int = 0,
    on_skip: SkipCallback = warn_skipped,
) -> Mapping[str, list[tuple[str, float]]]:
    """Find the `k` instances nearest to each query: their ids and cosines, nearest first.

    An instance is not its own neighbor, unless it is searched with one modality and compared by another. Only one batch
    of vectors is in memory.

    Examples:
        >>> from manyviews.models import EncoderConfig, EncoderSpec, MultiViewEncoder
        >>> config = EncoderConfig({"image": EncoderSpec("image", "resnet-small", size=8)}, {"image": "image"})
        >>> encoder, digits = Encoder(MultiViewEncoder.from_config(config)), Collection.open("digits")
        >>> query = make_query("test/3", digits, encoder)
        >>> len(find_nearest(VectorModel(encoder, "h"), [query], digits, k=2)["test/3"])
        2
    """
    if k < 1:
        raise ValueError(f"the number of neighbors (k) must be >= 1, got {k}")
    neighbors: dict[str, list[tuple[str, float]]] = {query.name: [] for query in queries}
    groups: dict[tuple[str, ...], list[Query]] = {}
    for query in queries:
        groups.setdefault(choose_target_modalities(model, query), []).append(query)
    for targets, members in groups.items():
        query_vectors = normalize(torch.stack([encode_query(model, query) for query in members]), dim=1)
        own_ids = [query.id if set(query.modalities or targets) & set(targets) else None for query in members]
        target_model = VectorModel(model.model, model.kind, targets)
        for (ids, vectors, _), mask in collection.encode(target_model, num_workers, on_skip):
            names = [name for name, exists in zip(ids, mask.tolist(), strict=True) if exists]
            cosines = query_vectors @ normalize(vectors[mask], dim=1).T
            for query, own_id, row in zip(members, own_ids, cosines, strict=True):
                values, index = row.topk(min(k + 1, len(names)))  # k + 1: the query itself may be one of them
                new = [
                    (names[i], c) for i, c in zip(index.tolist(), values.tolist(), strict=True) if names[i] != own_id
                ]
                neighbors[query.name] = heapq.nlargest(k, neighbors[query.name] + new, key=lambda pair: pair[1])
    return neighbors
