"""Encoders at work elsewhere: vectors of images and modalities, nearest neighbours, weights for other programs."""

from manyviews.export.neighbours import Query, nearest, query_of
from manyviews.export.pictures import Pictures
from manyviews.export.vectors import vector_file
from manyviews.export.weights import onnx_file

__all__ = [
    "Pictures",
    "Query",
    "nearest",
    "onnx_file",
    "query_of",
    "vector_file",
]
