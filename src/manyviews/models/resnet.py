"""ResNets whose parameters have torchvision's names, so that weights go either way.

`encoder.load_state_dict(weights)` takes torchvision's, whose classifier is left out;
`torchvision_model.load_state_dict(encoder.state_dict(), strict=False)` takes ours.

Without the classifier: an image (B, 3, H, W) becomes a representation h (B, dim). The stem is ImageNet's (7 x 7, stride
2, max-pool) or, for small images, a 3 x 3 convolution ("small"), which may halve the resolution to be cheaper
("strided"). Initialised as torchvision's, which is what the released code trains from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

Stem = Literal["imagenet", "small", "strided"]


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _downsample(channels, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.relu(out + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    """The stride is in the 3 x 3 convolution, as torchvision has it (ResNet v1.5)."""

    expansion = 4

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, width * self.expansion, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(width * self.expansion)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _downsample(channels, width * self.expansion, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return self.relu(out + (x if self.downsample is None else self.downsample(x)))


def _downsample(channels: int, out: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and channels == out:
        return None
    return nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))


class ResNet(nn.Module):
    """A ResNet from images (B, 3, H, W) to representations (B, dim).

    Args:
        block: `BasicBlock` or `Bottleneck`.
        blocks: how many of them in each stage; each stage after the first halves the resolution.
        stem: "imagenet", "small" or "strided".
        width: multiplies the channels (64 in the first stage).

    Examples:
        >>> resnet = ResNet(BasicBlock, [2, 2, 2, 2], stem="small")
        >>> resnet(torch.rand(2, 3, 32, 32)).shape, resnet.dim
        (torch.Size([2, 512]), 512)
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        blocks: Sequence[int],
        stem: Stem = "imagenet",
        width: float = 1.0,
    ) -> None:
        super().__init__()
        if stem not in get_args(Stem):
            raise ValueError(f"stem must be one of {', '.join(get_args(Stem))}, got {stem!r}")
        base = round(64 * width)
        if base < 1:
            raise ValueError(f"width must leave at least one channel of 64, got {width}")
        if stem == "imagenet":
            self.conv1 = nn.Conv2d(3, base, 7, 2, 3, bias=False)
            self.maxpool: nn.Module = nn.MaxPool2d(3, 2, 1)
        else:
            self.conv1 = nn.Conv2d(3, base, 3, 2 if stem == "strided" else 1, 1, bias=False)
            self.maxpool = nn.Identity()
        self.bn1 = nn.BatchNorm2d(base)
        self.relu = nn.ReLU(inplace=True)
        channels = base
        self.stages = [f"layer{stage}" for stage in range(1, len(blocks) + 1)]
        for stage, (name, count) in enumerate(zip(self.stages, blocks, strict=True)):
            layers = []
            for number in range(count):
                stride = 2 if stage and not number else 1
                layers.append(block(channels, base * 2**stage, stride))
                channels = base * 2**stage * block.expansion
            self.add_module(name, nn.Sequential(*layers))
        self.dim = channels
        self.register_load_state_dict_pre_hook(_without_classifier)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                module.weight.data = module.weight.data.contiguous(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] == 1:
            x = x.expand(-1, 3, -1, -1)  # grey as colour
        x = x.contiguous(memory_format=torch.channels_last)
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for name in self.stages:
            x = getattr(self, name)(x)
        return x.mean((2, 3))


def _without_classifier(_: nn.Module, state: dict[str, Tensor], prefix: str, *_rest: object) -> None:
    """Let torchvision's weights load as they are: its classifier has no place here."""
    for name in ("fc.weight", "fc.bias"):
        state.pop(prefix + name, None)


def resnet18(stem: Stem = "imagenet", width: float = 1.0) -> ResNet:
    """ResNet-18: images (B, 3, H, W) to representations (B, 512 width).

    Examples:
        >>> resnet18(stem="small")(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 512])
    """
    return ResNet(BasicBlock, [2, 2, 2, 2], stem, width)


def resnet50(stem: Stem = "imagenet", width: float = 1.0) -> ResNet:
    """ResNet-50: images (B, 3, H, W) to representations (B, 2048 width).

    Examples:
        >>> resnet50(width=0.25)(torch.zeros(2, 3, 64, 64)).shape
        torch.Size([2, 512])
    """
    return ResNet(Bottleneck, [3, 4, 6, 3], stem, width)


def resnet_small(stem: Stem = "strided", width: float = 0.375) -> ResNet:
    """A block a stage, narrow, at half the resolution: for small images on a machine without a GPU.

    Examples:
        >>> resnet_small()(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 192])
    """
    return ResNet(BasicBlock, [1, 1, 1, 1], stem, width)
