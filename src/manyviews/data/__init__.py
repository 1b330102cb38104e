"""Datasets: one module per file format, and the classes that hold instances."""

from manyviews.data.dataset import IMAGE_MODALITY as IMAGE_MODALITY
from manyviews.data.dataset import Dataset as Dataset
from manyviews.data.dataset import DatasetDict as DatasetDict
from manyviews.data.dataset import DatasetError as DatasetError
from manyviews.data.dataset import DatasetWarning as DatasetWarning
from manyviews.data.dataset import check_split as check_split
from manyviews.data.dataset import get_canonical_split as get_canonical_split
from manyviews.data.dataset import select_rows as select_rows
from manyviews.data.image_files import IMAGE_EXTENSIONS as IMAGE_EXTENSIONS
from manyviews.data.image_files import CorruptImageError as CorruptImageError
from manyviews.data.image_files import LazyImages as LazyImages
from manyviews.data.image_files import pil_to_tensor as pil_to_tensor
from manyviews.data.image_files import read_image as read_image
from manyviews.data.image_folder import SkipCallback as SkipCallback
from manyviews.data.image_folder import walk_images as walk_images
from manyviews.data.inspection import find_problems as find_problems
from manyviews.data.inspection import measure_images as measure_images
from manyviews.data.load import as_path as as_path
from manyviews.data.load import get_data_home as get_data_home
from manyviews.data.load import is_image_folder as is_image_folder
from manyviews.data.load import load_dataset as load_dataset
from manyviews.data.safe_pickle import check_tensor_pickle as check_tensor_pickle
from manyviews.data.sentiment_features import is_merbench as is_merbench
