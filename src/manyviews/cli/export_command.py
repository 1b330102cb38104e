"""`manyviews export`: write a run's encoder in other formats."""

from pathlib import Path
from typing import Annotated, Literal

import tyro

from manyviews.cli.common import OptionalPath, OutputFlag, RunArg, print_lines


def export_command(
    run: RunArg,
    target: Annotated[Literal["safetensors", "torchvision", "onnx"], tyro.conf.Positional],
    output: Annotated[OptionalPath, OutputFlag] = None,
) -> None:
    """Write a run's encoder for other programs.

    Args:
        run: Directory of a finished run, or a .safetensors file written by this command.
        target: Format. safetensors: weights and encoder name, for `load_encoder`; torchvision: a .pth file with the
            parameter names of torchvision's ResNets; onnx: a model that is verified with onnxruntime.
        output: File to write. Default: a file in the run's directory (which already has the safetensors file).
    """
    import io

    import torch

    from manyviews.export import export_onnx, to_torchvision_state_dict
    from manyviews.models import ImageEncoder, is_multimodal_file, load_image_encoder
    from manyviews.runs import Run
    from manyviews.utils import check_writable, write_atomic

    source = run if run.suffix == ".safetensors" and run.is_file() else Run.open(run).encoder_path
    name, *suffixes = _DEFAULT_FILES[target]
    path = source.with_name(name) if output is None else output
    if target == "safetensors" and is_multimodal_file(source):
        _export_multimodal(source, path)
        return
    encoder, config = load_image_encoder(source)
    if target != "safetensors" or output is not None:
        check_writable(path, suffixes, inputs=[source])
    if target == "safetensors":
        content = source.read_bytes()
        usage = f"encoder = manyviews.load_encoder({str(path)!r})"
    elif target == "torchvision":
        weights, usage = to_torchvision_state_dict(encoder, config)
        buffer = io.BytesIO()
        torch.save(weights, buffer)
        content = buffer.getvalue()
        usage = f"weights = torch.load({str(path)!r}, weights_only=True)\n{usage}"
    else:
        content = export_onnx(ImageEncoder(encoder, config.size))
        usage = (
            f"session = onnxruntime.InferenceSession({str(path)!r})\n"
            f'(h,) = session.run(None, {{"images": images}})  # float32 (any, 3, {config.size}, {config.size})'
        )
    if path != source:
        write_atomic(path, content)
    description = f"{config.encoder} for images of {config.size} x {config.size}, RGB in [0, 1], not normalized"
    print_lines(f"{path}: {description}", "", *usage.splitlines())


def _export_multimodal(source: Path, path: Path) -> None:
    from manyviews.models import load_multimodal_encoder
    from manyviews.utils import check_writable, write_atomic

    encoder = load_multimodal_encoder(source)
    if path != source:
        check_writable(path, (".safetensors",), inputs=[source])
        write_atomic(path, source.read_bytes())
    load = f"encoder = manyviews.load_encoder({str(path)!r})"
    print_lines(f"{path}: encoders for {', '.join(encoder.names)}", "", load)


_DEFAULT_FILES = {
    "safetensors": ("encoder.safetensors", ".safetensors"),
    "torchvision": ("encoder-torchvision.pth", ".pth", ".pt"),
    "onnx": ("encoder.onnx", ".onnx"),
}
