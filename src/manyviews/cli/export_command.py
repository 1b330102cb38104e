"""`manyviews export`: write a run's encoder in other formats."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Annotated, Literal

import tyro

import manyviews as mv
from manyviews import utils
from manyviews.cli.common import OptionalPath, OutputFlag, RunArg, Unset, print_lines

Target = Literal["hub", "safetensors", "timm", "torchvision", "onnx"]
OUTPUTS: dict[Target, tuple[str, ...]] = {
    "hub": ("hub",),
    "safetensors": ("encoder.safetensors", ".safetensors"),
    "timm": ("encoder-timm.safetensors", ".safetensors"),
    "torchvision": ("encoder-torchvision.pth", ".pth", ".pt"),
    "onnx": ("encoder.onnx", ".onnx"),
}
"""The default name, in the directory of the run, and the extensions of other names."""


def export_command(
    run: RunArg,
    target: Annotated[Target, tyro.conf.Positional],
    output: Annotated[OptionalPath, OutputFlag] = None,
    modality: Annotated[str | None, Unset] = None,
) -> None:
    """Write a run's encoder for other programs.

    Args:
        run: Directory of a finished run, or a .safetensors file written by this command.
        target: Format. hub: a folder with weights, config, tokenizers and model card, for `load_encoder` and the
            Hugging Face Hub; safetensors: one file for `load_encoder`; timm: a .safetensors file for `checkpoint_path`
            of `timm.create_model`, or a folder that timm loads; torchvision: a .pth file with the parameter names of
            torchvision's model; onnx: a model that is verified with onnxruntime.
        output: File or folder to write. Default: one in the run's directory (which already has the safetensors file).
        modality: Modality whose encoder is written for timm, torchvision or onnx. Default: the first one of images.
    """
    source = run if run.suffix == ".safetensors" and run.is_file() else mv.Run.open(run).encoder_path
    name, *suffixes = OUTPUTS[target]
    path = source.with_name(name) if output is None else output
    is_folder = target == "hub" or (target == "timm" and path.suffix not in suffixes)
    if is_folder and path.resolve() == source.parent.resolve():
        raise ValueError(f"{path} is the directory of the run: choose another folder")
    if not is_folder and (output is not None or path != source):
        utils.check_writable(path, suffixes, inputs=[source])
    encoder = mv.load_encoder(run)
    if target == "hub":
        lines = _write_hub(encoder, path)
    elif target == "safetensors":
        lines = _write_safetensors(encoder, path, source)
    elif target == "timm":
        lines = _write_timm(encoder, modality, path, is_folder)
    elif target == "torchvision":
        lines = _write_torchvision(encoder, modality, path)
    else:
        lines = _write_onnx(encoder, modality, path)
    description, *usage = lines
    print_lines(f"{path}: {description}", "", *usage)


def _write_hub(encoder: mv.models.Encoder, path: Path) -> list[str]:
    encoder.save_pretrained(path)
    return [
        f"encoders of {', '.join(encoder.modalities)}; choose a license in README.md before you publish it",
        f"encoder = manyviews.load_encoder({str(path)!r})",
        f'hf upload ORG/NAME {path}  # then manyviews.load_encoder("hf-hub:ORG/NAME")',
    ]


def _write_safetensors(encoder: mv.models.Encoder, path: Path, source: Path) -> list[str]:
    if path != source:
        utils.write_atomic(path, source.read_bytes())
    description = f"encoders of {', '.join(encoder.modalities)}"
    if len(encoder.modalities) == 1 and encoder.config.largest_size:
        description = _describe_images(encoder.get_image_encoder()[1])
    return [description, f"encoder = manyviews.load_encoder({str(path)!r})"]


def _write_timm(encoder: mv.models.Encoder, modality: str | None, path: Path, is_folder: bool) -> list[str]:
    module, spec = encoder.get_image_encoder(modality)
    weights, model = mv.export.to_timm_model(module.encoder, spec)
    if is_folder:
        mv.export.write_timm_folder(path, weights, model, spec)
        usage = f"model = timm.create_model({f'local-dir:{path}'!r}, pretrained=True)"
    else:
        utils.write_atomic(path, mv.models.serialize_module(weights))
        usage = f"model = timm.create_model({model!r}, num_classes=0, checkpoint_path={str(path)!r})"
    return [_describe_images(spec, spec.options), usage]


def _write_torchvision(encoder: mv.models.Encoder, modality: str | None, path: Path) -> list[str]:
    import torch

    module, spec = encoder.get_image_encoder(modality)
    weights, usage = mv.export.to_torchvision_state_dict(module.encoder, spec)
    torch.save(weights, buffer := io.BytesIO())
    utils.write_atomic(path, buffer.getvalue())
    load = f"weights = torch.load({str(path)!r}, weights_only=True)"
    return [_describe_images(spec, spec.options), load, *usage.splitlines()]


def _write_onnx(encoder: mv.models.Encoder, modality: str | None, path: Path) -> list[str]:
    module, spec = encoder.get_image_encoder(modality)
    utils.write_atomic(path, mv.export.export_onnx(module, spec.size))
    return [
        _describe_images(spec),
        f"session = onnxruntime.InferenceSession({str(path)!r})",
        f'(h,) = session.run(None, {{"images": images}})  # float32 (any, 3, {spec.size}, {spec.size})',
    ]


def _describe_images(spec: mv.models.EncoderSpec, options: dict[str, object] | None = None) -> str:
    """Describe the input of an encoder; `options` has the mean and std of images if the caller normalizes them."""
    options = options or {}
    normalized = f"normalized by mean {options['mean']} and std {options['std']}" if "mean" in options else ""
    return f"{spec.name} for images of {spec.size} x {spec.size}, RGB in [0, 1], {normalized or 'not normalized'}"
