"""Images and modalities -> representations h and embeddings z of a model in evaluation mode."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from manyviews.data import LazyImages
from manyviews.loading.eval_loader import choose_eval_batch_size, iterate_center_crops
from manyviews.loading.modality_loader import ModalityLoader
from manyviews.loading.view_loader import ViewLoader
from manyviews.models import Embedder, MultimodalEmbedder, MultimodalEncoder, eval_mode
from manyviews.transforms import SimCLRTransform
from manyviews.utils import EVAL_EPOCH, track

Images = Tensor | LazyImages
CHUNK_INSTANCES = 256
"""Instances per chunk of modalities."""


def encode_images(
    encoder: nn.Module, images: Images, index: Tensor, size: int, num_workers: int = 0
) -> tuple[Tensor, Tensor]:
    """Encode center crops: representations (n, dim) and the indices (n,) of the images that can be decoded.

    Examples:
        >>> images = torch.zeros(10, 3, 4, 4, dtype=torch.uint8)
        >>> h, index = encode_images(nn.Flatten(), images, torch.arange(6), size=4)
        >>> h.shape, index
        (torch.Size([6, 48]), tensor([0, 1, 2, 3, 4, 5]))
    """
    features, indices = [], []
    with eval_mode(encoder) as reference:
        batches = iterate_center_crops(images, index, size, num_workers)
        for views, batch_index in track(batches, "encoding images", len(index), lambda batch: len(batch[1])):
            features.append(encoder(views.to(reference)).float())
            indices.append(batch_index)
    if not features:
        raise ValueError(f"none of {len(index)} images can be decoded")
    return torch.cat(features), torch.cat(indices)


def embed_views(
    embedder: Embedder,
    images: Images,
    index: Tensor,
    transform: SimCLRTransform,
    views: int,
    seed: int,
    num_workers: int = 0,
) -> tuple[Tensor, Tensor]:
    """Embed views of the instances in `index`: h (M, N, dim) and z (M, N, d). The next image replaces a corrupt one."""
    outputs = []
    with eval_mode(embedder) as reference:
        loader = ViewLoader(images, transform, views, seed, num_workers, reference.device)
        batches = loader(EVAL_EPOCH, list(index.split(max(1, choose_eval_batch_size(transform.size) // views))))
        for batch, _ in track(batches, "embedding views", len(index), lambda batch: len(batch[1])):
            assert isinstance(batch, Tensor)
            outputs.append([part.float() for part in embedder(batch.to(reference))])
    h, z = map(torch.cat, zip(*outputs, strict=True))
    return h, z


def stream_augmented_features(
    encoder: nn.Module, images: Images, size: int, seed: int = 0, num_workers: int = 0
) -> Callable[[int, Sequence[Tensor]], Iterator[tuple[Tensor, Tensor]]]:
    """Return the `augment` of `fit_linear_probe`: representations of new random crops and flips in each epoch.

    Examples:
        >>> images = torch.randint(256, (8, 3, 4, 4), dtype=torch.uint8)
        >>> augment = stream_augmented_features(nn.Flatten(), images, size=4)
        >>> for h, index in augment(0, [torch.tensor([0, 1, 2])]):
        ...     print(tuple(h.shape), index)
        (3, 48) tensor([0, 1, 2])
    """
    transform = SimCLRTransform(size, jitter_strength=0, jitter_prob=0, grayscale_prob=0)

    def augment(epoch: int, batches: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        device = next((weight.device for weight in encoder.parameters()), None)
        for views, index in ViewLoader(images, transform, 1, seed, num_workers, device)(epoch, list(batches)):
            assert isinstance(views, Tensor)
            with eval_mode(encoder) as reference:
                h = encoder(views[:, 0].to(reference)).float()
            yield h, index

    return augment


def embed_multimodal(model: MultimodalEmbedder, loader: ModalityLoader, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return h (M, N, dim), the output of the head, and the mask (M, N) of the instances in `index`."""
    outputs = _apply_in_chunks(model, loader, index, "embedding instances")
    h, z = (torch.cat([part.float() for part in parts]) for parts in zip(*outputs, strict=True))
    return h, z, loader.get_mask(index).to(h.device)


def encode_multimodal(encoder: MultimodalEncoder, loader: ModalityLoader, index: Tensor) -> tuple[Tensor, Tensor]:
    """Return h (M, N, dim) and the mask (M, N) of the instances in `index`."""
    h = torch.cat([part.float() for part in _apply_in_chunks(encoder, loader, index, "encoding instances")])
    return h, loader.get_mask(index).to(h.device)


def _apply_in_chunks(model: nn.Module, loader: ModalityLoader, index: Tensor, label: str) -> list[Any]:
    chunks = index.split(CHUNK_INSTANCES)
    with eval_mode(model) as reference:
        batches = (loader.load_batch(chunk) for chunk in track(chunks, label, len(chunks)))
        return [model([part.to(reference.device) for part in batch]) for batch in batches]


def set_mean_representation(encoder: MultimodalEncoder, loader: ModalityLoader, index: Tensor) -> None:
    """Store the mean representation of the training instances, which late fusion uses for missing modalities."""
    h, mask = encode_multimodal(encoder, loader, index)
    encoder.mean_representation.copy_(h.double().sum(0) / mask.sum(0).clamp_min(1)[:, None])
