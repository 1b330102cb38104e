"""Views -> representations h -> embeddings z: ResNets and projection heads."""

from manyviews.models.embedder import Embedded, Embedder, ProjectionHead
from manyviews.models.encoders import ENCODERS, get_encoder, representation_dim
from manyviews.models.modalities import ModalityEmbedder, SequenceEncoder, Standardise, VectorEncoder
from manyviews.models.resnet import ResNet, resnet18, resnet50, resnet_small
from manyviews.models.saved import EncoderError, ImageEncoder

__all__ = [
    "ENCODERS",
    "Embedded",
    "Embedder",
    "EncoderError",
    "ImageEncoder",
    "ModalityEmbedder",
    "ProjectionHead",
    "ResNet",
    "SequenceEncoder",
    "Standardise",
    "VectorEncoder",
    "get_encoder",
    "representation_dim",
    "resnet18",
    "resnet50",
    "resnet_small",
]
