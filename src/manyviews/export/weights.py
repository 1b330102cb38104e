"""Export encoders to other programs: weights with the names of torchvision and timm, ONNX."""

import copy
import io
import json
import logging
import re
import warnings
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from manyviews.models import EncoderError, EncoderSpec, get_encoder, get_inner_model, serialize_module
from manyviews.transforms import CENTER_CROP_RATIO
from manyviews.utils import MALFORMED_ERRORS, atomic_path, parse_json, read_text

TORCHVISION = {"resnet18": "resnet18", "resnet50": "resnet50", "resnet-small": "resnet18"}
TOLERANCE = 1e-4
"""Max difference between ONNX and PyTorch outputs, relative to the largest output."""


def to_torchvision_state_dict(encoder: nn.Module, spec: EncoderSpec) -> tuple[dict[str, Tensor], str]:
    """Rename weights to torchvision's names; return them and the Python code that loads them.

    A ResNet narrower or shallower than torchvision's is padded with zeros: channels that stay zero, and blocks that
    change nothing. The model then computes the same representation, followed by zeros.

    Raises:
        EncoderError: torchvision has no matching model.

    Examples:
        >>> encoder, spec = get_encoder("resnet18"), EncoderSpec("image", "resnet18", size=64)
        >>> print(to_torchvision_state_dict(encoder, spec)[1])
        model = torchvision.models.resnet18()
        model.fc = torch.nn.Identity()
        model.load_state_dict(weights)
    """
    package, _, model = spec.name.partition(":")
    inner = get_inner_model(encoder)
    state = {name: tensor.detach().cpu() for name, tensor in inner.state_dict().items()}
    if package == "torchvision":
        lines = [f"model = torchvision.models.get_model({model!r})"]
        # The last identity is in the place of the classifier; see `get_encoder`.
        heads = [name for name, module in inner.named_modules() if isinstance(module, nn.Identity)]
        if heads:
            place = re.sub(r"[.]([0-9]+)", r"[\1]", heads[-1])
            lines += [f"model.{place} = torch.nn.Identity()  # no classifier"]
        return state, "\n".join([*lines, "model.load_state_dict(weights)"])
    if spec.name not in TORCHVISION:
        raise EncoderError(f"torchvision has no counterpart of {spec.name}: export to hub or onnx instead")
    model = TORCHVISION[spec.name]
    stem = _get_stem(spec)
    lines = [f"model = torchvision.models.{model}()", "model.fc = torch.nn.Identity()"]
    if stem != "imagenet":
        stride = 2 if stem == "small-strided" else 1
        lines += [
            f"model.conv1 = torch.nn.Conv2d(3, 64, 3, {stride}, 1, bias=False)  # for small images",
            "model.maxpool = torch.nn.Identity()",
        ]
    full = get_encoder(model, stem=stem).state_dict()
    for name, tensor in full.items():
        weight = state.get(name, torch.zeros([0] * tensor.dim(), dtype=tensor.dtype))
        if any(a > b for a, b in zip(weight.shape, tensor.shape, strict=True)):
            raise EncoderError(f"the encoder is wider than torchvision's {model}: export to hub or onnx instead")
        tensor.zero_()[tuple(slice(length) for length in weight.shape)] = weight
    return full, "\n".join([*lines, "model.load_state_dict(weights)"])


def _get_stem(spec: EncoderSpec) -> str:
    return spec.options.get("stem") or ("small-strided" if spec.name == "resnet-small" else "imagenet")


def to_timm_model(encoder: nn.Module, spec: EncoderSpec) -> tuple[nn.Module, str]:
    """Return a module with the parameter names of a model of timm without its classifier, and the name of that model.

    Built-in ResNets with the first layers of ImageNet's have the names of timm's, as of torchvision's.

    Raises:
        EncoderError: timm has no matching model.

    Examples:
        >>> module, name = to_timm_model(get_encoder("resnet18"), EncoderSpec("image", "resnet18", size=64))
        >>> name, list(module.state_dict())[0]
        ('resnet18', 'conv1.weight')
    """
    package, _, model = spec.name.partition(":")
    if package == "timm":
        return get_inner_model(encoder), model
    if spec.name not in TORCHVISION or _get_stem(spec) != "imagenet":
        stem = f" with the stem {_get_stem(spec)}" if spec.name in TORCHVISION else ""
        raise EncoderError(f"timm has no counterpart of {spec.name}{stem}: export to hub, torchvision or onnx instead")
    padded = get_encoder(TORCHVISION[spec.name], stem="imagenet")
    padded.load_state_dict(to_torchvision_state_dict(encoder, spec)[0])
    return padded, TORCHVISION[spec.name]


def write_timm_folder(folder: Path, encoder: nn.Module, model: str, spec: EncoderSpec) -> None:
    """Write the folder that `timm.create_model("local-dir:FOLDER", pretrained=True)` loads.

    Raises:
        EncoderError: the folder cannot be written, or has a model of another library.
    """
    mean, std = spec.options.get("mean", [0.0] * 3), spec.options.get("std", [1.0] * 3)
    images = {"input_size": [3, spec.size, spec.size], "interpolation": "bicubic", "crop_pct": CENTER_CROP_RATIO}
    fields = {
        "architecture": model.partition(".")[0],
        "num_classes": 0,
        "pretrained_cfg": {"num_classes": 0, "crop_mode": "center", "mean": mean, "std": std, **images},
    }
    path, weights = folder / "config.json", folder / "model.safetensors"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if path.exists() or weights.exists():
            _check_timm_config(path)
        with ExitStack() as stack:  # the config, which is entered first, is renamed last
            stack.enter_context(atomic_path(path)).write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
            stack.enter_context(atomic_path(weights)).write_bytes(serialize_module(encoder))
    except OSError as error:
        raise EncoderError(f"cannot write {folder}: {error}") from error


def _check_timm_config(path: Path) -> None:
    try:
        _ = parse_json(read_text(path))["architecture"]
    except (OSError, *MALFORMED_ERRORS) as error:
        folder = path.parent
        raise EncoderError(f"{folder} has another model, which is not replaced: choose another folder") from error


def export_onnx(encoder: nn.Module, size: int) -> bytes:
    """Serialize an ONNX model: `images` (batch, 3, size, size) in [0, 1] -> `representations` (batch, dim), any batch.

    Raises:
        EncoderError: the outputs of onnxruntime and PyTorch differ.
        ValueError: the extra `onnx` is not installed.

    Examples:
        >>> from manyviews.models import get_encoder
        >>> file = export_onnx(get_encoder("resnet-small").eval(), size=32)
    """
    try:
        onnx, onnxruntime, _ = (import_module(name) for name in ("onnx", "onnxruntime", "onnxscript"))  # torch needs it
    except ImportError as error:
        raise ValueError(f"ONNX export needs an extra: pip install 'manyviews[onnx]' ({error})") from error
    network = copy.deepcopy(encoder).cpu().eval()
    log, generator = logging.getLogger("torch.onnx"), torch.Generator().manual_seed(0)
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # raised by torch itself
            program: Any = torch.onnx.export(
                network,
                (torch.rand(2, 3, size, size, generator=generator),),
                dynamo=True,
                input_names=["images"],
                output_names=["representations"],
                dynamic_shapes=({0: "batch"},),
                verbose=False,
            )
    finally:
        log.setLevel(level)
    model = program.model_proto
    # Strip source locations from the exported graph.
    for node in (*model.graph.node, *model.graph.input, *model.graph.output, *model.graph.value_info):
        del node.metadata_props[:]
    model.producer_name = "manyviews"
    onnx.helper.set_model_props(model, {"input": f"RGB in [0, 1], {size} x {size}, not normalized"})
    content = io.BytesIO()
    onnx.save(model, content)
    session = onnxruntime.InferenceSession(content.getvalue(), providers=["CPUExecutionProvider"])
    images = torch.rand(5, 3, size, size, generator=generator)
    exported = torch.from_numpy(session.run(None, {"images": images.numpy()})[0])
    expected = network(images)
    if exported.shape != expected.shape or not (exported - expected).abs().max() <= TOLERANCE * expected.abs().max():
        raise EncoderError(f"ONNX export check failed: outputs differ by more than {TOLERANCE:g} (relative)")
    return content.getvalue()
