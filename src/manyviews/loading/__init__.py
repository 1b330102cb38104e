"""Loaders of batches of views, and functions that encode a dataset with a model."""

from manyviews.loading.encoding import (
    CHUNK_INSTANCES,
    embed_multimodal,
    embed_views,
    encode_images,
    encode_multimodal,
    set_mean_representation,
    stream_augmented_features,
)
from manyviews.loading.eval_loader import choose_eval_batch_size, iterate_center_crops, iterate_file_crops
from manyviews.loading.modality_loader import ModalityLoader
from manyviews.loading.sampler import count_instances_per_batch, list_epoch_batches
from manyviews.loading.view_loader import ViewLoader

__all__ = [
    "CHUNK_INSTANCES",
    "ModalityLoader",
    "ViewLoader",
    "choose_eval_batch_size",
    "count_instances_per_batch",
    "embed_multimodal",
    "embed_views",
    "encode_images",
    "encode_multimodal",
    "iterate_center_crops",
    "iterate_file_crops",
    "list_epoch_batches",
    "set_mean_representation",
    "stream_augmented_features",
]
