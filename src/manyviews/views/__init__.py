"""Instances -> N views of each: policies, batched image operations, keyed randomness."""

from manyviews.views.batching import ViewBatches, batches, fixed_batch
from manyviews.views.modalities import ModalityBatches
from manyviews.views.plain import plain_views
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
    "plain_views",
    "save_png",
]
