"""Image -> view: batched, with random numbers that depend on a key alone."""

from manyviews.transforms.center_crop import center_crop, center_crop_batch, infer_image_size
from manyviews.transforms.simclr import MultiCrop, SimCLRTransform

__all__ = ["MultiCrop", "SimCLRTransform", "center_crop", "center_crop_batch", "infer_image_size"]
