"""`manyviews extract`: write features of texts, audio, images and videos, extracted by frozen models, to a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import manyviews as mv
from manyviews import utils
from manyviews.cli.common import Device, OptionalText, OutputFlag, Unset, print_lines

OptionalTexts = Annotated[tuple[str, ...], Unset]


def extract_command(
    data: str,
    output: Annotated[Path, OutputFlag],
    text: OptionalTexts = (),
    audio: OptionalTexts = (),
    vision: OptionalTexts = (),
    level: Literal["utterance", "frame"] = "utterance",
    layers: tuple[int, ...] = (-4, -3, -2, -1),
    num_frames: int = 16,
    segment_seconds: float = 30.0,
    max_steps: int = 0,
    precision: Literal["32", "bf16", "16"] = "32",
    batch_size: int = 8,
    num_workers: int = 2,
    device: Device = "auto",
    raise_on_corrupt: bool = False,
    follow_symlinks: bool = False,
    kinds: OptionalTexts = (),
    id_column: OptionalText = None,
    split_column: OptionalText = None,
    label_column: OptionalText = None,
) -> None:
    """Extract features of raw texts, audio, images and videos with frozen models, to train on with --data.

    An extraction that was stopped continues where it was; finished parts are in the folder OUTPUT.parts.

    Args:
        data: Dataset with texts or media: a table (.csv, .tsv, .jsonl, .parquet), hf:NAME_OR_FOLDER, tar shards or an
            image folder.
        output: .npz file to write.
        text: Model of the texts, hf:NAME_OR_FOLDER; or MODALITY=hf:NAME_OR_FOLDER, for each of several modalities.
        audio: Model of the audio, likewise.
        vision: Model of the images or videos, likewise.
        level: utterance: a vector for each instance, the mean over its steps; frame: all steps, a sequence.
        layers: Hidden layers that are averaged, for texts and audio: 0 is the input of the first layer, -1 the output
            of the last.
        num_frames: Number of frames of a video, evenly spaced.
        segment_seconds: Audio that is longer is encoded in segments of at most so many seconds.
        max_steps: Average neighboring steps of longer sequences, so that none has more; 0 keeps all.
        precision: Floating-point precision of the models; features are always float32.
        batch_size: Number of instances that are encoded together.
        num_workers: Number of threads that read files.
        device: Device; auto uses a GPU if available.
        raise_on_corrupt: Stop with an error at a corrupt file instead of skipping it with a warning.
        follow_symlinks: Follow symbolic links, and paths in a table, that lead out of the folder of the data.
        kinds: Kinds of a table's columns that are recognized wrongly: COLUMN=KIND.
        id_column: Column of a table with the ids of its rows. Default: id.
        split_column: Column of a table with the split of each row. Default: split.
        label_column: Column of a table with the labels. Default: label, class, target or group.
    """
    utils.check_writable(output, (".npz",), inputs=[data])
    dataset = mv.load_dataset(
        data,
        raise_on_corrupt=raise_on_corrupt,
        follow_symlinks=follow_symlinks,
        kinds=kinds,
        id_column=id_column,
        split_column=split_column,
        label_column=label_column,
    )
    models: dict[str, str] = {}
    for flag, values in (("text", text), ("audio", audio), ("vision", vision)):
        models |= _assign_models(dataset, flag, values)
    if not models:
        raise ValueError("no model is given: use --text, --audio or --vision hf:NAME_OR_FOLDER")
    options = mv.models.FeatureOptions(level, layers, num_frames, segment_seconds, max_steps, precision)
    dims = mv.export.extract_features(
        dataset,
        models,
        output,
        options,
        device=utils.resolve_device(device),
        batch_size=batch_size,
        num_workers=num_workers,
    )
    described = ", ".join(f"{name} of {dim}" for name, dim in dims.items())
    what = "vectors" if level == "utterance" else "sequences"
    print_lines(f"{output}: {sum(map(len, dataset.splits.values())):,} instances, {what}: {described}")


def _assign_models(dataset: mv.data.DatasetDict, flag: str, values: tuple[str, ...]) -> dict[str, str]:
    """Assign the models of a flag to modalities: by name, or to the only modality that it is for."""
    modalities = dataset["train"].modalities
    suitable = [name for name, column in modalities.items() if mv.models.get_tower(column) == flag]
    models = {}
    for value in values:
        name, equals, model = value.rpartition("=hf:")
        if not equals:
            if not value.startswith("hf:"):
                raise ValueError(f"--{flag} must be hf:NAME_OR_FOLDER or MODALITY=hf:NAME_OR_FOLDER, got {value!r}")
            if len(suitable) != 1:
                raise ValueError(
                    f"--{flag} {value}: {dataset.name} has {len(suitable) or 'no'} modalities for it"
                    + (f", {', '.join(suitable)}: use --{flag} {suitable[0]}={value}" if suitable else
                       f", only {', '.join(f'{name} ({column.kind})' for name, column in modalities.items())}")
                )  # fmt: skip
            name, model = suitable[0], value.removeprefix("hf:")
        if name not in suitable:
            raise ValueError(
                f"--{flag} {value}: {dataset.name} has no modality {name!r} for it{utils.suggest(name, suitable)}"
            )
        models[name] = f"hf:{model}"
    return models
