"""`manyviews export`: write a run's encoder in other formats."""

from __future__ import annotations

import io
from typing import Annotated, Literal

import tyro

import manyviews as mv
from manyviews import utils
from manyviews.cli.common import OptionalPath, OutputFlag, RunArg, Unset, print_lines


def export_command(
    run: RunArg,
    target: Annotated[Literal["safetensors", "torchvision", "onnx"], tyro.conf.Positional],
    output: Annotated[OptionalPath, OutputFlag] = None,
    modality: Annotated[str | None, Unset] = None,
) -> None:
    """Write a run's encoder for other programs.

    Args:
        run: Directory of a finished run, or a .safetensors file written by this command.
        target: Format. safetensors: weights and encoder name, for `load_encoder`; torchvision: a .pth file with the
            parameter names of torchvision's ResNets; onnx: a model that is verified with onnxruntime.
        output: File to write. Default: a file in the run's directory (which already has the safetensors file).
        modality: Modality whose encoder is written as torchvision or onnx. Default: the first one of images.
    """
    import torch

    source = run if run.suffix == ".safetensors" and run.is_file() else mv.Run.open(run).encoder_path
    name, *suffixes = {
        "safetensors": ("encoder.safetensors", ".safetensors"),
        "torchvision": ("encoder-torchvision.pth", ".pth", ".pt"),
        "onnx": ("encoder.onnx", ".onnx"),
    }[target]
    path = source.with_name(name) if output is None else output
    if output is not None or path != source:
        utils.check_writable(path, suffixes, inputs=[source])
    encoder = mv.load_encoder(source)
    if target == "safetensors":
        description = f"encoders of {', '.join(encoder.modalities)}"
        if len(encoder.modalities) == 1 and encoder.config.largest_size:
            description = _describe_image_encoder(encoder.get_image_encoder()[1])
        content = source.read_bytes()
        usage = f"encoder = manyviews.load_encoder({str(path)!r})"
    else:
        module, spec = encoder.get_image_encoder(modality)
        description = _describe_image_encoder(spec)
        if target == "torchvision":
            weights, usage = mv.export.to_torchvision_state_dict(module.encoder, spec)
            usage = f"weights = torch.load({str(path)!r}, weights_only=True)\n{usage}"
            torch.save(weights, buffer := io.BytesIO())
            content = buffer.getvalue()
        else:
            content = mv.export.export_onnx(module, spec.size)
            usage = f"session = onnxruntime.InferenceSession({str(path)!r})\n"
            usage += f'(h,) = session.run(None, {{"images": images}})  # float32 (any, 3, {spec.size}, {spec.size})'
    if path != source:
        utils.write_atomic(path, content)
    print_lines(f"{path}: {description}", "", *usage.splitlines())


def _describe_image_encoder(spec: mv.models.EncoderSpec) -> str:
    return f"{spec.name} for images of {spec.size} x {spec.size}, RGB in [0, 1], not normalized"
