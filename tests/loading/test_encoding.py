"""Representations of images in memory and on disk, and augmented crops for the probe."""

from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

from manyviews.data import DatasetError, LazyImages, load_dataset
from manyviews.loading import embed_views, encode_images, stream_augmented_features
from manyviews.metrics import fit_linear_probe
from manyviews.models import Embedder, eval_mode, get_encoder
from manyviews.transforms import SimCLRTransform, center_crop_batch
from tests.helpers.tiny_run import folder_of_images


def small_encoder() -> nn.Module:
    torch.manual_seed(0)
    return get_encoder("resnet-small", width=0.125)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_images_on_disk_and_in_memory_have_equal_representations(tmp_path: Path, num_workers: int) -> None:
    files = load_dataset(folder_of_images(tmp_path, count=20, labelled=False))["train"].images
    encoder = small_encoder()
    index = torch.tensor([3, 17, 0, 5])
    h, kept = encode_images(encoder, files, index, 16, num_workers)
    assert torch.equal(kept, index)
    assert encoder.training
    with eval_mode(encoder):
        expected = encoder(center_crop_batch([files[int(i)] for i in index], 16))
    torch.testing.assert_close(h, expected)


def test_corrupt_images_are_skipped(tmp_path: Path) -> None:
    files = load_dataset(folder_of_images(tmp_path, count=6, labelled=False))["train"].images
    files.paths[2].write_bytes(b"broken")
    encoder = small_encoder()
    with pytest.warns(UserWarning, match=r"002\.png cannot be decoded.*skipped"):
        h, kept = encode_images(encoder, files, torch.arange(5), 16)
    assert kept.tolist() == [0, 1, 3, 4]
    assert torch.equal(h, encode_images(encoder, files, kept, 16)[0])
    with pytest.raises(DatasetError, match=r"002\.png"):
        encode_images(encoder, LazyImages(files.paths, raise_on_corrupt=True), torch.arange(5), 16)
    with pytest.warns(UserWarning, match="skipped"), pytest.raises(ValueError, match="none of 1 images"):
        encode_images(encoder, files, torch.tensor([2]), 16)


def test_augmented_representations_use_crops_and_flips_only() -> None:
    images = load_dataset("photos")["train"].images[:6]
    encoder = small_encoder().eval()
    transform = SimCLRTransform(32, jitter_strength=0.0, jitter_prob=0.0, grayscale_prob=0.0)
    augment = stream_augmented_features(encoder, images, 32, seed=4)
    index = torch.tensor([5, 1, 2])
    for epoch in (0, 3):
        ((h, augmented),) = augment(epoch, [index])
        views = transform(images[index], views=1, seed=4, epoch=epoch, index=index)[:, 0]
        assert torch.equal(augmented, index)
        assert torch.equal(h, encoder(views).detach())
    assert torch.is_grad_enabled()


@pytest.mark.slow
def test_probe_on_augmented_representations_learns(tmp_path: Path) -> None:
    """Bright and dark images, on disk, in two processes."""
    bright = torch.arange(30) % 2
    for i, is_bright in enumerate(bright):
        Image.new("L", (20 + i % 5, 24), 200 if is_bright else 50).save(tmp_path / f"{i:02}.png")
    images = load_dataset(tmp_path)["train"].images
    mean_color = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    h, _ = encode_images(mean_color, images, torch.arange(30), 16)
    augment = stream_augmented_features(mean_color, images, 16, num_workers=2)
    # Only the augmented representations differ between the classes.
    probe = fit_linear_probe(torch.zeros_like(h), bright, solver="sgd", epochs=8, learning_rate=10.0, augment=augment)
    assert probe.accuracy(h, bright) == 1


def test_embed_views_uses_the_views_of_the_transform() -> None:
    images = load_dataset("photos")["train"].images[:9]
    torch.manual_seed(0)
    embedder = Embedder(get_encoder("resnet-small", width=0.125)).eval()
    transform, index = SimCLRTransform(16), torch.tensor([7, 0, 3])
    h, z = embed_views(embedder, images, index, transform, views=3, seed=1)
    expected = embedder(transform(images[index], views=3, seed=1, epoch=2**31 - 1, index=index))
    torch.testing.assert_close(h, expected.h)
    torch.testing.assert_close(z, expected.z)
