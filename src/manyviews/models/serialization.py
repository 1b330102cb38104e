"""Encoder files: safetensors with the encoder config in the header.

Reading a file never executes code from it.
"""

import copy
import json
import operator
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils._python_dispatch import TorchDispatchMode

from manyviews.data import KINDS
from manyviews.models.encoder_config import CUSTOM, EncoderConfig, EncoderSpec
from manyviews.models.encoders import eval_mode, run_on_meta
from manyviews.models.multi_view import MultiViewEncoder
from manyviews.utils import Budget, check_regular, escape_surrogates, get_memory_limit, parse_json

METADATA_KEY = "manyviews"
"""Metadata key of the config in the header."""
ALLOWED_OPTIONS: Mapping[str, type] = {
    "stem": str, "width": float, "features": int, "dim": int, "layers": int, "heads": int, "dropout": float,
    "config": dict, "pooling": str, "normalize": bool, "uses_mask": bool, "mean": list, "std": list,
    "sampling_rate": int,
}  # fmt: skip
"""Encoder options that a file may set; other options are rejected."""
MAX_IMAGE_SIZE = 4096
"""Max height and width of the images of an encoder."""
LAYER_BYTES = 12
"""Bytes per element of the largest layer output: input, output and residual in float32."""
ALLOWED_PREPROCESSING: Mapping[str, type] = {
    "tokenizer": str, "max_tokens": int, "pad_id": int, "sampling_rate": int, "max_seconds": float, "num_frames": int,
}  # fmt: skip
"""Preprocessing that a file may set."""
ENCODER_NAME = r"((timm|torchvision):)?[\w.-]+|hf:[\w.-]+(/[\w.-]+)?"
MAX_DIM = 10_000
"""Max number of modalities, features, dimensions and layers in a file."""


class EncoderError(ValueError):
    """A file does not contain an encoder, or contains one of another architecture."""


def serialize_module(module: nn.Module, config: EncoderConfig | None = None) -> bytes:
    """Return the bytes of a file for `load_encoder_file`, or without a config for `load_weights`."""
    from safetensors.torch import save

    state: dict[str, Tensor] = {}
    for name, tensor in module.state_dict().items():
        value = tensor.detach().cpu().contiguous()
        # Weights that a model uses twice are saved twice, because a file has no aliases.
        is_shared = any(value.data_ptr() == other.data_ptr() and value.numel() for other in state.values())
        state[name] = value.clone() if is_shared else value
    return save(state, None if config is None else {METADATA_KEY: json.dumps(asdict(config))})


def load_encoder_file(path: Path, modules: Mapping[str, nn.Module] = MappingProxyType({})) -> MultiViewEncoder:
    """Load an encoder from a file, in evaluation mode; `modules` are those that a user has built, by modality or kind.

    Raises:
        EncoderError: the file is corrupt, or its weights do not fit its config.
    """
    return load_encoder_weights(path, read_encoder_config(path), modules, path)


def load_encoder_weights(
    path: Path, config: EncoderConfig, modules: Mapping[str, nn.Module], source: Path | str
) -> MultiViewEncoder:
    """Build the encoder of a config and load the weights of a file; errors name `source`, which a user has given."""
    custom = {name: spec.kind for name, spec in config.encoders.items() if spec.name == CUSTOM}
    built = {name: modules.get(name, modules.get(kind, modules.get(""))) for name, kind in custom.items()}
    given = {name: copy.deepcopy(module) for name, module in built.items() if module is not None}
    if missing := [name for name in custom if name not in given]:
        raise EncoderError(
            f"the encoder of {missing[0]} in {source} is a module of yours: pass it, as in "
            f"mv.load_encoder({str(source)!r}, encoder=MODULE)"
        )
    # Build on the meta device: the header is untrusted and could request any size. Not all timm and torchvision models
    # support it, so their allocations are counted instead.
    try:
        with torch.device("meta"), _LimitedAllocation(Budget(path, path.stat().st_size)):
            encoder = MultiViewEncoder.from_config(config, modules=given)
        for name, spec in config.encoders.items():
            with torch.device("meta"):
                example = None if name in given else KINDS[spec.kind].make_example(spec.size)
            if LAYER_BYTES * _count_largest_output(encoder.get_encoder(name), example) > get_memory_limit():
                raise ValueError(f"one image of {spec.size} x {spec.size} needs more than the available memory")
    except (ValueError, TypeError, OverflowError, RuntimeError, AssertionError) as error:
        raise EncoderError(f"{source}: {error}") from error
    load_weights(encoder, path, f"encoders of {', '.join(config.modalities)}")
    return encoder.eval().requires_grad_(False)


class _LimitedAllocation(TorchDispatchMode):
    """Within this context, new tensors count against a budget before they are written."""

    def __init__(self, budget: Budget) -> None:
        super().__init__()
        self.budget = budget

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and not result.is_meta and not any(isinstance(value, Tensor) for value in args):
            self.budget.take(result.nbytes)
        return result


def _count_largest_output(encoder: nn.Module, image: Tensor | None) -> int:
    """Return the number of elements of the largest module output for an image, on the meta device; 0 without one."""
    counts = [0]

    def count(_: nn.Module, __: object, output: object) -> None:
        if isinstance(output, Tensor):
            counts.append(output.numel())

    if image is not None:
        with register_module_forward_hook(count), eval_mode(encoder):
            run_on_meta(encoder, image)
    return max(counts)


def load_weights(module: nn.Module, path: Path, description: str) -> None:
    """Load the weights of a file; raise with the differences unless names and shapes match exactly."""
    weights, expected = read_weights(path), module.state_dict()
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


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read all tensors of a file.

    Raises:
        EncoderError: it is not a safetensors file.
    """
    with _open_file(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is not a dict)


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


def read_encoder_config(path: Path) -> EncoderConfig:
    """Read the config in the header of a file."""
    with _open_file(path) as file:
        text = (file.metadata() or {}).get(METADATA_KEY)
    if text is None:
        raise EncoderError(
            f"{path} has no encoder config in its header, as the file of a run has: of a folder that save_pretrained "
            "has written, pass the folder"
        )
    description = f"{path}: invalid encoder config in the header"
    try:
        metadata = parse_json(text)
    except ValueError as error:
        raise EncoderError(f"{description}: {error!r}") from error
    return parse_encoder_config(metadata, path, description)


def parse_encoder_config(metadata: Any, path: Path, description: str) -> EncoderConfig:
    """Check plain values, which a stranger may have written, as the config of the encoder with the weights in a file.

    Raises:
        EncoderError: they are not a config; the message starts with `description`.
    """
    with _open_file(path) as file:
        count = len(file.keys())
    try:
        encoders = {str(name): _parse_spec(spec) for name, spec in metadata["encoders"].items()}
        modalities = {str(modality): str(name) for modality, name in metadata["modalities"].items()}
        dim = None if metadata["dim"] is None else operator.index(metadata["dim"])
        config = EncoderConfig(encoders, modalities, dim)
        # Every encoder, and every layer of a transformer, has tensors: the file must contain at least as many.
        layers = sum(max(1, spec.options.get("layers", 1)) for spec in encoders.values())
        if not 1 <= len(modalities) <= MAX_DIM or not 1 <= (dim or 1) <= MAX_DIM or layers > count:
            raise ValueError(f"{len(modalities)} modalities, {dim} dimensions, {layers} layers and {count} tensors")
        return config
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise EncoderError(f"{description}: {error!r}") from error


def _parse_option(kind: type, value: object) -> object:
    if isinstance(value, bool) != (kind is bool) or not isinstance(value, (int, float) if kind is float else kind):
        raise TypeError(f"expected {kind.__name__}, got {value!r}")
    return kind(value)


def _parse_spec(spec: dict[str, Any]) -> EncoderSpec:
    options = {key: _parse_option(ALLOWED_OPTIONS[key], value) for key, value in spec["options"].items()}
    given = spec.get("preprocessing", {}).items()
    preprocessing = {key: _parse_option(ALLOWED_PREPROCESSING[key], value) for key, value in given}
    for key in options.keys() & {"mean", "std"}:
        options[key] = [_parse_option(float, value) for value in spec["options"][key]]
    size, kind, name = operator.index(spec["size"]), spec["kind"], spec["name"]
    numbers = [value for key, value in options.items() if type(value) is int and key != "sampling_rate"]
    if kind not in KINDS or not re.fullmatch(ENCODER_NAME, name) or not all(1 <= n <= MAX_DIM for n in numbers):
        raise ValueError(f"invalid encoder {name!r} for {kind!r} with {options}")
    if "sampling_rate" in options and options["sampling_rate"] != preprocessing.get("sampling_rate"):
        raise ValueError(f"invalid sampling rate {options['sampling_rate']}")
    if not KINDS[kind].min_size <= size <= MAX_IMAGE_SIZE:
        raise ValueError(f"invalid image size {size}")
    return EncoderSpec(kind, name, options, size, preprocessing)
