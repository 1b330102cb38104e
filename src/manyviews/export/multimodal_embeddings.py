"""Embeddings of multimodal instances."""

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from manyviews.data import DatasetDict, DatasetError
from manyviews.evaluation import average_embeddings
from manyviews.export.writers import Batch, Label
from manyviews.loading import CHUNK_INSTANCES, ModalityLoader, embed_multimodal, encode_multimodal
from manyviews.models import MultimodalEmbedder, MultimodalEncoder
from manyviews.utils import check_finite

VectorKind = Literal["h", "z", "each-modality"]


def iterate_embeddings(
    model: MultimodalEncoder | MultimodalEmbedder, data: DatasetDict, kind: VectorKind = "h"
) -> Iterator[Batch]:
    """Yield ids, vectors and labels (if any) of all instances by batch.

    An id is SPLIT/ID, or SPLIT/INDEX if the data has no ids. If the library split the data
    (`DatasetDict.split_rule`), an id is the row in the file, and instances are in the file's order.

    Args:
        model: a `MultimodalEmbedder` for z.
        data: a dataset with the modalities of the model.
        kind: h, fused representations (B, N dim); z, the mean (B, out) of the available unit embeddings; or
            each-modality, representations (B, N, dim). Missing embeddings and modalities are NaN.
    """
    if not data.split_rule:
        yield from _encode_splits(model, data, kind)
        return
    names, vectors, label_batches = zip(*_encode_splits(model, data, kind), strict=True)
    ids = [name.partition("/")[2] for batch in names for name in batch]
    labels = [label for batch in label_batches for label in batch]
    order = sorted(range(len(ids)), key=lambda i: int(ids[i]))
    yield [ids[i] for i in order], torch.cat(vectors)[order], [labels[i] for i in order if labels]


def _encode_splits(
    model: MultimodalEncoder | MultimodalEmbedder, data: DatasetDict, kind: VectorKind
) -> Iterator[Batch]:
    encoder = model.encoder if isinstance(model, MultimodalEmbedder) else model
    for name, split in data.splits.items():
        loader = ModalityLoader(split, encoder.names)
        for index in torch.arange(len(split)).split(CHUNK_INSTANCES):
            ids = [f"{name}/{split.ids[i] if split.ids else i}" for i in index.tolist()]
            if isinstance(model, MultimodalEmbedder) and kind == "z":
                _, z, view_mask = embed_multimodal(model, loader, index)
                vectors, mask = average_embeddings(z, view_mask), view_mask.any(1)
            else:
                h, mask = encode_multimodal(encoder, loader, index)
                vectors = encoder.fuse(h, mask) if kind == "h" else h
            check_finite(f"vectors of {ids[0]} and others", vectors)
            if kind != "h":
                vectors = vectors.masked_fill(~mask[..., None], torch.nan)
            yield ids, vectors.cpu(), read_labels(data, name, index)


def read_labels(data: DatasetDict, split: str, index: Tensor) -> list[Label]:
    """Return class names or regression targets of instances; empty without labels."""
    labels = data[split].labels
    if labels is None:
        return []
    values = labels[index].tolist()
    return values if labels.is_floating_point() else [data.class_names[label] for label in values]


def get_label_type(data: DatasetDict) -> type[str] | type[float]:
    """Return `float` for regression targets, `str` for class names.

    Raises:
        DatasetError: a split has no labels.
    """
    for name, split in data.splits.items():
        if split.labels is None:
            raise DatasetError(f"{data.name} has no labels in {name}: omit --labels")
    return str if data["train"].class_labels is not None else float
