"""Encoders in files, and ready for images of any kind."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from manyviews.data import DatasetError, read_image
from manyviews.models import EncoderError, ImageEncoder, get_encoder
from manyviews.models.saved import Description, file_of, read_encoder
from manyviews.views import plain_views

ABOUT = Description("resnet-small", {"width": 0.125}, 16)


def ready() -> ImageEncoder:
    torch.manual_seed(0)
    return ImageEncoder(get_encoder("resnet-small", width=0.125), size=16)


def test_images_of_any_kind_are_prepared(tmp_path: Path) -> None:
    encoder = ready()
    images = torch.randint(256, (3, 3, 20, 30), dtype=torch.uint8)
    expected = encoder.encoder(plain_views(images, 16))
    assert expected.shape == (3, encoder.dim)
    assert not expected.requires_grad
    assert torch.equal(encoder(images), expected)
    assert torch.equal(encoder(list(images)), expected)
    assert torch.equal(encoder(plain_views(images, 16)), expected)
    pictures = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in images]
    assert torch.equal(encoder(pictures), expected)
    for number, picture in enumerate(pictures):
        picture.save(tmp_path / f"{number}.png")
    assert torch.equal(encoder([tmp_path / "0.png", str(tmp_path / "1.png"), images[2]]), expected)


def test_grey_pictures_and_those_that_lie_on_their_side(tmp_path: Path) -> None:
    encoder = ready()
    grey = Image.fromarray(torch.randint(256, (16, 16), dtype=torch.uint8).numpy())
    assert torch.equal(encoder([grey]), encoder([grey.convert("RGB")]))
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
        (torch.rand(1, 3, 16, 16) * 255, "floats must lie between 0 and 1.*divide by 255"),
        (torch.full((1, 3, 16, 16), torch.nan), "floats must lie between 0 and 1"),
        (torch.zeros(0, 3, 16, 16), "images must be"),
        ([torch.zeros(3, 0, 8, dtype=torch.uint8)], "an image must be"),
        (torch.zeros(2, 3).numpy(), "got ndarray"),
        ("a.jpg", "a tensor or a list of images, got 'a.jpg'"),
        ([], "a tensor or a list of images"),
        (["nowhere.jpg"], "there is no file nowhere.jpg"),
        ([torch.zeros(3, 8, 8)], "uint8 .1 or 3, height, width., got torch.float32"),
        ([7], "got int"),
        ([Image.new("F", (8, 8))], "the picture: its pixels are floats"),
    ],
)
def test_what_is_no_image_is_named(images: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ready()(images)


def test_a_file_that_is_no_image_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_text("text")
    with pytest.raises(DatasetError, match=r"a\.jpg is no whole image"):
        ready()([tmp_path / "a.jpg"])


def test_a_file_says_which_encoder_it_holds(tmp_path: Path) -> None:
    encoder = ready().encoder
    path = tmp_path / "encoder.safetensors"
    path.write_bytes(file_of(encoder, ABOUT))
    read, about = read_encoder(path)
    assert about == ABOUT
    for name, tensor in encoder.state_dict().items():
        assert torch.equal(read.state_dict()[name], tensor)


def test_weights_of_another_architecture_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "encoder.safetensors"
    path.write_bytes(file_of(get_encoder("resnet-small", width=0.25), ABOUT))
    with pytest.raises(
        EncoderError, match=r"another architecture than resnet-small: its conv1.weight is \(16, 3, 3, 3\)"
    ):
        read_encoder(path)
    path.write_bytes(file_of(get_encoder("resnet18", width=0.125, stem="strided"), ABOUT))
    with pytest.raises(EncoderError, match=r"it has layer1\.1\..*, and \d+ more"):
        read_encoder(path)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (None, "does not say which encoder it holds"),
        ("{", "cannot be read"),
        ([1], "cannot be read"),
        ({"encoder": "resnet-small", "options": {}}, "cannot be read: KeyError"),
        ({"encoder": "resnet-small", "options": {}, "size": "16"}, "cannot be read"),
        ({"encoder": "resnet-small", "options": {}, "size": 10**9}, "cannot be read"),
        ({"encoder": "resnet-small", "options": {"pretrained": True}, "size": 16}, "cannot be read: KeyError"),
        ({"encoder": "timm:hf-hub:stranger/model", "options": {}, "size": 16}, "cannot be read"),
        ({"encoder": "resnet18", "options": {"width": 200}, "size": 16}, "another architecture than resnet18"),
        ({"encoder": "resnet18", "options": {"width": float("inf")}, "size": 16}, "infinity"),
        ({"encoder": "resnet7", "options": {}, "size": 16}, "no encoder 'resnet7'"),
        ({"encoder": "resnet-small", "options": {"stem": "odd"}, "size": 16}, "stem must be one of"),
    ],
)
def test_a_strange_header_is_an_error(tmp_path: Path, said: object, message: str) -> None:
    path = tmp_path / "encoder.safetensors"
    text = said if isinstance(said, str) else json.dumps(said)
    save_file({"a": torch.zeros(1)}, path, None if said is None else {"manyviews": text})
    with pytest.raises(EncoderError, match=message):
        read_encoder(path)


def test_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "encoder.safetensors"
    path.write_bytes(file_of(ready().encoder, ABOUT)[:5000])
    with pytest.raises(EncoderError, match="cannot read"):
        read_encoder(path)
    with pytest.raises(EncoderError, match="cannot read"):
        read_encoder(tmp_path / "nothing.safetensors")
