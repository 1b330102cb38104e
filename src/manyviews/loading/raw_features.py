"""Raw features: what a baseline without a trained encoder takes of each modality."""

from __future__ import annotations

from typing import TypeAlias, cast

from torch import Tensor, nn

from manyviews.data import BatchColumn, Dataset, Images
from manyviews.loading.encoding import encode_instances, make_eval_loader
from manyviews.models import CUSTOM, EncoderConfig, EncoderSpec, MultiViewEncoder

Instances: TypeAlias = tuple[Dataset, Tensor]
"""A dataset and the indices (n,) of some of its instances."""


def load_raw_features(
    modality: str,
    instances: Instances,
    reference: Instances,
    *,
    size: int = 0,
    summary: str = "",
    num_workers: int = 0,
) -> Tensor:
    """Load the raw features (n, d) of one modality: pixels of center crops of `size`, or `Column.make_raw_features`.

    `reference` are the training instances, whose statistics standardize features.

    Examples:
        >>> import torch
        >>> from manyviews.data import load_dataset
        >>> photos = load_dataset("photos")["test"], torch.arange(5)
        >>> load_raw_features("image", photos, photos, size=8).shape
        torch.Size([5, 192])
    """
    dataset, index = instances
    if isinstance(dataset[modality], Images):  # of any size, perhaps on disk
        encoder = make_flatten_encoder(modality, size)
        h, _ = encode_instances(encoder, make_eval_loader(dataset, encoder, num_workers), index)
        return h[:, 0]
    column, fitted = (cast("BatchColumn", part[modality]).select(selected) for part, selected in (instances, reference))
    return column.make_raw_features(fitted, summary)


def make_flatten_encoder(modality: str, size: int) -> MultiViewEncoder:
    """Make an encoder of one image modality whose representations are the pixels of center crops."""
    encoder = MultiViewEncoder({modality: nn.Flatten()}, encoder_dims={modality: 3 * size * size})
    encoder.config = EncoderConfig({modality: EncoderSpec(Images.kind, CUSTOM, size=size)}, {modality: modality})
    return encoder
