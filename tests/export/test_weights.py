"""Encoders in other programs give the same representations."""

import re
from types import SimpleNamespace

import onnx
import onnxruntime
import pytest
import torch

from manyviews.export import onnx_file
from manyviews.export.weights import torchvision_state
from manyviews.models import EncoderError, ImageEncoder, get_encoder
from manyviews.models.saved import Description


def trained(name: str, **options: object) -> torch.nn.Module:
    """With running statistics and weights unlike those of a new one."""
    torch.manual_seed(0)
    encoder = get_encoder(name, **options)
    for parameter in encoder.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, 0.5, 0.3)
    for _ in range(3):
        encoder(torch.rand(8, 3, 32, 32))
    return encoder.eval().requires_grad_(False)


@pytest.mark.parametrize(
    ("name", "options", "model", "stem"),
    [
        ("resnet18", {}, "resnet18", "imagenet"),
        ("resnet18", {"stem": "small", "width": 0.25}, "resnet18", "small"),
        ("resnet-small", {}, "resnet18", "strided"),
        ("resnet-small", {"stem": "imagenet"}, "resnet18", "imagenet"),
        ("resnet50", {"width": 0.5}, "resnet50", "imagenet"),
    ],
)
def test_torchvisions_resnet_gives_the_same_representation(name: str, options: dict, model: str, stem: str) -> None:
    """Our full ResNets have torchvision's names and shapes, which `tests/models` holds them to."""
    encoder = trained(name, **options)
    state, lines = torchvision_state(encoder, Description(name, options, 32))
    assert f"torchvision.models.{model}()" in lines
    assert ("conv1" in lines) == (stem != "imagenet")
    full = get_encoder(model, stem=stem).eval()
    full.load_state_dict(state)
    images = torch.rand(4, 3, 32, 32)
    ours, theirs = encoder(images), full(images)
    torch.testing.assert_close(theirs[:, : ours.shape[1]], ours)
    assert not theirs[:, ours.shape[1] :].any()


def test_the_lines_that_load_it_are_python() -> None:
    encoder = trained("resnet-small")
    state, lines = torchvision_state(encoder, Description("resnet-small", {}, 32))

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


def test_torchvisions_own_models_keep_their_names() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3))
    state, lines = torchvision_state(model, Description("torchvision:regnet_y_400mf", {}, 32))
    assert state.keys() == model.state_dict().keys()
    assert "get_model('regnet_y_400mf')" in lines


def test_what_torchvision_has_not_is_named() -> None:
    with pytest.raises(EncoderError, match="wider than torchvision's resnet18"):
        torchvision_state(get_encoder("resnet18", width=1.5), Description("resnet18", {"width": 1.5}, 32))
    with pytest.raises(EncoderError, match="no counterpart of timm:vit"):
        torchvision_state(torch.nn.Linear(2, 2), Description("timm:vit", {}, 32))


@pytest.mark.parametrize("stem", ["strided", "imagenet"])
def test_onnxruntime_gives_the_same_representation_for_any_batch(stem: str) -> None:
    encoder = ImageEncoder(trained("resnet-small", stem=stem), size=32)
    content = onnx_file(encoder)
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    for batch in (1, 7):
        images = torch.rand(batch, 3, 32, 32)
        (found,) = session.run(None, {"images": images.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), encoder(images), atol=1e-5, rtol=1e-4)
    assert not re.search(rb"[\\/][\w.-]+\.py", content)  # where we stand on whose disk
    onnx.checker.check_model(onnx.load_from_string(content), full_check=True)


def test_an_export_that_differs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyviews.export.weights.TOLERANCE", -1.0)
    with pytest.raises(EncoderError, match="other representations"):
        onnx_file(ImageEncoder(trained("resnet-small", width=0.125), size=16))


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    with pytest.raises(ValueError, match=r"pip install 'manyviews\[onnx\]'"):
        onnx_file(ImageEncoder(trained("resnet-small", width=0.125), size=16))
