"""Image or features -> view: batched, with random numbers that depend on a key alone."""

from manyviews.transforms.center_crop import CENTER_CROP_RATIO as CENTER_CROP_RATIO
from manyviews.transforms.center_crop import CenterCrop as CenterCrop
from manyviews.transforms.center_crop import center_crop as center_crop
from manyviews.transforms.center_crop import center_crop_batch as center_crop_batch
from manyviews.transforms.clips import AudioClip as AudioClip
from manyviews.transforms.clips import VideoClip as VideoClip
from manyviews.transforms.clips import load_clips as load_clips
from manyviews.transforms.clips import make_eval_transform as make_eval_transform
from manyviews.transforms.custom import CustomTransform as CustomTransform
from manyviews.transforms.custom import make_custom_transform as make_custom_transform
from manyviews.transforms.custom import set_random_states as set_random_states
from manyviews.transforms.feature_transforms import SequenceTransform as SequenceTransform
from manyviews.transforms.feature_transforms import VectorTransform as VectorTransform
from manyviews.transforms.simclr import MultiCrop as MultiCrop
from manyviews.transforms.simclr import SimCLRTransform as SimCLRTransform
from manyviews.transforms.transform import ClipTransform as ClipTransform
from manyviews.transforms.transform import FeatureTransform as FeatureTransform
from manyviews.transforms.transform import ImageTransform as ImageTransform
from manyviews.transforms.transform import Transform as Transform
