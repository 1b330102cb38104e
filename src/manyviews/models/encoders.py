"""Image encoders by name: built in, from timm or from torchvision."""

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from manyviews.models.hf_encoders import Normalize
from manyviews.models.resnet import resnet18, resnet50, resnet_small
from manyviews.utils import suggest

ENCODERS: dict[str, Callable[..., nn.Module]]
ENCODERS = {"resnet18": resnet18, "resnet50": resnet50, "resnet-small": resnet_small}


def get_encoder(name: str, **options: Any) -> nn.Module:
    """Build an encoder from images (B, 3, H, W) to representations (B, dim).

    `timm:NAME` and `torchvision:NAME` build a model of that package (which must be installed) without its classifier;
    with the options `mean` and `std`, of the images that it was trained on, it normalizes its images by them.

    Examples:
        >>> get_encoder("resnet18", stem="small").dim
        512
    """
    package, _, model = name.partition(":")
    if model and package in ("timm", "torchvision"):
        mean, std = options.pop("mean", None), options.pop("std", None)
        encoder = create_external(package, model, options)
        return encoder if mean is None or std is None else NormalizedEncoder(encoder, mean, std)
    if name not in ENCODERS:
        raise ValueError(f"no encoder {name!r}{suggest(name, [*ENCODERS, 'timm:NAME', 'torchvision:NAME'])}")
    return ENCODERS[name](**options)


class NormalizedEncoder(nn.Module):
    """A model of another library, for images (B, 3, H, W) in [0, 1], which it normalizes first."""

    def __init__(self, model: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.normalize, self.model = Normalize(mean, std), model

    def forward(self, images: Tensor) -> Tensor:
        h: Tensor = self.model(self.normalize(images))
        return h


def import_external(package: str, model: str) -> Any:
    """Import timm or torchvision's models; raise a ValueError if it cannot be imported."""
    try:
        return importlib.import_module(package if package == "timm" else "torchvision.models")
    except (ImportError, RuntimeError) as error:  # torchvision raises RuntimeError if its torch version differs
        raise ValueError(f"{package}:{model} needs {package}, which cannot be imported: {error}") from error


def create_external(package: str, model: str, options: Mapping[str, Any]) -> nn.Module:
    """Build a model of timm or torchvision without its classifier."""
    library = import_external(package, model)
    if package == "timm":
        encoder: nn.Module = library.create_model(model, num_classes=0, **options)
        return encoder
    encoder = library.get_model(model, **options)
    linears = [name for name, module in encoder.named_modules() if isinstance(module, nn.Linear)]
    if not linears:
        raise ValueError(f"torchvision:{model}: cannot find the classifier to remove")
    parent, _, name = linears[-1].rpartition(".")
    setattr(encoder.get_submodule(parent), name, nn.Identity())
    return encoder


def get_representation_dim(encoder: nn.Module, image: Tensor | None = None) -> int:
    """Return the dimension of representations: an attribute of ours or timm's, or the output size for an example image.

    Examples:
        >>> get_representation_dim(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()))
        3
    """
    for name in ("dim", "head_hidden_size", "num_features"):  # timm's layers before the classifier may widen features
        dim = getattr(encoder, name, None)
        if isinstance(dim, int) and not isinstance(encoder, (nn.Softmax, nn.modules.batchnorm._BatchNorm)):
            return dim
    image = torch.zeros(1, 3, 64, 64) if image is None else image
    try:
        with eval_mode(encoder) as reference:
            # A file is loaded on the meta device, whatever memory its encoder would take.
            h = run_on_meta(encoder, image) if image.is_meta else encoder(image.to(reference))
    except (RuntimeError, ValueError, AssertionError, TypeError) as error:
        raise ValueError(f"an image {tuple(image.shape)} cannot be encoded: {error}") from error
    if not isinstance(h, Tensor) or h.dim() != 2:
        shape = tuple(h.shape) if isinstance(h, Tensor) else type(h).__name__
        raise ValueError(f"an encoder must map images (B, 3, H, W) to vectors (B, dim), this one returns {shape}")
    return h.shape[1]


def run_on_meta(encoder: nn.Module, image: Tensor) -> Any:
    """Apply an encoder to an image on the meta device: shapes without values."""
    state = {name: tensor.to("meta") for name, tensor in (*encoder.named_parameters(), *encoder.named_buffers())}
    with torch.device("meta"):
        return functional_call(encoder, state, image)


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[Tensor]:
    """Switch to evaluation mode without gradients. Yields a tensor with the device and dtype of the model."""
    with torch.no_grad(), switch_to_eval(model):
        yield next(model.parameters(), torch.zeros(()))


@contextmanager
def switch_to_eval(model: nn.Module, kind: type[nn.Module] = nn.Module) -> Iterator[None]:
    """Switch the modules of a kind to evaluation mode, and back to the mode that each had."""
    modes = [(module, module.training) for module in model.modules() if isinstance(module, kind)]
    for module, _ in modes:
        module.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
