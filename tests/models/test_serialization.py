"""Files of encoders: round trip, weights that do not fit, and headers of untrusted files."""

import copy
import json
import sys
import types
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from manyviews.models import (
    CUSTOM,
    EncoderConfig,
    EncoderError,
    EncoderSpec,
    MultiViewEncoder,
    ViewBatch,
    ViewGroup,
    load_encoder_file,
    serialize_module,
)


def make_image_config(name: str = "resnet-small", size: int = 16, **options: object) -> EncoderConfig:
    return EncoderConfig({"image": EncoderSpec("image", name, options, size)}, {"image": "image"})


IMAGES = make_image_config(width=0.125)
TRANSFORMER = {"dim": 16, "layers": 1, "heads": 4}
MIXED = EncoderConfig(
    {
        "text": EncoderSpec("sequence", "transformer", {"features": 6, **TRANSFORMER}),
        "audio": EncoderSpec("vector", "mlp", {"features": 4, "dim": 16, "dropout": 0.5}),
        "caption": EncoderSpec("text", "transformer", TRANSFORMER),
        "image": EncoderSpec("image", "resnet-small", {"width": 0.25, "stem": "small"}, 16),
    },
    {"text": "text", "audio": "audio", "caption": "caption", "front": "image", "side": "image"},
    16,
)


def write_encoder(path: Path, config: EncoderConfig, header: EncoderConfig | None = None) -> MultiViewEncoder:
    """Write an encoder with random statistics, and with another header if there is one."""
    torch.manual_seed(0)
    encoder = MultiViewEncoder.from_config(config).eval()
    for name, buffer in encoder.named_buffers():
        if not name.endswith("num_batches_tracked"):
            buffer.uniform_(0.5, 1.5)
    path.write_bytes(serialize_module(encoder, header or config))
    return encoder


@pytest.mark.parametrize("config", [IMAGES, MIXED], ids=["images", "mixed"])
def test_round_trip(tmp_path: Path, config: EncoderConfig) -> None:
    encoder = write_encoder(tmp_path / "encoder.safetensors", config)
    loaded = load_encoder_file(tmp_path / "encoder.safetensors")
    assert loaded.config == config
    assert loaded.modalities == encoder.modalities
    assert not loaded.training
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    assert loaded.state_dict().keys() == encoder.state_dict().keys()
    for name, tensor in encoder.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)


def test_loaded_encoder_computes_the_same(tmp_path: Path) -> None:
    encoder = write_encoder(tmp_path / "encoder.safetensors", MIXED)
    loaded = load_encoder_file(tmp_path / "encoder.safetensors")
    groups = (
        ViewGroup("text", (0,), torch.randn(3, 5, 6), torch.tensor([5, 1, 3])),
        ViewGroup("audio", (1,), torch.randn(3, 4)),
        ViewGroup("caption", (2,), torch.randint(256, (3, 9), dtype=torch.uint8), torch.tensor([2, 9, 4])),
        ViewGroup("image", (3, 4), torch.rand(6, 1, 16, 16)),
    )
    batch = ViewBatch(groups, torch.arange(3))
    torch.testing.assert_close(loaded(batch), encoder(batch), atol=1e-5, rtol=1e-4)


def test_weights_that_do_not_fit_raise(tmp_path: Path) -> None:
    path = tmp_path / "encoder.safetensors"
    write_encoder(path, make_image_config(width=0.25), IMAGES)
    with pytest.raises(
        EncoderError, match=r"do not fit encoders of image: .*encoders\.0\.encoder\.conv1\.weight is \(16, 3, 3, 3\)"
    ):
        load_encoder_file(path)
    write_encoder(path, make_image_config("resnet18", width=0.125, stem="small-strided"), IMAGES)
    with pytest.raises(EncoderError, match=r"unexpected encoders\.0\.encoder\.layer1\.1\..*, and \d+ more"):
        load_encoder_file(path)


def test_encoder_of_a_user_cannot_be_built(tmp_path: Path) -> None:
    path = tmp_path / "encoder.safetensors"
    write_encoder(path, IMAGES, make_image_config(CUSTOM))
    with pytest.raises(EncoderError, match=r"the encoder of image in .* is a module of yours"):
        load_encoder_file(path)


def test_encoders_of_torchvision_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their dimension is that of their output for an image, which they compute though the file is read on `meta`."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features, self.fc = nn.Conv2d(3, 5, 3), nn.Linear(5, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.features(x).mean((2, 3)) + torch.zeros(1))

    module = types.ModuleType("torchvision.models")
    module.get_model = lambda name, **_: Model()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchvision", types.ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.models", module)
    encoder = write_encoder(tmp_path / "encoder.safetensors", make_image_config("torchvision:tiny"))
    loaded = load_encoder_file(tmp_path / "encoder.safetensors")
    assert loaded.dim == encoder.dim == 5
    images = torch.rand(4, 3, 16, 16)
    torch.testing.assert_close(loaded.get_encoder("image")(images), encoder.get_encoder("image")(images))


def make_header(name: str = "resnet-small", options: object = None, **changes: object) -> dict[str, Any]:
    spec = {"kind": "image", "name": name, "options": options or {}, "size": 16} | changes
    spec = {key: value for key, value in spec.items() if value is not None}
    return {"encoders": {"image": spec}, "modalities": {"image": "image"}, "dim": None}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (None, "has no encoder config in its header"),
        ("{", "invalid encoder config in the header"),
        ([1], "invalid encoder config in the header"),
        ({"encoder": "resnet-small", "options": {}, "size": 16}, "invalid encoder config in the header: KeyError"),
        (make_header(size=None), "invalid encoder config in the header: KeyError"),
        (make_header(size="16"), "invalid encoder config in the header"),
        (make_header(size=10**9), "invalid encoder config in the header"),
        (make_header(size=0), "invalid encoder config in the header.*invalid image size 0"),
        (make_header(options={"pretrained": True}), "invalid encoder config in the header: KeyError"),
        (make_header("timm:hf-hub:stranger/model"), "invalid encoder config in the header"),
        (make_header("resnet18", {"width": 200}), "do not fit encoders of image"),
        (make_header("resnet18", {"width": float("inf")}), "infinity"),
        (make_header("resnet7"), "no encoder 'resnet7'"),
        (make_header(options={"stem": "odd"}), "stem must be one of"),
        (make_header(kind="socket"), "invalid encoder config in the header.*for 'socket'"),
        (make_header(kind="vector", name="resnet-small"), "no encoder 'resnet-small' for vector"),
        (make_header() | {"modalities": {"image": "photo"}}, "every encoder needs a modality"),
        (make_header() | {"modalities": {}}, "invalid encoder config in the header"),
        (make_header() | {"dim": 10**9}, "invalid encoder config in the header"),
        (make_header() | {"dim": "16"}, "invalid encoder config in the header"),
    ],
)
def test_invalid_headers_raise(tmp_path: Path, header: object, message: str) -> None:
    path = tmp_path / "encoder.safetensors"
    text = header if isinstance(header, str) else json.dumps(header)
    save_file({"a": torch.zeros(1)}, path, None if header is None else {"manyviews": text})
    with pytest.raises(EncoderError, match=message):
        load_encoder_file(path)


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        ("encoders text options features", 10**12),
        ("encoders text options features", "6"),
        ("encoders text kind", "socket"),
        ("encoders text", 6),
        ("encoders", {}),
        ("modalities", {}),
        ("modalities side", "none"),
        ("encoders audio options dim", 10**9),
        ("encoders audio options dropout", "much"),
        ("encoders caption options layers", 10**6),
        ("encoders caption options layers", 4000),
        ("encoders caption options heads", 0),
        ("encoders caption options heads", 5),
        ("encoders caption options features", 5),
        ("encoders image name", "../../etc"),
        ("encoders image name", "resnet18"),
        ("encoders image size", 4097),
        ("dim", 8),
        ("dim", -1),
    ],
    ids=str,
)
def test_forged_headers_raise_without_allocating(keys: str, value: object, tmp_path: Path) -> None:
    path = tmp_path / "encoder.safetensors"
    weights = {name: tensor.contiguous() for name, tensor in write_encoder(path, MIXED).state_dict().items()}
    header = copy.deepcopy(asdict(MIXED))
    *parents, last = keys.split()
    inner: dict[str, Any] = header
    for key in parents:
        inner = inner[key]
    inner[last] = value
    save_file(weights, path, {"manyviews": json.dumps(header)})
    with pytest.raises(EncoderError):
        load_encoder_file(path)


def test_corrupt_files_raise(tmp_path: Path) -> None:
    path = tmp_path / "encoder.safetensors"
    write_encoder(path, IMAGES)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(EncoderError, match="cannot read"):
        load_encoder_file(path)
    with pytest.raises(EncoderError, match="cannot read"):
        load_encoder_file(tmp_path / "nothing.safetensors")
