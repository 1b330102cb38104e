"""Instances: images or features, labels if any; where they come from and how they are checked."""

from manyviews.data.dataset import Dataset, DatasetError, DatasetWarning, Split
from manyviews.data.doubts import suspicious
from manyviews.data.files import BadImageError, ImageFiles, pixels, read_image
from manyviews.data.load import data_home, load_dataset, path_of

__all__ = [
    "BadImageError",
    "Dataset",
    "DatasetError",
    "DatasetWarning",
    "ImageFiles",
    "Split",
    "data_home",
    "load_dataset",
    "path_of",
    "pixels",
    "read_image",
    "suspicious",
]
