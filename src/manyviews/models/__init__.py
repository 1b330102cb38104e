"""Views -> representations h -> embeddings z: ResNets, encoders of modalities, projection heads."""

from manyviews.models.embedder import Embedded, Embedder, ProjectionHead
from manyviews.models.encoders import ENCODERS, get_encoder, representation_dim
from manyviews.models.features import SequenceEncoder, Standardise, VectorEncoder
from manyviews.models.modalities import FusedHead, ModalityEmbedder, ModalityEncoder, ModalityHeads
from manyviews.models.resnet import ResNet, resnet18, resnet50, resnet_small
from manyviews.models.saved import EncoderError, ImageEncoder

__all__ = [
    "ENCODERS",
    "Embedded",
    "Embedder",
    "EncoderError",
    "FusedHead",
    "ImageEncoder",
    "ModalityEmbedder",
    "ModalityEncoder",
    "ModalityHeads",
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
