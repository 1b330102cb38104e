"""Instances -> N views of each: policies, batched image operations, keyed randomness."""

from manyviews.views.batching import ViewBatches, batches, fixed_batch
from manyviews.views.modalities import ModalityBatches
from manyviews.views.plain import natural_size, plain_batches, plain_files, plain_views
from manyviews.views.policy import MultiCrop, SimCLRPolicy
from manyviews.views.sheet import contact_sheet, save_png

__all__ = [
    "ModalityBatches",
    "MultiCrop",
    "SimCLRPolicy",
    "ViewBatches",
    "batches",
    "contact_sheet",
    "fixed_batch",
    "natural_size",
    "plain_batches",
    "plain_files",
    "plain_views",
    "save_png",
]
