"""Representations of images in memory and on disk and of other modalities, and augmented crops for the probe."""

import dataclasses
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

from manyviews.data import Dataset, DatasetError, LazyImages, Texts, Vectors, load_dataset
from manyviews.loading import (
    ModalityViews,
    ViewLoader,
    ViewSpec,
    choose_eval_batch_size,
    embed_instances,
    encode_instances,
    encoding,
    make_eval_loader,
    set_mean_representation,
    stream_augmented_features,
)
from manyviews.metrics import fit_linear_probe
from manyviews.models import EncoderConfig, EncoderSpec, MultiViewEncoder, MultiViewModel, eval_mode
from manyviews.transforms import SimCLRTransform, center_crop_batch
from tests.helpers.tiny_run import folder_of_images

IMAGE = EncoderSpec("image", "resnet-small", {"width": 0.125}, 16)


def make_encoder(**encoders: EncoderSpec) -> MultiViewEncoder:
    """Make an encoder of images of 16 pixels or, with arguments, of several modalities."""
    torch.manual_seed(0)
    encoders = encoders or {"image": IMAGE}
    dim = 8 if len(encoders) > 1 else None
    return MultiViewEncoder.from_config(EncoderConfig(encoders, {name: name for name in encoders}, dim))


def make_mixed(count: int = 7) -> tuple[Dataset, MultiViewEncoder]:
    """Make a dataset of vectors and texts with missing values, and its encoder."""
    audio = Vectors(torch.randn(count, 4, generator=torch.Generator().manual_seed(0)), mask=torch.arange(count) != 2)
    texts = Texts(tuple("" if i in (0, 2) else "word " * (i + 1) for i in range(count)))
    encoder = make_encoder(
        audio=EncoderSpec("vector", "mlp", {"features": 4, "dim": 8}),
        caption=EncoderSpec("text", "transformer", {"dim": 8, "heads": 2, "layers": 1}),
    )
    return Dataset({"audio": audio, "caption": texts}), encoder


def with_own_encoder(module: nn.Module, size: int) -> MultiViewEncoder:
    """Make an encoder of a module of a user."""
    encoder = MultiViewEncoder({"image": module}, encoder_dims={"image": 3})
    encoder.config = EncoderConfig({"image": EncoderSpec("image", "custom", {}, size)}, {"image": "image"})
    return encoder


@pytest.mark.parametrize("num_workers", [0, 2])
def test_images_on_disk_and_in_memory_have_equal_representations(tmp_path: Path, num_workers: int) -> None:
    data = load_dataset(folder_of_images(tmp_path, count=20, labelled=False))["train"]
    encoder = make_encoder()
    index = torch.tensor([3, 17, 0, 5])
    h, mask = encode_instances(encoder, make_eval_loader(data, encoder, num_workers), index)
    assert mask.tolist() == [[True]] * 4
    assert encoder.training
    module = encoder.get_encoder("image")
    with eval_mode(module):
        expected = module(center_crop_batch([data.images[int(i)] for i in index], 16))
    torch.testing.assert_close(h[:, 0], expected)


def test_corrupt_images_are_missing(tmp_path: Path) -> None:
    data = load_dataset(folder_of_images(tmp_path, count=6, labelled=False))["train"]
    data.images.paths[2].write_bytes(b"broken")
    encoder = make_encoder()
    loader = make_eval_loader(data, encoder)
    with pytest.warns(UserWarning, match=r"002\.png cannot be decoded.*it counts as missing"):
        h, mask = encode_instances(encoder, loader, torch.arange(5))
    kept = mask[:, 0].nonzero()[:, 0]
    assert kept.tolist() == [0, 1, 3, 4]
    assert not h[2].any()
    assert torch.equal(h[kept], encode_instances(encoder, loader, kept)[0])
    strict = Dataset({"image": LazyImages(data.images.paths, raise_on_corrupt=True)})
    with pytest.raises(DatasetError, match=r"002\.png"):
        encode_instances(encoder, make_eval_loader(strict, encoder), torch.arange(5))
    with pytest.warns(UserWarning, match="it counts as missing"):
        _, mask = encode_instances(encoder, make_eval_loader(data, encoder), torch.tensor([2]))
    assert not mask.any()


def test_several_modalities_are_encoded_as_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "EVAL_BATCH_SIZE", 3)
    data, encoder = make_mixed()
    index = torch.tensor([6, 0, 2, 3, 1])
    h, mask = encode_instances(encoder, make_eval_loader(data, encoder), index)
    assert torch.equal(mask, data.get_mask(["audio", "caption"])[index])
    with eval_mode(encoder):
        for row, i in enumerate(index.tolist()):
            for position, name in enumerate(("audio", "caption")):
                expected = torch.zeros(8)
                if mask[row, position]:
                    values, lengths = data[name].load(torch.tensor([i]))
                    inputs = (values, lengths) if name == "caption" else (values,)
                    expected = encoder.get_adapted_encoder(name)(*inputs)[0]
                torch.testing.assert_close(h[row, position], expected, atol=1e-5, rtol=1e-4)


def test_mean_representation_is_that_of_the_instances_that_have_the_modality() -> None:
    data, encoder = make_mixed()
    loader, index = make_eval_loader(data, encoder), torch.tensor([0, 2, 3, 4, 6])
    set_mean_representation(encoder, loader, index)
    h, mask = encode_instances(encoder, loader, index)
    for position in range(2):
        expected = h[mask[:, position], position].mean(0)
        torch.testing.assert_close(encoder.mean_representation[position], expected)
    images = make_encoder()
    photos = load_dataset("photos")["test"]
    set_mean_representation(images, make_eval_loader(photos, images), torch.arange(3))
    assert not images.mean_representation.any()  # no modality can be missing


def test_data_of_another_kind_are_refused() -> None:
    data, encoder = make_mixed()
    with pytest.raises(DatasetError, match="no modality 'caption': the split has audio"):
        make_eval_loader(Dataset({"audio": data["audio"]}), encoder)
    with pytest.raises(DatasetError, match="caption must be of the kind text, as in training, got vector"):
        make_eval_loader(Dataset({"audio": data["audio"], "caption": torch.zeros(7, 4)}), encoder)
    with pytest.raises(DatasetError, match="audio must have 4 features, as in training, got 3"):
        make_eval_loader(Dataset({"audio": torch.zeros(7, 3), "caption": data["caption"]}), encoder)
    with pytest.raises(ValueError, match="the encoder has no config"):
        make_eval_loader(data, MultiViewEncoder({"audio": nn.Identity()}, encoder_dims={"audio": 4}))


def test_large_images_are_encoded_in_smaller_batches() -> None:
    assert [choose_eval_batch_size(size) for size in (0, 32, 224, 448, 10_000)] == [256, 256, 256, 64, 1]


def test_augmented_representations_use_crops_and_flips_only() -> None:
    data = Dataset({"image": load_dataset("photos")["train"].images[:6]})
    encoder = make_encoder(image=dataclasses.replace(IMAGE, size=32)).eval()
    transform = SimCLRTransform(32, jitter_strength=0.0, jitter_prob=0.0, grayscale_prob=0.0)
    augment = stream_augmented_features(encoder, data, seed=4)
    index = torch.tensor([5, 1, 2])
    for epoch in (0, 3):
        ((h, augmented),) = augment(epoch, [index])
        views = transform(data.images[index], views=1, seed=4, epoch=epoch, index=index)[:, 0]
        assert torch.equal(augmented, index)
        assert torch.equal(h, encoder.get_encoder("image")(views).detach())
    assert torch.is_grad_enabled()
    vectors = make_encoder(audio=EncoderSpec("vector", "mlp", {"features": 4, "dim": 8}))
    with pytest.raises(DatasetError, match="only images alone can be augmented, got audio"):
        stream_augmented_features(vectors, Dataset({"audio": torch.zeros(3, 4)}))


@pytest.mark.slow
def test_probe_on_augmented_representations_learns(tmp_path: Path) -> None:
    """Bright and dark images, on disk, in two processes."""
    bright = torch.arange(30) % 2
    for i, is_bright in enumerate(bright):
        Image.new("L", (20 + i % 5, 24), 200 if is_bright else 50).save(tmp_path / f"{i:02}.png")
    data = load_dataset(tmp_path)["train"]
    mean_color = with_own_encoder(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()), 16)
    h = encode_instances(mean_color, make_eval_loader(data, mean_color), torch.arange(30))[0][:, 0]
    augment = stream_augmented_features(mean_color, data, num_workers=2)
    # Only the augmented representations differ between the classes.
    probe = fit_linear_probe(torch.zeros_like(h), bright, solver="sgd", epochs=8, learning_rate=10.0, augment=augment)
    assert probe.accuracy(h, bright) == 1


def test_embed_instances_uses_the_views_of_the_transform() -> None:
    data = Dataset({"image": load_dataset("photos")["train"].images[:9]})
    model = MultiViewModel(make_encoder()).eval()
    transform, index = SimCLRTransform(16), torch.tensor([7, 0, 3])
    loader = ViewLoader(data, ViewSpec((ModalityViews("image", 3, 16, "image"),)), [transform], seed=1)
    h, z, mask = embed_instances(model, loader, index)
    expected = model(transform(data.images[index], views=3, seed=1, epoch=2**31 - 1, index=index))
    torch.testing.assert_close(h, expected.h)
    torch.testing.assert_close(z, expected.z)
    assert mask.shape == (3, 3)
    assert mask.all()
