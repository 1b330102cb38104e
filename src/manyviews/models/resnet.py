"""ResNets with torchvision's parameter names and initialization, without the classifier.

`encoder.load_state_dict(weights)` accepts torchvision weights and drops their classifier;
`torchvision_model.load_state_dict(encoder.state_dict(), strict=False)` accepts ours.

The stem is ImageNet's (7 x 7, stride 2, max-pool), or for small images a 3 x 3 convolution with stride 1 ("small") or 2
("small-strided").
"""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

Stem = Literal["imagenet", "small", "small-strided"]


class _Conv2d(nn.Conv2d):
    """A convolution that has no stride on images of one pixel, where it changes nothing.

    The gradient of the weights with a stride is wrong there in oneDNN 3.12, in bfloat16: it reads uninitialized memory.
    """

    def forward(self, x: Tensor) -> Tensor:
        stride = (1, 1) if x.shape[2:] == (1, 1) else self.stride
        return conv2d(x, self.weight, self.bias, stride, self.padding)


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _Conv2d(channels, width, 3, stride, 1, bias=False)
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
    """Bottleneck block with the stride in the 3 x 3 convolution, as in torchvision (ResNet v1.5)."""

    expansion = 4

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _Conv2d(width, width, 3, stride, 1, bias=False)
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
    return nn.Sequential(_Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))


class ResNet(nn.Module):
    """A ResNet from images (B, 3, H, W) to representations (B, dim).

    Args:
        block: `BasicBlock` or `Bottleneck`.
        blocks: number of blocks in each stage; each stage after the first halves the resolution.
        stem: "imagenet", "small" or "small-strided".
        width: multiplier of the channels (64 in the first stage).

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
            raise ValueError(f"width must give at least one channel (64 * width), got {width}")
        if stem == "imagenet":
            self.conv1 = nn.Conv2d(3, base, 7, 2, 3, bias=False)
            self.maxpool: nn.Module = nn.MaxPool2d(3, 2, 1)
        else:
            self.conv1 = nn.Conv2d(3, base, 3, 2 if stem == "small-strided" else 1, 1, bias=False)
            self.maxpool = nn.Identity()
        self.bn1 = nn.BatchNorm2d(base)
        self.relu = nn.ReLU(inplace=True)
        channels = base
        self.stages = [f"layer{stage}" for stage in range(1, len(blocks) + 1)]
        for stage, (name, count) in enumerate(zip(self.stages, blocks, strict=True)):
            layers = []
            for i in range(count):
                stride = 2 if stage and not i else 1
                layers.append(block(channels, base * 2**stage, stride))
                channels = base * 2**stage * block.expansion
            self.add_module(name, nn.Sequential(*layers))
        self.dim = channels
        self.register_load_state_dict_pre_hook(_drop_classifier_weights)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                module.weight.data = module.weight.data.contiguous(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 4:
            raise ValueError(f"images must be (B, C, H, W), got {tuple(x.shape)}; several views are (B, N, C, H, W)")
        if x.shape[1] == 1:
            x = x.expand(-1, 3, -1, -1)
        x = x.contiguous(memory_format=torch.channels_last)
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for name in self.stages:
            x = getattr(self, name)(x)
        return x.mean((2, 3))


def _drop_classifier_weights(_: nn.Module, state: dict[str, Tensor], prefix: str, *_rest: object) -> None:
    """Drop the classifier of torchvision weights before they are loaded."""
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


def resnet_small(stem: Stem = "small-strided", width: float = 0.375) -> ResNet:
    """A narrow ResNet with one block per stage at half the resolution, for small images on CPUs.

    Examples:
        >>> resnet_small()(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 192])
    """
    return ResNet(BasicBlock, [1, 1, 1, 1], stem, width)
