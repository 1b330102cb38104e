"""Datasets -> representations h and embeddings z of a model in evaluation mode."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from manyviews.data import Audio, Column, Dataset, DatasetError, Images, Video
from manyviews.loading.view_loader import ViewLoader
from manyviews.loading.view_spec import ModalityViews, ViewSpec
from manyviews.models import EncoderConfig, MultiViewEncoder, MultiViewModel, ViewBatch, eval_mode
from manyviews.transforms import SimCLRTransform, make_eval_transform
from manyviews.utils import EVAL_EPOCH, track

EVAL_BATCH_SIZE = 256
"""Instances per batch, or images of up to 224 x 224 pixels."""
AUDIO_IMAGES = 8
"""Images that take about as much memory as a view of audio."""
MAX_MEAN_INSTANCES = 10_000
"""Instances whose mean representation stands for missing modalities."""


def choose_eval_batch_size(size: int) -> int:
    """Return the number of images per batch: fewer above 224 x 224, so that a batch takes no more memory."""
    return max(1, min(EVAL_BATCH_SIZE, EVAL_BATCH_SIZE * 224**2 // max(1, size) ** 2))


def choose_loader_batch_size(loader: ViewLoader) -> int:
    """Return the number of instances per batch: fewer if they have several images, recordings or frames."""
    items = loader.spec.items
    count = sum(item.count * _count_images(loader.dataset[item.modality]) for item in items)
    return max(1, choose_eval_batch_size(max(item.size for item in items)) // max(1, count))


def _count_images(column: Column) -> int:
    """Return how many images take about as much memory as a view; 0 for features and texts."""
    if isinstance(column, Audio):
        return AUDIO_IMAGES
    return column.num_frames if isinstance(column, Video) else int(isinstance(column, Images))


def make_eval_loader(
    dataset: Dataset,
    encoder: MultiViewEncoder | EncoderConfig,
    num_workers: int = 0,
    device: torch.device | None = None,
    *,
    keep_workers: bool = False,
) -> ViewLoader:
    """Make a loader of one view of each modality of an encoder, without augmentation: the center crop of images.

    Raises:
        DatasetError: the dataset lacks a modality, or has one of another kind or number of features.

    Examples:
        >>> from manyviews.data import load_dataset
        >>> from manyviews.models import EncoderSpec
        >>> config = EncoderConfig({"image": EncoderSpec("image", "resnet-small", size=24)}, {"image": "image"})
        >>> loader = make_eval_loader(load_dataset("photos")["test"], config)
        >>> loader.load(torch.arange(6)).groups[0].values.shape
        torch.Size([6, 3, 24, 24])
    """
    config = encoder if isinstance(encoder, EncoderConfig) else encoder.config
    if config is None:
        raise ValueError("the encoder has no config: build it with MultiViewEncoder.from_config")
    items = []
    for name, key in config.modalities.items():
        spec = config.encoders[key]
        spec.check_column(name, dataset[name])
        items.append(ModalityViews(name, 1, spec.size, key))
    transforms = [make_eval_transform(dataset[item.modality].kind, item.size) for item in items]
    views, dataset = ViewSpec(tuple(items)), config.prepare_dataset(dataset)
    return ViewLoader(dataset, views, transforms, num_workers=num_workers, device=device, keep_workers=keep_workers)


def embed_instances(model: MultiViewModel, loader: ViewLoader, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return h (M, N, dim), the output of the head, and the mask (M, N) of the instances in `index`."""
    parts = []
    with eval_mode(model) as reference:
        for batch in _iterate(loader, index, "embedding instances"):
            h, z = model(batch.to(reference))
            parts.append((h.float(), z.float(), _get_mask(batch, h)))
    h, z, mask = map(torch.cat, zip(*parts, strict=True))
    return h, z, mask


def encode_instances(encoder: MultiViewEncoder, loader: ViewLoader, index: Tensor) -> tuple[Tensor, Tensor]:
    """Return h (M, N, dim) and the mask (M, N) of the instances in `index`.

    Examples:
        >>> from manyviews.data import load_dataset
        >>> from manyviews.models import EncoderConfig, EncoderSpec
        >>> photos = load_dataset("photos")["test"]
        >>> config = EncoderConfig({"image": EncoderSpec("image", "resnet-small", size=32)}, {"image": "image"})
        >>> encoder = MultiViewEncoder.from_config(config)
        >>> h, mask = encode_instances(encoder, make_eval_loader(photos, encoder), torch.arange(6))
        >>> h.shape, mask.shape
        (torch.Size([6, 1, 192]), torch.Size([6, 1]))
    """
    parts = []
    with eval_mode(encoder) as reference:
        for batch in _iterate(loader, index, "encoding instances"):
            h = encoder(batch.to(reference)).float()
            parts.append((h, _get_mask(batch, h)))
    h, mask = map(torch.cat, zip(*parts, strict=True))
    return h, mask


def _iterate(loader: ViewLoader, index: Tensor, label: str) -> Iterator[ViewBatch]:
    batches = index.split(choose_loader_batch_size(loader))
    return track(loader(EVAL_EPOCH, batches), label, len(index), lambda batch: batch.num_instances)


def _get_mask(batch: ViewBatch, h: Tensor) -> Tensor:
    return torch.ones(h.shape[:2], dtype=torch.bool, device=h.device) if batch.mask is None else batch.mask


def set_mean_representation(encoder: MultiViewEncoder, loader: ViewLoader, index: Tensor) -> None:
    """Store the mean representation of training instances, which late fusion uses for missing modalities."""
    if len(encoder.modalities) > 1:
        encoder.fit_mean_representation(*encode_instances(encoder, loader, index[:MAX_MEAN_INSTANCES]))


def check_augmentable(dataset: Dataset, modalities: Sequence[str]) -> None:
    """Raise a DatasetError unless `stream_augmented_features` can make new views: of one modality, of images."""
    if len(modalities) > 1 or not isinstance(dataset[modalities[0]], Images):
        raise DatasetError(f"only images alone can be augmented, got {', '.join(modalities)}")


def stream_augmented_features(
    encoder: MultiViewEncoder, dataset: Dataset, seed: int = 0, num_workers: int = 0
) -> Callable[[int, Sequence[Tensor]], Iterator[tuple[Tensor, Tensor]]]:
    """Return the `augment` of `fit_linear_probe`: representations of new random crops and flips in each epoch.

    The encoder must have one modality, of images.
    """
    check_augmentable(dataset, encoder.modalities)
    (item,) = make_eval_loader(dataset, encoder).spec.items
    transform = SimCLRTransform(item.size, jitter_strength=0, jitter_prob=0, grayscale_prob=0)
    device = next((weight.device for weight in encoder.parameters()), None)
    spec = ViewSpec((item,))
    loader = ViewLoader(
        dataset, spec, [transform], seed=seed, num_workers=num_workers, device=device, replace_corrupt=True
    )

    def augment(epoch: int, batches: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in loader(epoch, batches):
            with eval_mode(encoder) as reference:
                h = encoder(batch.to(reference)).float()
            yield h[:, 0], batch.indices

    return augment
