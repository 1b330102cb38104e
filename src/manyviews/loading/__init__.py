"""Loaders of batches of views, and functions that encode a dataset with a model."""

from manyviews.loading.encoding import embed_views as embed_views
from manyviews.loading.encoding import encode_images as encode_images
from manyviews.loading.encoding import eval_mode as eval_mode
from manyviews.loading.encoding import stream_augmented_features as stream_augmented_features
from manyviews.loading.eval_loader import choose_eval_batch_size as choose_eval_batch_size
from manyviews.loading.eval_loader import iterate_file_crops as iterate_file_crops
from manyviews.loading.modality_loader import ModalityLoader as ModalityLoader
from manyviews.loading.multimodal_encoding import CHUNK_INSTANCES as CHUNK_INSTANCES
from manyviews.loading.multimodal_encoding import embed_multimodal as embed_multimodal
from manyviews.loading.multimodal_encoding import encode_multimodal as encode_multimodal
from manyviews.loading.multimodal_encoding import set_mean_representation as set_mean_representation
from manyviews.loading.sampler import count_instances_per_batch as count_instances_per_batch
from manyviews.loading.sampler import list_epoch_batches as list_epoch_batches
from manyviews.loading.view_loader import ViewLoader as ViewLoader
