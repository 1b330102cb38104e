"""`Encoder`: values of each modality as users have them, and their representations."""

from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

from manyviews.data import DatasetError, Texts, read_image
from manyviews.models import Encoder, EncoderConfig, EncoderSpec, MultiViewEncoder
from manyviews.transforms import center_crop_batch

IMAGES = EncoderConfig({"image": EncoderSpec("image", "resnet-small", {"width": 0.125}, 16)}, {"image": "image"})
TRANSFORMER = {"dim": 16, "layers": 1, "heads": 4}
MIXED = EncoderConfig(
    {
        "image": EncoderSpec("image", "resnet-small", {"width": 0.125}, 16),
        "caption": EncoderSpec("text", "transformer", TRANSFORMER),
        "speech": EncoderSpec("sequence", "transformer", {"features": 6, **TRANSFORMER}),
        "audio": EncoderSpec("vector", "mlp", {"features": 4, "dim": 16}),
    },
    {"front": "image", "caption": "caption", "side": "image", "speech": "speech", "audio": "audio"},
    16,
)


def make_encoder(config: EncoderConfig = IMAGES) -> Encoder:
    torch.manual_seed(0)
    return Encoder(MultiViewEncoder.from_config(config))


def test_all_kinds_of_images_are_preprocessed(tmp_path: Path) -> None:
    encoder = make_encoder()
    images = torch.randint(256, (3, 3, 20, 30), dtype=torch.uint8)
    expected = encoder.encoder.get_encoder("image")(center_crop_batch(images, 16))
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
        (torch.zeros(0, 3, 16, 16), "at least one, got {'image': 0}"),
        ([torch.zeros(3, 0, 8, dtype=torch.uint8)], "an image must be"),
        (torch.zeros(2, 3).numpy(), "got ndarray"),
        ("a.jpg", "a tensor or a list of images, got 'a.jpg'"),
        ([], "at least one, got {'image': 0}"),
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


def test_each_modality_is_encoded_as_its_values_alone() -> None:
    """Representations by the encoders themselves, one value at a time; the mean of training replaces missing ones."""
    encoder = make_encoder(MIXED)
    encoder.encoder.mean_representation.normal_()
    images = torch.randint(256, (3, 3, 20, 30), dtype=torch.uint8)
    captions, audio = ["a cat", "", "a dog in a house"], torch.randn(3, 4)
    speech = [torch.randn(length, 6) for length in (3, 7, 1)]
    values = {"front": images, "caption": captions, "speech": speech, "audio": audio.double().numpy()}
    rows = []
    for i in range(3):
        crop = center_crop_batch(images[i : i + 1], 16)
        mean = encoder.encoder.mean_representation
        tokens = torch.tensor([list(captions[i].encode())], dtype=torch.uint8)
        get = encoder.encoder.get_adapted_encoder
        parts = [
            get("image")(crop)[0],
            get("caption")(tokens, torch.tensor([tokens.shape[1]]))[0] if captions[i] else mean[1],
            mean[2],
            get("speech")(speech[i][None], torch.tensor([len(speech[i])]))[0],
            get("audio")(audio[i : i + 1])[0],
        ]
        rows.append(torch.cat(parts))
    ours = encoder(values)
    assert ours.shape == (3, encoder.dim) == (3, 80)
    torch.testing.assert_close(ours, torch.stack(rows), atol=1e-5, rtol=1e-4)
    _, mask = encoder.encode(values)
    assert mask.tolist() == [[True, i != 1, False, True, True] for i in range(3)]
    torch.testing.assert_close(encoder({"side": images})[:, 32:48], ours[:, :16])  # one encoder for front and side
    padded = nn.utils.rnn.pad_sequence(speech, batch_first=True)
    torch.testing.assert_close(encoder({"speech": padded[:2]})[1], encoder({"speech": [speech[1]]})[0])


def test_texts_alone_need_no_dict() -> None:
    texts = EncoderConfig({"caption": EncoderSpec("text", "transformer", TRANSFORMER)}, {"caption": "caption"})
    encoder = make_encoder(texts)
    module = encoder.encoder.get_encoder("caption")
    torch.testing.assert_close(
        encoder(["a cat", "two cats"]), module(*Texts(("a cat", "two cats")).load(torch.arange(2)))
    )
    assert torch.equal(encoder(("",)), encoder.encoder.mean_representation)


def test_image_encoder_of_a_modality() -> None:
    encoder = make_encoder(MIXED)
    assert encoder.get_image_modality() == "front"
    module, spec = encoder.get_image_encoder("side")
    assert spec == MIXED.encoders["image"]
    assert module is encoder.get_image_encoder()[0] is encoder.encoder.get_adapted_encoder("image")
    with pytest.raises(ValueError, match="no modality of images 'caption', only front, side"):
        encoder.get_image_encoder("caption")
    without = make_encoder(EncoderConfig({"audio": MIXED.encoders["audio"]}, {"audio": "audio"}))
    with pytest.raises(ValueError, match="no modality of images, only audio"):
        without.get_image_encoder()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["a cat"], "expected a dict with some of the modalities front, caption, side, speech, audio, got a list"),
        ({"text": ["a cat"]}, "there is no modality 'text', only front, caption"),
        ({}, "the same number of instances, at least one"),
        ({"caption": []}, "the same number of instances, at least one"),
        ({"caption": ["a"], "audio": torch.zeros(2, 4)}, "the same number of instances, .* {'caption': 1, 'audio': 2}"),
        ({"caption": [7]}, "caption must be a text for each instance: texts must be str, got"),
        ({"audio": torch.zeros(2, 3)}, "audio must have 4 features, as in training, got 3"),
        (
            {"audio": torch.zeros(2, 3, 4)},
            r"audio must be a vector for each instance: .* got torch.float32 \(2, 3, 4\)",
        ),
        ({"speech": torch.zeros(2, 3, 5)}, "speech must have 6 features, as in training, got 5"),
        (
            {"speech": [torch.zeros(3, 6), torch.zeros(6)]},
            r"speech must be a sequence for each instance: expected \(T, d\)",
        ),
    ],
    ids=str,
)
def test_invalid_values_raise(values: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_encoder(MIXED)(values)


def test_encoder_without_config_raises() -> None:
    with pytest.raises(ValueError, match="the encoder has no config: build it with"):
        Encoder(MultiViewEncoder({"a": nn.Identity()}, encoder_dims={"a": 2}))
