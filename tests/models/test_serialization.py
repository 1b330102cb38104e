"""Encoder files, and preprocessing of images of any kind."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from manyviews.data import DatasetError, read_image
from manyviews.models import (
    EncoderConfig,
    EncoderError,
    ImageEncoder,
    get_encoder,
    load_image_encoder,
    serialize_module,
)
from manyviews.transforms import center_crop_batch

CONFIG = EncoderConfig("resnet-small", {"width": 0.125}, 16)


def make_encoder() -> ImageEncoder:
    torch.manual_seed(0)
    return ImageEncoder(get_encoder("resnet-small", width=0.125), size=16)


def test_all_kinds_of_images_are_preprocessed(tmp_path: Path) -> None:
    encoder = make_encoder()
    images = torch.randint(256, (3, 3, 20, 30), dtype=torch.uint8)
    expected = encoder.encoder(center_crop_batch(images, 16))
    assert expected.shape == (3, encoder.dim)
    assert not expected.requires_grad
    assert torch.equal(encoder(images), expected)
    assert torch.equal(encoder(list(images)), expected)
    assert torch.equal(encoder(center_crop_batch(images, 16)), expected)
    pil_images = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in images]
    assert torch.equal(encoder(pil_images), expected)
    for i, pil_image in enumerate(pil_images):
        pil_image.save(tmp_path / f"{i}.png")
    assert torch.equal(encoder([tmp_path / "0.png", str(tmp_path / "1.png"), images[2]]), expected)


def test_gray_and_rotated_images(tmp_path: Path) -> None:
    encoder = make_encoder()
    gray = Image.fromarray(torch.randint(256, (16, 16), dtype=torch.uint8).numpy())
    assert torch.equal(encoder([gray]), encoder([gray.convert("RGB")]))
    tall = Image.effect_noise((16, 24), 90).convert("RGB")
    exif = tall.getexif()
    exif[0x0112] = 6
    tall.save(tmp_path / "tall.jpg", exif=exif)
    with Image.open(tmp_path / "tall.jpg") as opened:
        assert torch.equal(encoder([opened]), encoder([read_image(tmp_path / "tall.jpg")]))


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(3, 16, 16), r"images must be \(B, 1 or 3, height, width\), got \(3, 16, 16\)"),
        (torch.zeros(1, 3, 20, 20), "floats in .0, 1. of 16 x 16, got torch.float32"),
        (torch.rand(1, 3, 16, 16) * 255, r"float images must be in \[0, 1\].*divide by 255"),
        (torch.full((1, 3, 16, 16), torch.nan), r"float images must be in \[0, 1\]"),
        (torch.zeros(0, 3, 16, 16), "images must be"),
        ([torch.zeros(3, 0, 8, dtype=torch.uint8)], "an image must be"),
        (torch.zeros(2, 3).numpy(), "got ndarray"),
        ("a.jpg", "a tensor or a list of images, got 'a.jpg'"),
        ([], "a tensor or a list of images"),
        (["nowhere.jpg"], "no such file: nowhere.jpg"),
        ([torch.zeros(3, 8, 8)], "uint8 .1 or 3, height, width., got torch.float32"),
        ([7], "got int"),
        ([Image.new("F", (8, 8))], "the image: pixels are floats"),
    ],
)
def test_invalid_images_raise(images: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_encoder()(images)


def test_corrupt_image_files_raise(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_text("text")
    with pytest.raises(DatasetError, match=r"a\.jpg cannot be decoded"):
        make_encoder()([tmp_path / "a.jpg"])


def test_round_trip(tmp_path: Path) -> None:
    encoder = make_encoder().encoder
    path = tmp_path / "encoder.safetensors"
    path.write_bytes(serialize_module(encoder, CONFIG))
    loaded, config = load_image_encoder(path)
    assert config == CONFIG
    for name, tensor in encoder.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)


def test_weights_that_do_not_fit_raise(tmp_path: Path) -> None:
    path = tmp_path / "encoder.safetensors"
    path.write_bytes(serialize_module(get_encoder("resnet-small", width=0.25), CONFIG))
    with pytest.raises(EncoderError, match=r"do not fit resnet-small: conv1.weight is \(16, 3, 3, 3\)"):
        load_image_encoder(path)
    path.write_bytes(serialize_module(get_encoder("resnet18", width=0.125, stem="small-strided"), CONFIG))
    with pytest.raises(EncoderError, match=r"unexpected layer1\.1\..*, and \d+ more"):
        load_image_encoder(path)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (None, "has no encoder config in its header"),
        ("{", "invalid encoder config in the header"),
        ([1], "invalid encoder config in the header"),
        ({"encoder": "resnet-small", "options": {}}, "invalid encoder config in the header: KeyError"),
        ({"encoder": "resnet-small", "options": {}, "size": "16"}, "invalid encoder config in the header"),
        ({"encoder": "resnet-small", "options": {}, "size": 10**9}, "invalid encoder config in the header"),
        (
            {"encoder": "resnet-small", "options": {"pretrained": True}, "size": 16},
            "invalid encoder config in the header: KeyError",
        ),
        ({"encoder": "timm:hf-hub:stranger/model", "options": {}, "size": 16}, "invalid encoder config in the header"),
        ({"encoder": "resnet18", "options": {"width": 200}, "size": 16}, "do not fit resnet18"),
        ({"encoder": "resnet18", "options": {"width": float("inf")}, "size": 16}, "infinity"),
        ({"encoder": "resnet7", "options": {}, "size": 16}, "no encoder 'resnet7'"),
        ({"encoder": "resnet-small", "options": {"stem": "odd"}, "size": 16}, "stem must be one of"),
    ],
)
def test_invalid_headers_raise(tmp_path: Path, header: object, message: str) -> None:
    path = tmp_path / "encoder.safetensors"
    text = header if isinstance(header, str) else json.dumps(header)
    save_file({"a": torch.zeros(1)}, path, None if header is None else {"manyviews": text})
    with pytest.raises(EncoderError, match=message):
        load_image_encoder(path)


def test_corrupt_files_raise(tmp_path: Path) -> None:
    path = tmp_path / "encoder.safetensors"
    path.write_bytes(serialize_module(make_encoder().encoder, CONFIG)[:5000])
    with pytest.raises(EncoderError, match="cannot read"):
        load_image_encoder(path)
    with pytest.raises(EncoderError, match="cannot read"):
        load_image_encoder(tmp_path / "nothing.safetensors")
