"""Encoders in files: safetensors whose header says which encoder the weights are of, and what it is given.

Nothing in such a file is executed, whoever made it.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from PIL import Image
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

from manyviews.data import DatasetError, pixels, read_image
from manyviews.models.encoders import ENCODERS, get_encoder, representation_dim
from manyviews.models.modalities import Kind, ModalityDescription, ModalityEncoder
from manyviews.utils.budget import Budget, memory_share
from manyviews.utils.text import escape_surrogates
from manyviews.utils.untrusted import check_regular, parse_json
from manyviews.views import plain_views

KEY = "manyviews"
"""Of the description in a file's header."""
OPTIONS: Mapping[str, type] = {"stem": str, "width": float}
"""What a file may say of an encoder besides its name: no option of another package's is passed on."""
MOST_SIDE = 4096
"""Of a side of an encoder's images."""
LAYER_BYTES = 12
"""Bytes of memory for each number in the largest layer: its input, its output and a residual."""
ENCODER_NAME = r"((timm|torchvision):)?[\w.-]+"
MOST = 10_000
"""Of whatever else a file asks for: features, dimensions, layers of all modalities."""

Picture = Tensor | Image.Image | str | Path


class EncoderError(ValueError):
    """A file that holds no encoder, or one of another architecture."""


@dataclass(frozen=True)
class Description:
    """How to build an encoder, and what it is given: RGB images of `size` x `size` in [0, 1], not normalised."""

    encoder: str
    options: dict[str, Any]
    size: int


class ImageEncoder(nn.Module):
    """An encoder and what is done to an image before: images of any size become representations (B, dim).

    It takes uint8 images (B, C, H, W), floats in [0, 1] of its own size, or a sequence of files, PIL pictures and uint8
    images (C, H, W). Of an image of another size the central square is resized, as when a run is evaluated.

    Examples:
        >>> encoder = ImageEncoder(get_encoder("resnet-small"), size=32)
        >>> encoder(torch.zeros(5, 3, 100, 80, dtype=torch.uint8)).shape
        torch.Size([5, 192])
    """

    def __init__(self, encoder: nn.Module, size: int) -> None:
        super().__init__()
        self.encoder, self.size = encoder, size
        self.dim = representation_dim(encoder, torch.zeros(1, 3, size, size))
        self.eval().requires_grad_(False)

    def forward(self, images: Tensor | Sequence[Picture]) -> Tensor:
        like = next(self.encoder.parameters(), torch.zeros(()))
        return self.encoder(self._views(images).to(like))

    def _views(self, images: Tensor | Sequence[Picture]) -> Tensor:
        if not isinstance(images, Tensor):
            if isinstance(images, (str, Path)) or not isinstance(images, Sequence) or not len(images):
                got = f"{images!r}" if isinstance(images, (str, Path, list)) else type(images).__name__
                raise ValueError(f"images must be a tensor or a list of images, got {got}")
            return plain_views([_opened(image).expand(3, -1, -1) for image in images], self.size)
        if images.dim() != 4 or images.shape[1] not in (1, 3) or 0 in images.shape:
            raise ValueError(f"images must be (B, 1 or 3, height, width), got {tuple(images.shape)}")
        if images.dtype == torch.uint8:
            return plain_views(images, self.size)
        if not images.is_floating_point() or images.shape[2:] != (self.size, self.size):
            raise ValueError(
                f"images must be uint8 of any size, or floats in [0, 1] of {self.size} x {self.size}, "
                f"got {images.dtype} {tuple(images.shape)}"
            )
        low, high = images.aminmax()
        if not (low > -0.01 and high < 1.01):
            raise ValueError(f"floats must lie between 0 and 1, and these lie between {low} and {high}: divide by 255?")
        return images


def _opened(image: Picture) -> Tensor:
    if isinstance(image, (str, Path)):
        if not Path(image).is_file():
            raise DatasetError(f"there is no file {image}")
        return read_image(Path(image))
    if isinstance(image, Image.Image):
        return pixels(image)
    if (
        not isinstance(image, Tensor)
        or image.dtype != torch.uint8
        or image.dim() != 3
        or image.shape[0] not in (1, 3)
        or not image.numel()
    ):
        what = f"{image.dtype} {tuple(image.shape)}" if isinstance(image, Tensor) else type(image).__name__
        raise ValueError(f"an image must be a file, a PIL picture or uint8 (1 or 3, height, width), got {what}")
    return image


def file_of(module: nn.Module, about: Description | ModalityDescription | None = None) -> bytes:
    """The content of a file for `read_encoder`, or, without a description, for `fill`."""
    from safetensors.torch import save

    state = {name: tensor.detach().cpu().contiguous() for name, tensor in module.state_dict().items()}
    return save(state, None if about is None else {KEY: json.dumps(asdict(about))})


def read_encoder(path: Path) -> tuple[nn.Module, Description]:
    """The encoder of images in a file, and its description.

    Raises:
        EncoderError: the file is damaged, or its weights are of another architecture than it says, or of modalities.
    """
    about = _description(path)
    if isinstance(about, ModalityDescription):
        raise EncoderError(f"{path} is of modalities ({', '.join(about.modalities)}), not of images")
    # The header is untrusted. Our encoders are built on the meta device, without memory; not all of timm's and
    # torchvision's can be, so their allocations are counted.
    ours = about.encoder in ENCODERS
    try:
        with torch.device("meta") if ours else _LimitedAllocation(Budget(path, path.stat().st_size)):
            encoder = get_encoder(about.encoder, **about.options)
        if LAYER_BYTES * _largest_layer(encoder, about.size) > memory_share():
            raise ValueError(f"one image of {about.size} x {about.size} would take more memory than there is")
    except (ValueError, TypeError, OverflowError, RuntimeError, AssertionError) as error:
        raise EncoderError(f"{path}: {error}") from error
    fill(encoder, path, about.encoder)
    return encoder, about


class _LimitedAllocation(TorchDispatchMode):
    """Within this context, new tensors count against a budget before they are written."""

    def __init__(self, budget: Budget) -> None:
        super().__init__()
        self.budget = budget

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and not any(isinstance(value, Tensor) for value in args):
            self.budget.take(result.nbytes)
        return result


def _largest_layer(encoder: nn.Module, size: int) -> int:
    """Count the numbers in the largest output of a module for one image, on the meta device, without memory."""
    counts = [0]

    def count(_: nn.Module, __: object, output: object) -> None:
        if isinstance(output, Tensor):
            counts.append(output.numel())

    hooks = [part.register_forward_hook(count) for part in encoder.modules()]
    state = {name: tensor.to("meta") for name, tensor in (*encoder.named_parameters(), *encoder.named_buffers())}
    try:
        with torch.no_grad(), torch.device("meta"):
            functional_call(encoder.eval(), state, torch.empty(1, 3, size, size))
    finally:
        encoder.train()
        for hook in hooks:
            hook.remove()
    return max(counts)


def read_modality_encoder(path: Path) -> ModalityEncoder:
    """The encoders of modalities in a file, in evaluation mode.

    Raises:
        EncoderError: as of `read_encoder`.
    """
    about = _description(path)
    if not isinstance(about, ModalityDescription):
        raise EncoderError(f"{path} is of images, not of modalities")
    try:
        with torch.device("meta"):
            encoder = ModalityEncoder.described(about)
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        raise EncoderError(f"{path}: {error}") from error
    fill(encoder, path, f"encoders of {', '.join(about.modalities)}")
    return encoder.eval().requires_grad_(False)


def holds_modalities(path: Path) -> bool:
    """Whether a file holds encoders of modalities rather than of images."""
    return isinstance(_description(path), ModalityDescription)


def fill(module: nn.Module, path: Path, what: str) -> None:
    """Load the weights in a file, all of them and no others, or say how they do not fit."""
    with _opened_file(path) as file:
        found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dictionary)
    wanted = module.state_dict()
    wrong = [f"it has no {name}" for name in wanted if name not in found]
    wrong += [f"it has {name}" for name in found if name not in wanted]
    wrong += [
        f"its {name} is {tuple(found[name].shape)}, not {tuple(tensor.shape)}"
        for name, tensor in wanted.items()
        if name in found and found[name].shape != tensor.shape
    ]
    if wrong:
        some = ", ".join(wrong[:3]) + (f", and {len(wrong) - 3} more" if len(wrong) > 3 else "")
        raise EncoderError(f"{path} holds the weights of another architecture than {what}: {some}")
    for part in module.modules():
        if any(tensor.is_meta for tensor in (*part.parameters(recurse=False), *part.buffers(recurse=False))):
            part.to_empty(device="cpu", recurse=False)
    module.load_state_dict(found)


@contextmanager
def _get_readable(path: Path) -> Iterator[Path]:
    """The path or, where it is not UTF-8, another one of the same file: the library of safetensors takes only UTF-8."""
    if escape_surrogates(str(path)) == str(path):
        yield path
        return
    with path.open("rb") as file:
        yield Path(f"/dev/fd/{file.fileno()}")


def rows_in(path: Path, name: str) -> int:
    """The length of a tensor in a file."""
    with _opened_file(path) as file:
        return int(file.get_slice(name).get_shape()[0])


@contextmanager
def _opened_file(path: Path) -> Iterator[Any]:
    from safetensors import safe_open

    try:
        check_regular(path)
        with _get_readable(path) as readable, safe_open(readable, framework="pt") as file:
            yield file
    # Of a broken header, of types that torch has not, of tensors that are not there.
    except Exception as error:
        raise EncoderError(f"cannot read {path}: {error}") from error


def _description(path: Path) -> Description | ModalityDescription:
    with _opened_file(path) as file:
        text, count = (file.metadata() or {}).get(KEY), len(file.keys())
    if text is None:
        raise EncoderError(f"{path} does not say which encoder it holds, as files of manyviews do: train the run again")
    try:
        said = parse_json(text)
        if "modalities" in said:
            return _modalities(said, count)
        options = {name: OPTIONS[name](value) for name, value in said["options"].items()}
        about = Description(said["encoder"], options, operator.index(said["size"]))
        if not re.fullmatch(ENCODER_NAME, about.encoder) or not 1 <= about.size <= MOST_SIDE:
            raise ValueError(f"encoder {about.encoder!r} for images of {about.size} x {about.size}")
        return about
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise EncoderError(f"{path} describes its encoder in a way that cannot be read: {error!r}") from error


def _modalities(said: dict[str, Any], tensors: int) -> ModalityDescription:
    kinds: dict[str, tuple[Kind, int]] = {}
    for name, (kind, features) in said["modalities"].items():
        if kind not in get_args(Kind):
            raise ValueError(f"a modality of kind {kind!r}")
        kinds[str(name)] = (kind, operator.index(features))
    numbers = {name: operator.index(said[name]) for name in ("dim", "layers", "heads")}
    asked = [len(kinds), *numbers.values(), *(features for kind, features in kinds.values() if kind != "image")]
    # Each layer of a sequence, and each modality, has tensors of its own: none is built that the file has not.
    asked.append(len(kinds) + numbers["layers"] * sum(kind == "sequence" for kind, _ in kinds.values()))
    if asked[-1] > tensors:
        raise ValueError(f"{asked[-1]} layers in a file of {tensors} tensors")
    if not all(1 <= number <= MOST for number in asked) or not re.fullmatch(ENCODER_NAME, said["image_encoder"]):
        raise ValueError(f"sizes {asked} and an encoder {said['image_encoder']!r}")
    return ModalityDescription(kinds, **numbers, dropout=float(said["dropout"]), image_encoder=said["image_encoder"])
