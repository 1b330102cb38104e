"""Encoders by name: ours, timm's and torchvision's."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from manyviews.models.resnet import resnet18, resnet50, resnet_small

ENCODERS: dict[str, Callable[..., nn.Module]] = {
    "resnet18": resnet18,
    "resnet50": resnet50,
    "resnet-small": resnet_small,
}


def get_encoder(name: str, **options: Any) -> nn.Module:
    """An encoder from images (B, 3, H, W) to representations (B, dim).

    `timm:NAME` and `torchvision:NAME` make that package's model without its classifier, where it is installed.

    Examples:
        >>> get_encoder("resnet18", stem="small").dim
        512
    """
    package, _, model = name.partition(":")
    if model and package in ("timm", "torchvision"):
        return _foreign(package, model, options)
    if name not in ENCODERS:
        near = difflib.get_close_matches(name, ENCODERS, n=1)
        hint = f": did you mean {near[0]}?" if near else "."
        known = ", ".join([*ENCODERS, "timm:NAME", "torchvision:NAME"])
        raise ValueError(f"no encoder {name!r}{hint} There are {known}")
    return ENCODERS[name](**options)


def _foreign(package: str, model: str, options: dict[str, Any]) -> nn.Module:
    try:
        library = importlib.import_module(package if package == "timm" else "torchvision.models")
    except (ImportError, RuntimeError) as error:  # torchvision raises RuntimeError beside another torch
        raise ValueError(f"{package}:{model} needs {package}, which cannot be imported here: {error}") from error
    if package == "timm":
        made: nn.Module = library.create_model(model, num_classes=0, **options)
        return made
    made = library.get_model(model, **options)
    last = [name for name, module in made.named_modules() if isinstance(module, nn.Linear)]
    if not last:
        raise ValueError(f"torchvision:{model}: cannot find its classifier to leave it out")
    parent, _, name = last[-1].rpartition(".")
    setattr(made.get_submodule(parent), name, nn.Identity())
    return made


def representation_dim(encoder: nn.Module, image: Tensor | None = None) -> int:
    """The length of an encoder's representations: its `dim`, timm's `num_features`, or what it gives for an image.

    Examples:
        >>> representation_dim(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()))
        3
    """
    for name in ("dim", "num_features"):
        dim = getattr(encoder, name, None)
        if isinstance(dim, int) and not isinstance(encoder, (nn.Softmax, nn.modules.batchnorm._BatchNorm)):
            return dim
    like = next(encoder.parameters(), torch.zeros(()))
    image = torch.zeros(1, 3, 64, 64) if image is None else image
    training = [(module, module.training) for module in encoder.modules()]
    try:
        with torch.no_grad():
            h = encoder.eval()(image.to(like))
    except (RuntimeError, ValueError, AssertionError, TypeError) as error:
        raise ValueError(
            f"cannot tell the length of the encoder's representations from an image {tuple(image.shape)} ({error}): "
            "give it as Embedder(encoder, dim=...)"
        ) from error
    finally:
        for module, mode in training:
            module.training = mode
    if not isinstance(h, Tensor) or h.dim() != 2:
        shape = tuple(h.shape) if isinstance(h, Tensor) else type(h).__name__
        raise ValueError(f"an encoder must map images (B, 3, H, W) to vectors (B, dim), this one gives {shape}")
    return h.shape[1]
