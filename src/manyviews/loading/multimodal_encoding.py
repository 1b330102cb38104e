"""Modalities -> representations and embeddings of a model in evaluation mode."""

from __future__ import annotations

import torch
from torch import Tensor

from manyviews.loading.encoding import eval_mode
from manyviews.loading.modality_loader import ModalityLoader
from manyviews.models import MultimodalEmbedder, MultimodalEncoder
from manyviews.utils import track

CHUNK_INSTANCES = 256
"""Instances per chunk."""


def embed_multimodal(model: MultimodalEmbedder, loader: ModalityLoader, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return h (M, N, dim), the output of the head, and the mask (M, N) of the instances in `index`."""
    h, z = [], []
    with eval_mode(model) as reference:
        for chunk in track(index.split(CHUNK_INSTANCES), "embedding instances", -(-len(index) // CHUNK_INSTANCES)):
            output = model([part.to(reference.device) for part in loader.load_batch(chunk)])
            h.append(output.h.float())
            z.append(output.z.float())
    return torch.cat(h), torch.cat(z), loader.get_mask(index).to(h[0].device)


def encode_multimodal(encoder: MultimodalEncoder, loader: ModalityLoader, index: Tensor) -> tuple[Tensor, Tensor]:
    """Return h (M, N, dim) and the mask (M, N) of the instances in `index`."""
    with eval_mode(encoder) as reference:
        chunks = track(index.split(CHUNK_INSTANCES), "encoding instances", -(-len(index) // CHUNK_INSTANCES))
        batches = ([part.to(reference.device) for part in loader.load_batch(chunk)] for chunk in chunks)
        h = torch.cat([encoder(batch).float() for batch in batches])
    return h, loader.get_mask(index).to(h.device)


def set_mean_representation(encoder: MultimodalEncoder, loader: ModalityLoader, index: Tensor) -> None:
    """Store the mean representation of the training instances, which late fusion uses for missing modalities."""
    h, mask = encode_multimodal(encoder, loader, index)
    encoder.mean_representation.copy_(h.double().sum(0) / mask.sum(0).clamp_min(1)[:, None])
