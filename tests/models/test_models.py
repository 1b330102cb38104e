"""Encoders: torchvision's parameter names, sizes, and batch norm over views."""

import sys
import types

import pytest
import torch
from torch import nn

from manyviews.models import (
    MultiViewEncoder,
    MultiViewHead,
    MultiViewModel,
    ProjectionHead,
    get_encoder,
    get_representation_dim,
    resnet18,
    resnet50,
    resnet_small,
)

NO_HEAD = MultiViewHead({"": nn.Identity()})


@pytest.mark.parametrize("name", ["resnet_small", "resnet18"])
def test_gradients_of_images_of_few_pixels_are_finite_in_bfloat16(name: str) -> None:
    """The later stages have one pixel there, where a gradient of oneDNN reads memory that was never written."""
    encoder = {"resnet_small": resnet_small(width=0.125), "resnet18": resnet18("small", width=0.125)}[name]
    x = torch.randn(6, 3, 4, 4)
    expected = encoder(x)
    for _ in range(3):
        freed = [torch.full((2**size,), torch.nan) for size in range(8, 20) for _ in range(20)]
        del freed
        with torch.autocast("cpu", torch.bfloat16):
            h = encoder(x)
        h.float().square().sum().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in encoder.parameters())
    assert expected.isfinite().all()


def test_images_of_one_pixel_need_no_stride() -> None:
    block = resnet18("small", width=0.125).layer2[0]
    for strided in (block.conv1, block.downsample[0]):
        plain = nn.Conv2d(8, 16, strided.kernel_size, 2, strided.padding, bias=False)
        plain.load_state_dict(strided.state_dict())
        for size in (1, 2, 5):
            x = torch.randn(6, 8, size, size)
            torch.testing.assert_close(strided(x), plain(x))
            grads = [torch.autograd.grad(conv(x).square().sum(), conv.weight)[0] for conv in (strided, plain)]
            torch.testing.assert_close(*grads)


def torchvision_names(block: str, blocks: list[int], stem: int) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of torchvision's ResNet parameters, without the classifier."""
    shapes: dict[str, tuple[int, ...]] = {"conv1.weight": (64, 3, stem, stem)}

    def norm(name: str, channels: int) -> None:
        for part in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{name}.{part}"] = (channels,)
        shapes[f"{name}.num_batches_tracked"] = ()

    norm("bn1", 64)
    channels = 64
    for stage, count in enumerate(blocks, 1):
        width = 64 * 2 ** (stage - 1)
        out = width * (4 if block == "bottleneck" else 1)
        for i in range(count):
            at = f"layer{stage}.{i}"
            sizes = [(width, channels, 3), (width, width, 3)]
            if block == "bottleneck":
                sizes = [(width, channels, 1), (width, width, 3), (out, width, 1)]
            for k, (to, source, side) in enumerate(sizes, 1):
                shapes[f"{at}.conv{k}.weight"] = (to, source, side, side)
                norm(f"{at}.bn{k}", to)
            if i == 0 and (stage > 1 or channels != out):
                shapes[f"{at}.downsample.0.weight"] = (out, channels, 1, 1)
                norm(f"{at}.downsample.1", out)
            channels = out
    return shapes


@pytest.mark.parametrize(
    ("encoder", "block", "blocks", "stem", "count"),
    [
        (resnet18(), "basic", [2, 2, 2, 2], 7, 11_176_512),
        (resnet18("small"), "basic", [2, 2, 2, 2], 3, 11_168_832),
        (resnet50(), "bottleneck", [3, 4, 6, 3], 7, 23_508_032),  # 25,557,032 minus 2,049,000 of the classifier
    ],
)
def test_names_shapes_and_counts_match_torchvision(
    encoder: nn.Module, block: str, blocks: list[int], stem: int, count: int
) -> None:
    state = {name: tuple(value.shape) for name, value in encoder.state_dict().items()}
    assert state == torchvision_names(block, blocks, stem)
    assert sum(p.numel() for p in encoder.parameters()) == count


def test_torchvision_weights_load() -> None:
    shapes = torchvision_names("basic", [2, 2, 2, 2], 7) | {"fc.weight": (1000, 512), "fc.bias": (1000,)}
    weights = {name: torch.full(shape, 0.5) for name, shape in shapes.items()}
    encoder = resnet18()
    encoder.load_state_dict(weights)
    assert (encoder.layer4[1].bn2.running_var == 0.5).all()
    MultiViewModel(resnet18()).encoder.get_encoder("").load_state_dict(weights)
    with pytest.raises(RuntimeError, match="size mismatch for conv1"):
        resnet18("small").load_state_dict(weights)


@pytest.mark.parametrize(("stem", "side"), [("small", 4), ("small-strided", 2), ("imagenet", 1)])
def test_stem_sets_the_resolution(stem: str, side: int) -> None:
    encoder = resnet_small(stem, width=0.25)
    sizes = []
    encoder.layer4.register_forward_hook(lambda _, __, out: sizes.append(out.shape[2:]))
    assert encoder(torch.rand(2, 3, 32, 32)).shape == (2, encoder.dim) == (2, 128)
    assert sizes == [(side, side)]


def test_small_encoder_is_small_and_channels_last() -> None:
    encoder = get_encoder("resnet-small")
    assert sum(p.numel() for p in encoder.parameters()) < 1_500_000
    outputs = []
    encoder.layer1.register_forward_hook(lambda _, __, out: outputs.append(out))
    encoder(torch.rand(2, 3, 32, 32))
    assert outputs[0].is_contiguous(memory_format=torch.channels_last)


def test_projection_head_matches_the_paper() -> None:
    head = ProjectionHead(512)
    kinds = [type(layer).__name__ for layer in head]
    assert kinds == ["Linear", "BatchNorm1d", "ReLU", "Linear", "BatchNorm1d"]
    assert head(torch.randn(8, 512)).shape == (8, 128)
    assert [name for name, p in head.named_parameters() if not p.requires_grad] == ["4.bias"]
    assert not head[4].bias.any()


def test_views_share_batch_norm_statistics_unless_per_view() -> None:
    encoder = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(12, affine=False))
    views = torch.rand(16, 3, 3, 2, 2) + torch.tensor([0.0, 5.0, 9.0])[None, :, None, None, None]
    shared = MultiViewModel(encoder, NO_HEAD, dim=12)(views).h
    assert shared.mean((0, 2))[0] < -1  # the darkest view stays dark
    torch.testing.assert_close(shared.mean((0, 1)), torch.zeros(12), rtol=0, atol=1e-5)
    per_view = MultiViewModel(encoder, NO_HEAD, dim=12, per_view_batch_norm=True)(views).h
    torch.testing.assert_close(per_view.mean(0), torch.zeros(3, 12), rtol=0, atol=1e-5)


def test_encoder_runs_once_per_size() -> None:
    calls = []

    class Counting(nn.Module):
        dim = 3

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            calls.append(tuple(x.shape))
            return x.mean((2, 3))

    h, z = MultiViewModel(Counting())([torch.rand(4, 2, 3, 16, 16), torch.rand(4, 6, 3, 8, 8)])
    assert calls == [(8, 3, 16, 16), (24, 3, 8, 8)]
    assert h.shape == (4, 8, 3)
    assert z.shape == (4, 8, 128)


def test_groups_of_one_size_form_one_batch() -> None:
    norm = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.BatchNorm1d(3, affine=False))
    model = MultiViewModel(norm, NO_HEAD, dim=3)
    groups = [torch.rand(4, 2, 3, 8, 8), torch.rand(4, 1, 3, 4, 4), torch.rand(4, 3, 3, 8, 8) + 5]
    h = model(groups).h
    together = model(torch.cat([groups[0], groups[2]], 1)).h
    torch.testing.assert_close(h[:, [0, 1, 3, 4, 5]], together)
    assert h.shape == (4, 6, 3)


def test_resnet_accepts_gray_images() -> None:
    encoder = resnet_small(width=0.25).eval()
    gray = torch.rand(2, 1, 8, 8)
    torch.testing.assert_close(encoder(gray), encoder(gray.expand(-1, 3, -1, -1)))


def test_get_representation_dim_does_not_change_the_encoder() -> None:
    frozen = nn.BatchNorm2d(3).eval()
    encoder = nn.Sequential(frozen, nn.AdaptiveAvgPool2d(2), nn.Flatten()).half()
    encoder.training = True
    assert get_representation_dim(encoder) == 12
    assert encoder.training
    assert not frozen.training
    with pytest.raises(
        ValueError, match=r"representations of the encoder \(an image .* cannot be encoded: .*\): pass dim=\.\.\."
    ):
        MultiViewModel(nn.Sequential(nn.Flatten(), nn.Linear(5, 4)))


def test_any_module_can_be_an_encoder() -> None:
    encoder = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten())
    assert get_representation_dim(encoder) == 12
    assert MultiViewModel(encoder)(torch.rand(4, 2, 3, 9, 9)).z.shape == (4, 2, 128)
    assert encoder.training


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: get_encoder("resnet19"), "no encoder 'resnet19': did you mean resnet18"),
        (lambda: get_encoder("timm:vit_tiny"), "timm:vit_tiny needs timm"),
        (lambda: resnet18("big"), "stem must be one of imagenet, small, small-strided, got 'big'"),
        (lambda: resnet18(width=0.001), "width must give"),
        (lambda: MultiViewModel(nn.Conv2d(3, 4, 1)), "must map images .* to vectors"),
        (lambda: MultiViewModel(nn.Flatten(), dim=3)(torch.rand(2, 3)), r"views must be .* got \(2, 3\)"),
        (lambda: MultiViewModel(nn.Flatten(), dim=3)([]), "views must be .* got none"),
        (
            lambda: MultiViewModel(nn.Flatten(), dim=3)([torch.rand(2, 3, 4), torch.rand(3, 3, 4)]),
            r"views must be .* got \(2, 3, 4\), \(3, 3, 4\)",
        ),
        (
            lambda: MultiViewModel(nn.Flatten(), dim=3)(torch.rand(2, 3, 4, 4)),
            r"must map views .* to \(P, 3\), this one maps views \(6, 4, 4\) to \(6, 16\)",
        ),
        (lambda: MultiViewModel(resnet18())(torch.rand(2, 3, 4, 4)), r"must be \(B, C, H, W\), got \(6, 4, 4\)"),
    ],
)
def test_invalid_input_raises(make: object, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


def test_classifiers_of_external_encoders_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(3, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(self.features(x).flatten(1))

    module = types.ModuleType("torchvision.models")
    module.get_model = lambda name, **_: Model()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchvision", types.ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.models", module)
    assert get_representation_dim(get_encoder("torchvision:resnet18")) == 3


def test_initialization_is_kaiming_fan_out() -> None:
    torch.manual_seed(0)
    weight = resnet18().layer3[0].conv2.weight
    assert abs(float(weight.detach().std()) - (2 / (256 * 9)) ** 0.5) < 1e-3


def test_a_plain_head_is_wrapped_for_one_encoder() -> None:
    encoder, head = nn.Sequential(nn.Flatten(), nn.Linear(48, 8)), nn.Linear(8, 5)
    model, views = MultiViewModel(encoder, head, dim=8), torch.rand(4, 3, 3, 4, 4)
    h, z = model(views)
    assert torch.equal(z, head(h))
    two = MultiViewEncoder({"a": nn.Linear(3, 8), "b": nn.Linear(4, 8)}, encoder_dims={"a": 8, "b": 8})
    with pytest.raises(ValueError, match="several encoders need a MultiViewHead"):
        MultiViewModel(two, head)
