"""Trained encoders outside of training: embeddings in files, nearest neighbors, weights for other programs."""

from manyviews.export.contact_sheet import draw_contact_sheet, save_png
from manyviews.export.image_collection import ImageCollection
from manyviews.export.multimodal_embeddings import get_label_type, iterate_embeddings
from manyviews.export.neighbors import Query, find_nearest, make_query
from manyviews.export.weights import export_onnx, to_torchvision_state_dict
from manyviews.export.writers import check_embedding_path, get_ids_path, open_embedding_writer

__all__ = [
    "ImageCollection",
    "Query",
    "check_embedding_path",
    "draw_contact_sheet",
    "export_onnx",
    "find_nearest",
    "get_ids_path",
    "get_label_type",
    "iterate_embeddings",
    "make_query",
    "open_embedding_writer",
    "save_png",
    "to_torchvision_state_dict",
]
