"""Which views make a batch, loaders of such batches, and functions that encode a dataset with a model."""

from manyviews.loading.encoding import EVAL_BATCH_SIZE as EVAL_BATCH_SIZE
from manyviews.loading.encoding import check_augmentable as check_augmentable
from manyviews.loading.encoding import choose_eval_batch_size as choose_eval_batch_size
from manyviews.loading.encoding import choose_loader_batch_size as choose_loader_batch_size
from manyviews.loading.encoding import embed_instances as embed_instances
from manyviews.loading.encoding import encode_instances as encode_instances
from manyviews.loading.encoding import make_eval_loader as make_eval_loader
from manyviews.loading.encoding import set_mean_representation as set_mean_representation
from manyviews.loading.encoding import stream_augmented_features as stream_augmented_features
from manyviews.loading.file_crops import iterate_file_crops as iterate_file_crops
from manyviews.loading.modality_reader import EncodedModality as EncodedModality
from manyviews.loading.multi_view_dataset import MultiViewDataset as MultiViewDataset
from manyviews.loading.raw_features import load_raw_features as load_raw_features
from manyviews.loading.raw_features import make_flatten_encoder as make_flatten_encoder
from manyviews.loading.sampler import EpochBatches as EpochBatches
from manyviews.loading.sampler import count_instances_per_batch as count_instances_per_batch
from manyviews.loading.view_loader import ViewLoader as ViewLoader
from manyviews.loading.view_spec import DEFAULT_VIEWS as DEFAULT_VIEWS
from manyviews.loading.view_spec import ModalityViews as ModalityViews
from manyviews.loading.view_spec import ViewSpec as ViewSpec
