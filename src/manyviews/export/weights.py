"""Encoders for other programs: torchvision's names, ONNX."""

from __future__ import annotations

import copy
import io
import logging
import warnings
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from manyviews.models import EncoderError, ImageEncoder, get_encoder
from manyviews.models.saved import Description

TORCHVISION = {"resnet18": "resnet18", "resnet50": "resnet50", "resnet-small": "resnet18"}
TOLERANCE = 1e-4
"""Of an ONNX model's representations, relative to the largest of them."""


def torchvision_state(encoder: nn.Module, about: Description) -> tuple[dict[str, Tensor], str]:
    """Weights under torchvision's names, and the lines of Python that load them.

    A ResNet narrower or shallower than torchvision's is filled up with zeros: channels that stay zero, and blocks that
    change nothing. The model then gives the same representation, followed by zeros.

    Raises:
        EncoderError: the encoder has no counterpart there.
    """
    package, _, model = about.encoder.partition(":")
    state = {name: tensor.detach().cpu() for name, tensor in encoder.state_dict().items()}
    if package == "torchvision":
        load = (
            f"model = torchvision.models.get_model({model!r})\nmodel.load_state_dict(weights, strict=False)  # no head"
        )
        return state, load
    if about.encoder not in TORCHVISION:
        raise EncoderError(f"torchvision has no counterpart of {about.encoder}: export it to safetensors or onnx")
    model = TORCHVISION[about.encoder]
    stem = about.options.get("stem") or ("strided" if about.encoder == "resnet-small" else "imagenet")
    lines = [f"model = torchvision.models.{model}()", "model.fc = torch.nn.Identity()"]
    if stem != "imagenet":
        stride = 2 if stem == "strided" else 1
        lines += [
            f"model.conv1 = torch.nn.Conv2d(3, 64, 3, {stride}, 1, bias=False)  # for small images",
            "model.maxpool = torch.nn.Identity()",
        ]
    full = get_encoder(model, stem=stem).state_dict()
    for name, tensor in full.items():
        own = state.get(name, torch.zeros([0] * tensor.dim(), dtype=tensor.dtype))
        if any(mine > theirs for mine, theirs in zip(own.shape, tensor.shape, strict=True)):
            raise EncoderError(f"the encoder is wider than torchvision's {model}: export it to safetensors or onnx")
        tensor.zero_()[tuple(slice(length) for length in own.shape)] = own
    return full, "\n".join([*lines, "model.load_state_dict(weights)"])


def onnx_file(encoder: ImageEncoder) -> bytes:
    """An ONNX model from `images` (batch, 3, size, size) in [0, 1] to `representations` (batch, dim), any batch.

    Raises:
        EncoderError: onnxruntime finds other representations than we do.
        ValueError: the extra `onnx` is not installed.

    Examples:
        >>> from manyviews.models import get_encoder
        >>> file = onnx_file(ImageEncoder(get_encoder("resnet-small"), size=32))  # bytes, for any runtime
    """
    try:
        onnx, onnxruntime, _ = (import_module(name) for name in ("onnx", "onnxruntime", "onnxscript"))  # torch's
    except ImportError as error:
        raise ValueError(f"ONNX needs an extra: pip install 'manyviews[onnx]' ({error})") from error
    size = encoder.size
    network = copy.deepcopy(encoder.encoder).cpu()
    log, generator = logging.getLogger("torch.onnx"), torch.Generator().manual_seed(0)
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch's own making
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
    # Where each operation stood in our files is nobody's business.
    for node in (*model.graph.node, *model.graph.input, *model.graph.output, *model.graph.value_info):
        del node.metadata_props[:]
    model.producer_name = "manyviews"
    onnx.helper.set_model_props(model, {"input": f"RGB in [0, 1], {size} x {size}, not normalised"})
    content = io.BytesIO()
    onnx.save(model, content)
    session = onnxruntime.InferenceSession(content.getvalue(), providers=["CPUExecutionProvider"])
    images = torch.rand(5, 3, size, size, generator=generator)
    theirs = torch.from_numpy(session.run(None, {"images": images.numpy()})[0])
    ours = network(images)
    if theirs.shape != ours.shape or not (theirs - ours).abs().max() <= TOLERANCE * ours.abs().max():
        raise EncoderError("onnxruntime finds other representations in the exported model: it is of no use")
    return content.getvalue()
