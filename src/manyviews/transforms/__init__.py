"""Image or features -> view: batched, with random numbers that depend on a key alone."""

from manyviews.transforms.base import FeatureTransform as FeatureTransform
from manyviews.transforms.base import ImageTransform as ImageTransform
from manyviews.transforms.base import Transform as Transform
from manyviews.transforms.center_crop import CenterCrop as CenterCrop
from manyviews.transforms.center_crop import center_crop as center_crop
from manyviews.transforms.center_crop import center_crop_batch as center_crop_batch
from manyviews.transforms.center_crop import infer_image_size as infer_image_size
from manyviews.transforms.feature_transforms import SequenceTransform as SequenceTransform
from manyviews.transforms.feature_transforms import VectorTransform as VectorTransform
from manyviews.transforms.simclr import MultiCrop as MultiCrop
from manyviews.transforms.simclr import SimCLRTransform as SimCLRTransform
