"""Vectors of instances that have several modalities."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from manyviews.data import Dataset, DatasetError
from manyviews.evaluation.knn import check_finite
from manyviews.evaluation.modalities import PIECE, embedded, mean_embedding, represented
from manyviews.export.vectors import Label
from manyviews.models import ModalityEmbedder, ModalityEncoder
from manyviews.views import ModalityBatches

What = Literal["h", "z", "each-modality"]


def encode_instances(
    model: ModalityEncoder | ModalityEmbedder, data: Dataset, what: What = "h"
) -> Iterator[tuple[list[str], Tensor, list[Label]]]:
    """Ids, vectors and labels (if there are any) of all instances, batch by batch.

    An id is SPLIT/ID, or SPLIT/ROW where the data has no ids, split by split. Where the split was chosen here
    (`Dataset.split_rule`), an id is the row of the file, and instances are in the file's order.

    Args:
        model: a `ModalityEmbedder` for z.
        data: whose modalities the model takes.
        what: h: fused representations (B, N dim); z: the mean (B, out) of the unit embeddings that are there; or
            each-modality: representations (B, N, dim). Where an instance lacks it, z and each modality are NaN.
    """
    if not data.split_rule:
        yield from _encode_splits(model, data, what)
        return
    names, vectors, labels = zip(*_encode_splits(model, data, what), strict=True)
    ids, flat = (
        [name.partition("/")[2] for batch in names for name in batch],
        [one for batch in labels for one in batch],
    )
    order = sorted(range(len(ids)), key=lambda place: int(ids[place]))
    yield [ids[place] for place in order], torch.cat(vectors)[order], [flat[place] for place in order if flat]


def _encode_splits(
    model: ModalityEncoder | ModalityEmbedder, data: Dataset, what: What
) -> Iterator[tuple[list[str], Tensor, list[Label]]]:
    encoder = model.encoder if isinstance(model, ModalityEmbedder) else model
    for split, part in data.splits.items():
        rows = ModalityBatches(part, encoder.names)
        for index in torch.arange(len(part)).split(PIECE):
            names = [f"{split}/{part.ids[number] if part.ids else number}" for number in index.tolist()]
            if isinstance(model, ModalityEmbedder) and what == "z":
                _, z, present = embedded(model, rows, index)
                vectors, there = mean_embedding(z, present), present.any(1)
            else:
                h, there = represented(encoder, rows, index)
                vectors = encoder.fused(h, there) if what == "h" else h
            check_finite(f"vectors of {names[0]} and others", vectors)
            if what != "h":
                vectors = vectors.masked_fill(~there[..., None], torch.nan)
            yield names, vectors.cpu(), read_labels(data, split, index)


def read_labels(data: Dataset, split: str, index: Tensor) -> list[Label]:
    """The names of the classes of some instances, or their regression targets; nothing without labels."""
    labels = data[split].labels
    if labels is None:
        return []
    chosen = labels[index].tolist()
    return chosen if labels.is_floating_point() else [data.classes[label] for label in chosen]


def get_label_type(data: Dataset) -> type[str] | type[float]:
    """`float` for regression targets, `str` for names of classes.

    Raises:
        DatasetError: a split has no labels.
    """
    for split, part in data.splits.items():
        if part.labels is None:
            raise DatasetError(f"{data.name} has no labels in {split}: leave --labels out")
    return str if data["train"].classes is not None else float
