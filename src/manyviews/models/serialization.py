"""Encoder files: safetensors with the encoder config in the header.

Reading a file never executes code from it.
"""

import json
import operator
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.module import register_module_forward_hook
from torch.utils._python_dispatch import TorchDispatchMode

from manyviews.models.encoders import ENCODERS, eval_mode, get_encoder
from manyviews.models.multimodal import ModalityKind, MultimodalConfig, MultimodalEncoder
from manyviews.utils import Budget, check_regular, escape_surrogates, get_memory_limit, parse_json

METADATA_KEY = "manyviews"
"""Metadata key of the config in the header."""
ALLOWED_OPTIONS: Mapping[str, type] = {"stem": str, "width": float}
"""Encoder options that a file may set; other options are rejected."""
MAX_IMAGE_SIZE = 4096
"""Max height and width of the images of an encoder."""
LAYER_BYTES = 12
"""Bytes per element of the largest layer output: input, output and residual in float32."""
ENCODER_NAME = r"((timm|torchvision):)?[\w.-]+"
MAX_DIM = 10_000
"""Max number of modalities, features, dimensions and layers in a file."""


class EncoderError(ValueError):
    """A file does not contain an encoder, or contains one of another architecture."""


@dataclass(frozen=True)
class EncoderConfig:
    """Architecture and image size of an encoder. Its input is RGB in [0, 1], not normalized, `size` x `size`."""

    encoder: str
    options: dict[str, Any]
    size: int


def serialize_module(module: nn.Module, config: EncoderConfig | MultimodalConfig | None = None) -> bytes:
    """Return the bytes of a file for `load_image_encoder`, or without a config for `load_weights`."""
    from safetensors.torch import save

    state = {name: tensor.detach().cpu().contiguous() for name, tensor in module.state_dict().items()}
    return save(state, None if config is None else {METADATA_KEY: json.dumps(asdict(config))})


def load_image_encoder(path: Path) -> tuple[nn.Module, EncoderConfig]:
    """Load an image encoder and its config from a file.

    Raises:
        EncoderError: the file is corrupt or multimodal, or its weights do not fit its config.
    """
    config = _read_config(path)
    if isinstance(config, MultimodalConfig):
        names = ", ".join(config.modalities)
        raise EncoderError(f"{path} contains a multimodal encoder ({names}), not an image encoder")
    # Build on the meta device: the header is untrusted and could request any size. Not all timm and torchvision models
    # support it, so their allocations are counted instead.
    is_builtin = config.encoder in ENCODERS
    try:
        with torch.device("meta") if is_builtin else _LimitedAllocation(Budget(path, path.stat().st_size)):
            encoder = get_encoder(config.encoder, **config.options)
        if LAYER_BYTES * _count_largest_output(encoder, config.size) > get_memory_limit():
            raise ValueError(f"one image of {config.size} x {config.size} needs more than the available memory")
    except (ValueError, TypeError, OverflowError, RuntimeError, AssertionError) as error:
        raise EncoderError(f"{path}: {error}") from error
    load_weights(encoder, path, config.encoder)
    return encoder, config


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


def _count_largest_output(encoder: nn.Module, size: int) -> int:
    """Return the number of elements of the largest module output for one image, computed on the meta device."""
    counts = [0]

    def count(_: nn.Module, __: object, output: object) -> None:
        if isinstance(output, Tensor):
            counts.append(output.numel())

    state = {name: tensor.to("meta") for name, tensor in (*encoder.named_parameters(), *encoder.named_buffers())}
    with register_module_forward_hook(count), eval_mode(encoder), torch.device("meta"):
        functional_call(encoder, state, torch.empty(1, 3, size, size))
    return max(counts)


def load_multimodal_encoder(path: Path) -> MultimodalEncoder:
    """Load a multimodal encoder from a file, in evaluation mode.

    Raises:
        EncoderError: the file is corrupt or not multimodal, or its weights do not fit its config.
    """
    config = _read_config(path)
    if not isinstance(config, MultimodalConfig):
        raise EncoderError(f"{path} contains an image encoder, not a multimodal encoder")
    try:
        with torch.device("meta"), _LimitedAllocation(Budget(path, path.stat().st_size)):
            encoder = MultimodalEncoder.from_config(config)
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        raise EncoderError(f"{path}: {error}") from error
    load_weights(encoder, path, f"encoders of {', '.join(config.modalities)}")
    return encoder.eval().requires_grad_(False)


def is_multimodal_file(path: Path) -> bool:
    """Return whether a file contains a multimodal encoder (else an image encoder)."""
    return isinstance(_read_config(path), MultimodalConfig)


def load_weights(module: nn.Module, path: Path, description: str) -> None:
    """Load the weights of a file; raise with the differences unless names and shapes match exactly."""
    with _open_file(path) as file:
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is not a dict)
    expected = module.state_dict()
    problems = [f"missing {name}" for name in expected if name not in weights]
    problems += [f"unexpected {name}" for name in weights if name not in expected]
    shapes = {name: (tuple(weights[name].shape), tuple(expected[name].shape)) for name in expected if name in weights}
    problems += [f"{name} is {got}, expected {shape}" for name, (got, shape) in shapes.items() if got != shape]
    if problems:
        text = ", ".join(problems[:3]) + (f", and {len(problems) - 3} more" if len(problems) > 3 else "")
        raise EncoderError(f"the weights in {path} do not fit {description}: {text}")
    for part in module.modules():
        if any(tensor.is_meta for tensor in (*part.parameters(recurse=False), *part.buffers(recurse=False))):
            part.to_empty(device="cpu", recurse=False)
    module.load_state_dict(weights)


def read_first_dim(path: Path, name: str) -> int:
    """Return the size of the first dimension of a tensor in a file."""
    with _open_file(path) as file:
        return int(file.get_slice(name).get_shape()[0])


@contextmanager
def _open_file(path: Path) -> Iterator[Any]:
    from safetensors import safe_open

    try:
        check_regular(path)
        is_utf8 = escape_surrogates(str(path)) == str(path)  # as safetensors requires
        with nullcontext() if is_utf8 else path.open("rb") as alias:
            readable = path if alias is None else Path(f"/dev/fd/{alias.fileno()}")
            with safe_open(readable, framework="pt") as file:
                yield file
    # safetensors raises various errors for corrupt headers, unknown dtypes and missing tensors.
    except Exception as error:
        raise EncoderError(f"cannot read {path}: {error}") from error


def _read_config(path: Path) -> EncoderConfig | MultimodalConfig:
    with _open_file(path) as file:
        text, count = (file.metadata() or {}).get(METADATA_KEY), len(file.keys())
    if text is None:
        raise EncoderError(f"{path} has no encoder config in its header: manyviews writes one, so train the run again")
    try:
        metadata = parse_json(text)
        if "modalities" in metadata:
            return _parse_multimodal_config(metadata, count)
        options = {name: ALLOWED_OPTIONS[name](value) for name, value in metadata["options"].items()}
        config = EncoderConfig(metadata["encoder"], options, operator.index(metadata["size"]))
        if not re.fullmatch(ENCODER_NAME, config.encoder) or not 1 <= config.size <= MAX_IMAGE_SIZE:
            raise ValueError(f"invalid encoder {config.encoder!r} or image size {config.size}")
        return config
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise EncoderError(f"{path}: invalid encoder config in the header: {error!r}") from error


def _parse_multimodal_config(metadata: dict[str, Any], tensors: int) -> MultimodalConfig:
    kinds: dict[str, tuple[ModalityKind, int]] = {}
    for name, (kind, features) in metadata["modalities"].items():
        if kind not in get_args(ModalityKind):
            raise ValueError(f"unknown modality kind {kind!r}")
        kinds[str(name)] = (kind, operator.index(features))
    dims = {name: operator.index(metadata[name]) for name in ("hidden_dim", "transformer_layers", "transformer_heads")}
    sizes = [len(kinds), *dims.values(), *(features for kind, features in kinds.values() if kind != "image")]
    # Every modality, and every layer of a sequence encoder, has tensors: the file must contain at least as many.
    sizes.append(len(kinds) + dims["transformer_layers"] * sum(kind == "sequence" for kind, _ in kinds.values()))
    if sizes[-1] > tensors:
        raise ValueError(f"{sizes[-1]} layers, but only {tensors} tensors")
    image_encoder = metadata["image_encoder"]
    if not all(1 <= size <= MAX_DIM for size in sizes) or not re.fullmatch(ENCODER_NAME, image_encoder):
        raise ValueError(f"invalid sizes {sizes} or image encoder {image_encoder!r}")
    return MultimodalConfig(kinds, **dims, dropout=float(metadata["dropout"]), image_encoder=image_encoder)
