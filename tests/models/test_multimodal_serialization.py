"""Files of multimodal encoders: round trip, and headers of untrusted files."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from manyviews.models import (
    EncoderConfig,
    EncoderError,
    MultimodalConfig,
    MultimodalEncoder,
    is_multimodal_file,
    load_image_encoder,
    load_multimodal_encoder,
    serialize_module,
)

CONFIG = MultimodalConfig(
    {"text": ("sequence", 6), "audio": ("vector", 4), "image": ("image", 0)},
    hidden_dim=16,
    transformer_layers=1,
    transformer_heads=4,
)


def write_encoder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    encoder = MultimodalEncoder.from_config(CONFIG)
    encoder.preprocessors[1].fit(torch.randn(20, 4))
    encoder.mean_representation.normal_()
    path = tmp_path / "encoder.safetensors"
    path.write_bytes(serialize_module(encoder, encoder.config))
    return path


def test_round_trip(tmp_path: Path) -> None:
    path = write_encoder(tmp_path)
    assert is_multimodal_file(path)
    loaded = load_multimodal_encoder(path)
    assert loaded.config == CONFIG
    assert not loaded.training
    torch.manual_seed(0)
    expected = MultimodalEncoder.from_config(CONFIG).eval()
    expected.load_state_dict(loaded.state_dict())
    views = [torch.randn(3, 5, 6), torch.randn(3, 4), torch.full((3, 1, 16, 16), 9, dtype=torch.uint8)]
    views += [torch.tensor([[5, 1, 1]] * 3), torch.ones(3, 3, dtype=torch.bool)]
    torch.testing.assert_close(loaded(views), expected(views), atol=1e-5, rtol=1e-4)
    with pytest.raises(
        EncoderError, match=r"contains a multimodal encoder \(text, audio, image\), not an image encoder"
    ):
        load_image_encoder(path)
    image = tmp_path / "image.safetensors"
    image.write_bytes(serialize_module(torch.nn.Linear(2, 2), EncoderConfig("resnet-small", {}, 32)))
    with pytest.raises(EncoderError, match="contains an image encoder, not a multimodal encoder"):
        load_multimodal_encoder(image)


@pytest.mark.parametrize(
    "changes",
    [
        {"modalities": {"text": ["sequence", 10**12]}},
        {"modalities": {"text": ["socket", 6]}},
        {"modalities": {"text": 6}},
        {"modalities": {}},
        {"modalities": {"text": ["sequence", "6"]}},
        {"hidden_dim": 10**9},
        {"transformer_layers": 10**6},
        {"transformer_layers": 4000},
        {"transformer_heads": 0},
        {"transformer_heads": 5},
        {"dropout": "much"},
        {"image_encoder": "../../etc"},
        {"image_encoder": "resnet18"},
        {"hidden_dim": 8},
    ],
    ids=str,
)
def test_forged_headers_raise_without_allocating(changes: dict, tmp_path: Path) -> None:
    path = write_encoder(tmp_path)
    header = dataclasses.asdict(CONFIG) | changes
    weights = {name: value.contiguous() for name, value in load_multimodal_encoder(path).state_dict().items()}
    save_file(weights, path, {"manyviews": json.dumps(header)})
    with pytest.raises(EncoderError):
        load_multimodal_encoder(path)
