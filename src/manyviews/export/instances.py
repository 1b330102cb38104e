"""Vectors of instances that have several modalities."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from manyviews.data import Dataset
from manyviews.evaluation.knn import check_finite
from manyviews.evaluation.modalities import PIECE, represented
from manyviews.models import ModalityEncoder
from manyviews.views import ModalityBatches


def encoded_instances(encoder: ModalityEncoder, data: Dataset) -> Iterator[tuple[list[str], Tensor]]:
    """Ids and fused representations (B, N dim) of all splits, batch by batch; an id is SPLIT/ID or SPLIT/NUMBER."""
    for split, part in data.splits.items():
        rows = ModalityBatches(part, encoder.names)
        for index in torch.arange(len(part)).split(PIECE):
            names = [f"{split}/{part.ids[number] if part.ids else number}" for number in index.tolist()]
            vectors = encoder.fused(*represented(encoder, rows, index)).cpu()
            check_finite(f"representations of {names[0]} and others", vectors)
            yield names, vectors
