"""Export encoders to other programs: torchvision state dicts, ONNX."""

import copy
import io
import logging
import warnings
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from manyviews.models import EncoderError, EncoderSpec, get_encoder

TORCHVISION = {"resnet18": "resnet18", "resnet50": "resnet50", "resnet-small": "resnet18"}
TOLERANCE = 1e-4
"""Max difference between ONNX and PyTorch outputs, relative to the largest output."""


def to_torchvision_state_dict(encoder: nn.Module, spec: EncoderSpec) -> tuple[dict[str, Tensor], str]:
    """Rename weights to torchvision's names; return them and the Python code that loads them.

    A ResNet narrower or shallower than torchvision's is padded with zeros: channels that stay zero, and blocks that
    change nothing. The model then computes the same representation, followed by zeros.

    Raises:
        EncoderError: torchvision has no matching model.
    """
    package, _, model = spec.name.partition(":")
    state = {name: tensor.detach().cpu() for name, tensor in encoder.state_dict().items()}
    if package == "torchvision":
        load = (
            f"model = torchvision.models.get_model({model!r})\nmodel.load_state_dict(weights, strict=False)  # no head"
        )
        return state, load
    if spec.name not in TORCHVISION:
        raise EncoderError(f"torchvision has no counterpart of {spec.name}: export to safetensors or onnx instead")
    model = TORCHVISION[spec.name]
    stem = spec.options.get("stem") or ("small-strided" if spec.name == "resnet-small" else "imagenet")
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
            raise EncoderError(
                f"the encoder is wider than torchvision's {model}: export to safetensors or onnx instead"
            )
        tensor.zero_()[tuple(slice(length) for length in weight.shape)] = weight
    return full, "\n".join([*lines, "model.load_state_dict(weights)"])


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
