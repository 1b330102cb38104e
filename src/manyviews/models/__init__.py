"""Encoders (views -> representations h), projection heads (h -> embeddings z), and files of encoders."""

from manyviews.models.embedder import Embedder, EmbedderOutput, ProjectionHead
from manyviews.models.encoders import ENCODERS, eval_mode, get_encoder, get_representation_dim
from manyviews.models.feature_encoders import SequenceEncoder, Standardize, VectorEncoder
from manyviews.models.inference import ImageEncoder
from manyviews.models.multimodal import (
    LateFusionHead,
    MultimodalConfig,
    MultimodalEmbedder,
    MultimodalEncoder,
    PerModalityHeads,
    select_valid_steps,
)
from manyviews.models.resnet import ResNet, Stem, resnet18, resnet50, resnet_small
from manyviews.models.serialization import (
    EncoderConfig,
    EncoderError,
    is_multimodal_file,
    load_image_encoder,
    load_multimodal_encoder,
    load_weights,
    read_first_dim,
    serialize_module,
)

__all__ = [
    "ENCODERS",
    "Embedder",
    "EmbedderOutput",
    "EncoderConfig",
    "EncoderError",
    "ImageEncoder",
    "LateFusionHead",
    "MultimodalConfig",
    "MultimodalEmbedder",
    "MultimodalEncoder",
    "PerModalityHeads",
    "ProjectionHead",
    "ResNet",
    "SequenceEncoder",
    "Standardize",
    "Stem",
    "VectorEncoder",
    "eval_mode",
    "get_encoder",
    "get_representation_dim",
    "is_multimodal_file",
    "load_image_encoder",
    "load_multimodal_encoder",
    "load_weights",
    "read_first_dim",
    "resnet18",
    "resnet50",
    "resnet_small",
    "select_valid_steps",
    "serialize_module",
]
