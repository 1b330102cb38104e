"""Encoders of modalities in files: the same again, and nothing a stranger writes into a header does harm."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from manyviews.models import EncoderError, ModalityEncoder
from manyviews.models.modalities import ModalityDescription
from manyviews.models.saved import Description, file_of, holds_modalities, read_encoder, read_modality_encoder

ABOUT = ModalityDescription(
    {"text": ("sequence", 6), "audio": ("vector", 4), "image": ("image", 0)}, dim=16, layers=1, heads=4
)


def file(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    encoder = ModalityEncoder.described(ABOUT)
    encoder.inputs[1].fit(torch.randn(20, 4))
    encoder.centre.normal_()
    path = tmp_path / "encoder.safetensors"
    path.write_bytes(file_of(encoder, encoder.about))
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = file(tmp_path)
    assert holds_modalities(path)
    found = read_modality_encoder(path)
    assert found.about == ABOUT
    assert not found.training
    torch.manual_seed(0)
    made = ModalityEncoder.described(ABOUT).eval()
    made.load_state_dict(found.state_dict())
    views = [torch.randn(3, 5, 6), torch.randn(3, 4), torch.full((3, 1, 16, 16), 9, dtype=torch.uint8)]
    views += [torch.tensor([[5, 1, 1]] * 3), torch.ones(3, 3, dtype=torch.bool)]
    torch.testing.assert_close(found(views), made(views), atol=1e-5, rtol=1e-4)
    with pytest.raises(EncoderError, match=r"is of modalities \(text, audio, image\), not of images"):
        read_encoder(path)
    image = tmp_path / "image.safetensors"
    image.write_bytes(file_of(torch.nn.Linear(2, 2), Description("resnet-small", {}, 32)))
    with pytest.raises(EncoderError, match="is of images, not of modalities"):
        read_modality_encoder(image)


@pytest.mark.parametrize(
    "changes",
    [
        {"modalities": {"text": ["sequence", 10**12]}},
        {"modalities": {"text": ["socket", 6]}},
        {"modalities": {"text": 6}},
        {"modalities": {}},
        {"modalities": {"text": ["sequence", "6"]}},
        {"dim": 10**9},
        {"layers": 10**6},
        {"layers": 4000},
        {"heads": 0},
        {"heads": 5},
        {"dropout": "much"},
        {"image_encoder": "../../etc"},
        {"image_encoder": "resnet18"},
        {"dim": 8},
    ],
    ids=str,
)
def test_a_forged_header_is_an_error_and_asks_for_no_memory(changes: dict, tmp_path: Path) -> None:
    path = file(tmp_path)
    told = {
        "modalities": {"text": ["sequence", 6], "audio": ["vector", 4], "image": ["image", 0]},
        "dim": 16, "layers": 1, "heads": 4, "dropout": 0.1, "image_encoder": "resnet-small",
    } | changes  # fmt: skip
    weights = {name: value.contiguous() for name, value in read_modality_encoder(path).state_dict().items()}
    save_file(weights, path, {"manyviews": json.dumps(told)})
    with pytest.raises(EncoderError):
        read_modality_encoder(path)
