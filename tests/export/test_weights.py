"""Exported encoders compute the same representations."""

import json
import re
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file

from manyviews.export import export_onnx, to_timm_model, to_torchvision_state_dict, write_timm_folder
from manyviews.models import (
    Encoder,
    EncoderConfig,
    EncoderError,
    EncoderSpec,
    MultiViewEncoder,
    get_encoder,
    serialize_module,
)
from tests.helpers.command_line import manyviews

AUDIO = EncoderSpec("vector", "mlp", {"features": 4, "dim": 16})


def make_trained(name: str, **options: object) -> torch.nn.Module:
    """An encoder whose running statistics and weights differ from the initial ones."""
    torch.manual_seed(0)
    encoder = get_encoder(name, **options)
    for parameter in encoder.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, 0.5, 0.3)
    for _ in range(3):
        encoder(torch.rand(8, 3, 32, 32))
    return encoder.eval().requires_grad_(False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "model", "stem"),
    [
        ("resnet18", {}, "resnet18", "imagenet"),
        ("resnet18", {"stem": "small", "width": 0.25}, "resnet18", "small"),
        ("resnet-small", {}, "resnet18", "small-strided"),
        ("resnet-small", {"stem": "imagenet"}, "resnet18", "imagenet"),
        ("resnet50", {"width": 0.5}, "resnet50", "imagenet"),
    ],
)
def test_torchvision_resnet_computes_the_same_representation(name: str, options: dict, model: str, stem: str) -> None:
    """Our full ResNets stand in for torchvision's: `tests/models` checks that names and shapes agree."""
    encoder = make_trained(name, **options)
    state, lines = to_torchvision_state_dict(encoder, EncoderSpec("image", name, options, 32))
    assert f"torchvision.models.{model}()" in lines
    assert ("conv1" in lines) == (stem != "imagenet")
    full = get_encoder(model, stem=stem).eval()
    full.load_state_dict(state)
    images = torch.rand(4, 3, 32, 32)
    expected, exported = encoder(images), full(images)
    torch.testing.assert_close(exported[:, : expected.shape[1]], expected)
    assert not exported[:, expected.shape[1] :].any()


def test_loading_code_runs() -> None:
    encoder = make_trained("resnet-small")
    state, lines = to_torchvision_state_dict(encoder, EncoderSpec("image", "resnet-small", {}, 32))

    def resnet18() -> torch.nn.Module:
        model = get_encoder("resnet18")
        model.fc = torch.nn.Linear(512, 1000)
        forward = model.forward
        model.forward = lambda x: model.fc(forward(x))
        return model

    torchvision = SimpleNamespace(models=SimpleNamespace(resnet18=resnet18))
    scope = {"torchvision": torchvision, "torch": torch, "weights": state}
    exec(lines, scope)
    images = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(scope["model"].eval()(images)[:, :192], encoder(images))


class External(torch.nn.Module):
    """A stand-in for a model of timm or torchvision, which need not be installed."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.conv, self.drop = torch.nn.Conv2d(3, 4, 3), torch.nn.Identity()
        self.classifier = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU())
        self.classifier.append(torch.nn.Linear(5, num_classes) if num_classes else torch.nn.Identity())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.conv(x).mean((2, 3)))


MEAN, STD = [0.5, 0.25, 0.5], [0.5, 0.5, 0.25]


def normalize(images: torch.Tensor) -> torch.Tensor:
    return (images - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]


@pytest.fixture
def external(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Stand-ins for timm and torchvision.models; timm loads files as the real one does."""

    def create_model(name: str, num_classes: int = 10, checkpoint_path: str = "", pretrained: bool = False) -> External:
        folder = Path(name.removeprefix("local-dir:"))
        if folder.is_dir():
            assert pretrained
            config = json.loads((folder / "config.json").read_text())
            assert config["num_classes"] == config["pretrained_cfg"]["num_classes"] == 0
            name, num_classes, checkpoint_path = config["architecture"], 0, str(folder / "model.safetensors")
        assert name.partition(".")[0] == "tiny"
        model = External(num_classes)
        if checkpoint_path:
            model.load_state_dict(load_file(checkpoint_path), strict=True)
        return model

    timm = SimpleNamespace(create_model=create_model)
    torchvision = types.ModuleType("torchvision")
    torchvision.models = types.ModuleType("torchvision.models")  # type: ignore[attr-defined]
    torchvision.models.get_model = lambda name, **_: External()  # type: ignore[attr-defined]
    for name, module in (("timm", timm), ("torchvision", torchvision), ("torchvision.models", torchvision.models)):
        monkeypatch.setitem(sys.modules, name, module)
    return SimpleNamespace(timm=timm, torchvision=torchvision)


def write_external(path: Path, name: str, **options: object) -> Encoder:
    torch.manual_seed(0)
    config = EncoderConfig({"image": EncoderSpec("image", name, options, 16)}, {"image": "image"})
    encoder = Encoder(MultiViewEncoder.from_config(config))
    path.write_bytes(serialize_module(encoder.encoder, config))
    return encoder


def export_and_run(*arguments: object, **scope: object) -> Any:
    """Export, run the code that the command prints, and return the model that it has loaded."""
    done = manyviews("export", *map(str, arguments))
    assert done.returncode == 0, done.stderr
    exec(done.stdout.split("\n\n", 1)[1], scope)
    return scope["model"]


@pytest.mark.parametrize("options", [{}, {"mean": MEAN, "std": STD}], ids=["plain", "normalized"])
def test_timm_loads_its_own_model(external: SimpleNamespace, options: dict, tmp_path: Path) -> None:
    encoder = write_external(tmp_path / "e.safetensors", "timm:tiny.in1k", **options)
    images = torch.rand(2, 3, 16, 16)
    inputs = normalize(images) if options else images
    for output in (tmp_path / "timm.safetensors", tmp_path / "folder", tmp_path / "folder"):
        model = export_and_run(tmp_path / "e.safetensors", "timm", "-o", output, timm=external.timm)
        assert torch.equal(model(inputs), encoder(images))
    cfg = json.loads((tmp_path / "folder" / "config.json").read_text())["pretrained_cfg"]
    assert (cfg["mean"], cfg["std"]) == ((MEAN, STD) if options else ([0.0] * 3, [1.0] * 3))
    assert (cfg["input_size"], cfg["crop_pct"], cfg["interpolation"]) == ([3, 16, 16], 0.875, "bicubic")


@pytest.mark.parametrize("options", [{}, {"mean": MEAN, "std": STD}], ids=["plain", "normalized"])
def test_torchvision_loads_its_own_model(external: SimpleNamespace, options: dict, tmp_path: Path) -> None:
    encoder = write_external(tmp_path / "e.safetensors", "torchvision:tiny", **options)
    modules = {"torch": torch, "torchvision": external.torchvision}
    model = export_and_run(tmp_path / "e.safetensors", "torchvision", "-o", tmp_path / "tv.pth", **modules)
    images = torch.rand(2, 3, 16, 16)
    assert torch.equal(model(normalize(images) if options else images), encoder(images))
    assert isinstance(model.classifier[2], torch.nn.Identity)


def test_timm_has_the_names_of_built_in_resnets() -> None:
    encoder = make_trained("resnet18", width=0.25, stem="imagenet")
    module, model = to_timm_model(encoder, EncoderSpec("image", "resnet18", {"width": 0.25, "stem": "imagenet"}, 32))
    images = torch.rand(2, 3, 32, 32)
    assert model == "resnet18"
    torch.testing.assert_close(module.eval()(images)[:, :128], encoder(images))
    with pytest.raises(EncoderError, match="timm has no counterpart of resnet18 with the stem small: export to hub"):
        to_timm_model(encoder, EncoderSpec("image", "resnet18", {"stem": "small"}, 32))
    with pytest.raises(EncoderError, match="timm has no counterpart of torchvision:swin_t: export to hub"):
        to_timm_model(encoder, EncoderSpec("image", "torchvision:swin_t", {}, 32))


def test_folder_of_another_model_is_not_replaced(tmp_path: Path) -> None:
    spec = EncoderSpec("image", "timm:tiny", {}, 16)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(EncoderError, match="has another model, which is not replaced"):
        write_timm_folder(tmp_path, External(0), "tiny", spec)
    (tmp_path / "file").write_text("")
    with pytest.raises(EncoderError, match="cannot write"):
        write_timm_folder(tmp_path / "file", External(0), "tiny", spec)


def test_encoders_without_a_torchvision_counterpart_are_refused() -> None:
    with pytest.raises(EncoderError, match="wider than torchvision's resnet18"):
        to_torchvision_state_dict(
            get_encoder("resnet18", width=1.5), EncoderSpec("image", "resnet18", {"width": 1.5}, 32)
        )
    with pytest.raises(EncoderError, match="no counterpart of timm:vit"):
        to_torchvision_state_dict(torch.nn.Linear(2, 2), EncoderSpec("image", "timm:vit", {}, 32))


@pytest.mark.slow
@pytest.mark.parametrize("stem", ["small-strided", "imagenet"])
def test_onnxruntime_computes_the_same_representation_for_any_batch(stem: str) -> None:
    encoder = make_trained("resnet-small", stem=stem)
    content = export_onnx(encoder, 32)
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    for batch in (1, 7):
        images = torch.rand(batch, 3, 32, 32)
        (h,) = session.run(None, {"images": images.numpy()})
        torch.testing.assert_close(torch.from_numpy(h), encoder(images), atol=1e-5, rtol=1e-4)
    assert not re.search(rb"[\\/][\w.-]+\.py", content)  # no source paths
    onnx.checker.check_model(onnx.load_from_string(content), full_check=True)


@pytest.mark.slow
def test_an_encoder_with_an_adapter_can_be_exported() -> None:
    """Encoders of several modalities have representations of one dimension, by a linear layer."""
    torch.manual_seed(0)
    specs = {"image": EncoderSpec("image", "resnet-small", {"width": 0.125}, 16), "audio": AUDIO}
    encoder = MultiViewEncoder.from_config(EncoderConfig(specs, {"front": "image", "audio": "audio"}, 24)).eval()
    module, spec = Encoder(encoder).get_image_encoder()
    session = onnxruntime.InferenceSession(export_onnx(module, spec.size), providers=["CPUExecutionProvider"])
    images = torch.rand(3, 3, 16, 16)
    (h,) = session.run(None, {"images": images.numpy()})
    assert h.shape == (3, 24)
    expected = Encoder(encoder).encode({"front": images})[0][:, 0]
    torch.testing.assert_close(torch.from_numpy(h), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_export_with_different_outputs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyviews.export.weights.TOLERANCE", -1.0)
    with pytest.raises(EncoderError, match="ONNX export check failed"):
        export_onnx(make_trained("resnet-small", width=0.125), 16)


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    with pytest.raises(ValueError, match=r"pip install 'manyviews\[onnx\]'"):
        export_onnx(make_trained("resnet-small", width=0.125), 16)
