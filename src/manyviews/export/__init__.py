"""Encoders at work elsewhere: vectors of images and modalities, nearest neighbours, weights for other programs."""

from manyviews.export.instances import encoded_instances
from manyviews.export.neighbours import Query, nearest, query_of
from manyviews.export.pictures import Pictures
from manyviews.export.vectors import check_vector_file, ids_beside, vector_file
from manyviews.export.weights import onnx_file, torchvision_state

__all__ = [
    "Pictures",
    "Query",
    "check_vector_file",
    "encoded_instances",
    "ids_beside",
    "nearest",
    "onnx_file",
    "query_of",
    "torchvision_state",
    "vector_file",
]
