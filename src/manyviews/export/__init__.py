"""Trained encoders outside of training: embeddings in files, neighbors, maps, drawings, weights for other programs."""

from manyviews.export.collection import Collection as Collection
from manyviews.export.collection import get_table_options as get_table_options
from manyviews.export.contact_sheet import draw_contact_sheet as draw_contact_sheet
from manyviews.export.contact_sheet import save_png as save_png
from manyviews.export.extraction import extract_features as extract_features
from manyviews.export.image_map import draw_image_map as draw_image_map
from manyviews.export.neighbors import Query as Query
from manyviews.export.neighbors import find_nearest as find_nearest
from manyviews.export.neighbors import make_query as make_query
from manyviews.export.tsne import compute_tsne as compute_tsne
from manyviews.export.vector_model import VectorModel as VectorModel
from manyviews.export.vector_model import load_vector_model as load_vector_model
from manyviews.export.view_sheet import draw_views as draw_views
from manyviews.export.weights import export_onnx as export_onnx
from manyviews.export.weights import to_timm_model as to_timm_model
from manyviews.export.weights import to_torchvision_state_dict as to_torchvision_state_dict
from manyviews.export.weights import write_timm_folder as write_timm_folder
from manyviews.export.writers import check_embedding_path as check_embedding_path
from manyviews.export.writers import get_ids_path as get_ids_path
from manyviews.export.writers import open_embedding_writer as open_embedding_writer
