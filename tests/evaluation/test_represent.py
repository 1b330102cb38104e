"""Representations of images in memory and on disk; crops for the probe."""

from pathlib import Path

import pytest
import torch
from torch import nn

from manyviews.data import DatasetError, ImageFiles, load_dataset
from manyviews.evaluation import augmented, linear_probe, representations
from manyviews.evaluation.represent import embedded_views, evaluating
from manyviews.models import Embedder, get_encoder
from manyviews.views import SimCLRPolicy, plain_views
from tests.training.small import folder_of_images


def small_encoder() -> nn.Module:
    torch.manual_seed(0)
    return get_encoder("resnet-small", width=0.125)


@pytest.mark.parametrize("workers", [0, 2])
def test_images_on_disk_are_represented_as_in_memory(tmp_path: Path, workers: int) -> None:
    files = load_dataset(folder_of_images(tmp_path, count=20, labelled=False))["train"].images
    encoder = small_encoder()
    index = torch.tensor([3, 17, 0, 5])
    h, kept = representations(encoder, files, index, 16, workers)
    assert torch.equal(kept, index)
    assert encoder.training
    with evaluating(encoder):
        expected = encoder(plain_views([files[int(number)] for number in index], 16))
    torch.testing.assert_close(h, expected)


def test_an_image_that_cannot_be_read_is_left_out_with_its_label(tmp_path: Path) -> None:
    files = load_dataset(folder_of_images(tmp_path, count=6, labelled=False))["train"].images
    files.paths[2].write_bytes(b"broken")
    encoder = small_encoder()
    with pytest.warns(UserWarning, match=r"002\.png is no whole image.*left out"):
        h, kept = representations(encoder, files, torch.arange(5), 16)
    assert kept.tolist() == [0, 1, 3, 4]
    assert torch.equal(h, representations(encoder, files, kept, 16)[0])
    with pytest.raises(DatasetError, match=r"002\.png"):
        representations(encoder, ImageFiles(files.paths, strict=True), torch.arange(5), 16)
    with pytest.warns(UserWarning, match="left out"), pytest.raises(ValueError, match="none of 1 images"):
        representations(encoder, files, torch.tensor([2]), 16)


def test_augmented_representations_are_of_mirrored_crops_alone() -> None:
    images = load_dataset("photos")["train"].images[:6]
    encoder = small_encoder().eval()
    policy = SimCLRPolicy(32, strength=0.0, jitter=0.0, grey=0.0)
    augment = augmented(encoder, images, 32, seed=4)
    index = torch.tensor([5, 1, 2])
    for epoch in (0, 3):
        ((h, which),) = augment(epoch, [index])
        views = policy(images[index], views=1, seed=4, epoch=epoch, index=index)[:, 0]
        assert torch.equal(which, index)
        assert torch.equal(h, encoder(views).detach())
    assert torch.is_grad_enabled()


def test_a_probe_on_augmented_representations_learns(tmp_path: Path) -> None:
    """Bright and dark images, on disk, in two processes."""
    files = load_dataset(folder_of_images(tmp_path, count=30))["train"]
    colour = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    h, _ = representations(colour, files.images, torch.arange(30), 16)
    bright = (h[:, 0] > h[:, 0].median()).long()
    augment = augmented(colour, files.images, 16, workers=2)
    probe = linear_probe(h, bright, method="sgd", epochs=100, learning_rate=50.0, augment=augment)
    assert probe.accuracy(h, bright) > 0.8


def test_embedded_views_are_those_of_the_policy() -> None:
    images = load_dataset("photos")["train"].images[:9]
    torch.manual_seed(0)
    embedder = Embedder(get_encoder("resnet-small", width=0.125)).eval()
    policy, index = SimCLRPolicy(16), torch.tensor([7, 0, 3])
    h, z = embedded_views(embedder, images, index, policy, views=3, seed=1)
    expected = embedder(policy(images[index], views=3, seed=1, epoch=2**31 - 1, index=index))
    torch.testing.assert_close(h, expected.h)
    torch.testing.assert_close(z, expected.z)
