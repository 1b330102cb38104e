"""Datasets: one module per file format, and the classes that hold instances."""

from manyviews.data.dataset import (
    IMAGE_MODALITY,
    Dataset,
    DatasetDict,
    DatasetError,
    DatasetWarning,
    check_split,
    get_canonical_split,
    select_rows,
)
from manyviews.data.image_files import IMAGE_EXTENSIONS, CorruptImageError, LazyImages, pil_to_tensor, read_image
from manyviews.data.image_folder import SkipCallback, walk_images
from manyviews.data.inspection import find_problems, measure_images
from manyviews.data.load import as_path, get_data_home, is_image_folder, load_dataset
from manyviews.data.safe_pickle import check_tensor_pickle
from manyviews.data.sentiment_features import is_merbench

__all__ = [
    "IMAGE_EXTENSIONS",
    "IMAGE_MODALITY",
    "CorruptImageError",
    "Dataset",
    "DatasetDict",
    "DatasetError",
    "DatasetWarning",
    "LazyImages",
    "SkipCallback",
    "as_path",
    "check_split",
    "check_tensor_pickle",
    "find_problems",
    "get_canonical_split",
    "get_data_home",
    "is_image_folder",
    "is_merbench",
    "load_dataset",
    "measure_images",
    "pil_to_tensor",
    "read_image",
    "select_rows",
    "walk_images",
]
