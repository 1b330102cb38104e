"""Exported encoders compute the same representations."""

import re
from types import SimpleNamespace

import onnx
import onnxruntime
import pytest
import torch

from manyviews.export import export_onnx, to_torchvision_state_dict
from manyviews.models import Encoder, EncoderConfig, EncoderError, EncoderSpec, MultiViewEncoder, get_encoder

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


def test_torchvision_models_keep_their_names() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3))
    state, lines = to_torchvision_state_dict(model, EncoderSpec("image", "torchvision:regnet_y_400mf", {}, 32))
    assert state.keys() == model.state_dict().keys()
    assert "get_model('regnet_y_400mf')" in lines


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
