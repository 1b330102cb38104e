"""Folders of encoders, as on the Hub: config.json, model.safetensors, tokenizers, and a model card in README.md.

Reading a folder never executes code from it, and never reads a file outside of it.
"""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import nn

from manyviews import __version__
from manyviews.models.encoder_config import EncoderConfig, EncoderSpec
from manyviews.models.multi_view import MultiViewEncoder
from manyviews.models.serialization import EncoderError, load_encoder_weights, parse_encoder_config, serialize_module
from manyviews.transforms import CENTER_CROP_RATIO
from manyviews.utils import (
    MALFORMED_ERRORS,
    atomic_path,
    describe_type,
    escape_surrogates,
    logger,
    parse_json,
    read_text,
)

CONFIG_FILE, WEIGHTS_FILE, CARD_FILE = "config.json", "model.safetensors", "README.md"
FORMAT = 1
"""Number of the format of config.json."""
FIELDS = ("format", "manyviews", "encoders", "modalities", "dim")
SPEC_FIELDS = ("kind", "name", "options", "size", "preprocessing")
TOKENIZER = "tokenizer"
TOKENIZER_NAME = re.compile(r"tokenizer-[a-z0-9_-]{1,64}\.json")


def describe_images(spec: EncoderSpec) -> dict[str, Any]:
    """Return how an `Encoder` prepares images and frames, for readers of config.json who use the weights elsewhere."""
    return {
        "crop": "center",
        "crop_ratio": CENTER_CROP_RATIO,
        "interpolation": "bicubic",
        "antialias": True,
        "mean": spec.options.get("mean", [0.0, 0.0, 0.0]),
        "std": spec.options.get("std", [1.0, 1.0, 1.0]),
    }


IMPLIED_PREPROCESSING: Mapping[str, Callable[[EncoderSpec], dict[str, Any]]] = {
    "image": describe_images,
    "video": describe_images,
}
"""Preprocessing by kind that follows from the spec: it is written, and a file with another one is refused."""
IMPLIED_KEYS = {key for describe in IMPLIED_PREPROCESSING.values() for key in describe(EncoderSpec("", ""))}


def save_encoder_folder(folder: Path, encoder: MultiViewEncoder, card: str) -> None:
    """Write an encoder and its model card; an existing README.md is kept.

    All files appear at the end, the config last.

    Raises:
        EncoderError: the folder cannot be written, or has a model of another library.
    """
    assert encoder.config is not None
    fields, tokenizers = describe_config(encoder.config)
    files = {CONFIG_FILE: json.dumps(fields, indent=2) + "\n", **tokenizers}
    if (folder / CARD_FILE).exists():
        logger.info(f"{folder / CARD_FILE} exists and is kept")
    else:
        files[CARD_FILE] = escape_surrogates(card)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any((folder / name).exists() for name in (CONFIG_FILE, WEIGHTS_FILE)):
            _check_replaceable(folder)
        with ExitStack() as stack:  # the file that is entered first is renamed last
            for name, text in files.items():
                stack.enter_context(atomic_path(folder / name)).write_text(text, encoding="utf-8", newline="\n")
            stack.enter_context(atomic_path(folder / WEIGHTS_FILE)).write_bytes(serialize_module(encoder))
    except OSError as error:
        raise EncoderError(f"cannot write {folder}: {error}") from error


def _check_replaceable(folder: Path) -> None:
    try:
        read_folder_fields(folder)
    except EncoderError as error:
        raise EncoderError(f"{folder} has another model, which is not replaced: choose another folder") from error


def describe_config(config: EncoderConfig) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the content of config.json, and the texts of the tokenizers by file name."""
    encoders: dict[str, dict[str, Any]] = {}
    tokenizers: dict[str, str] = {}
    for name, spec in config.encoders.items():
        implied = IMPLIED_PREPROCESSING.get(spec.kind, lambda _: {})(spec)
        preprocessing = implied | spec.preprocessing
        if TOKENIZER in preprocessing:
            file = _name_tokenizer(name, len(tokenizers))
            tokenizers[file], preprocessing[TOKENIZER] = preprocessing[TOKENIZER], file
        encoders[name] = asdict(spec) | {"preprocessing": preprocessing}
    fields = {"encoders": encoders, "modalities": config.modalities, "dim": config.dim}
    return {"format": FORMAT, "manyviews": __version__, **fields}, tokenizers


def _name_tokenizer(encoder: str, number: int) -> str:
    """Return the name of a file, by the name of an encoder where that can be a part of it."""
    return f"tokenizer-{encoder if re.fullmatch(r'[a-z0-9][a-z0-9_-]{0,60}', encoder) else f'_{number}'}.json"


def is_encoder_folder(path: Path) -> bool:
    """Return whether a path is a folder with a file that `save_encoder_folder` writes."""
    return any((path / name).exists() for name in (CONFIG_FILE, WEIGHTS_FILE))


def load_encoder_folder(
    folder: Path, modules: Mapping[str, nn.Module] = MappingProxyType({}), source: str = ""
) -> MultiViewEncoder:
    """Load an encoder from a folder, in evaluation mode; `modules` are those that a user has built.

    Args:
        folder: the folder, or the snapshot of a repository in the cache of the Hub.
        modules: modules by modality or kind, as for `load_encoder_file`.
        source: what a user has given, for errors. Default: the folder.

    Raises:
        EncoderError: a file is missing or invalid, or the weights do not fit the config.
    """
    config = read_folder_config(folder)
    return load_encoder_weights(find_file(folder, WEIGHTS_FILE), config, modules, source or folder)


def read_folder_config(folder: Path) -> EncoderConfig:
    """Read config.json and the tokenizers that it names."""
    fields, path = read_folder_fields(folder), folder / CONFIG_FILE
    specs = {name: dict(spec) for name, spec in fields["encoders"].items()}
    for name, spec in specs.items():
        own = {key: value for key, value in spec["preprocessing"].items() if key not in IMPLIED_KEYS}
        if TOKENIZER in own:
            own[TOKENIZER] = _read_tokenizer(find_file(folder, own[TOKENIZER]))
        specs[name] = spec | {"preprocessing": own}
    metadata = {"encoders": specs, "modalities": fields["modalities"], "dim": fields["dim"]}
    config = parse_encoder_config(metadata, find_file(folder, WEIGHTS_FILE), f"{path}: invalid encoder config")
    for name, spec in describe_config(config)[0]["encoders"].items():
        given = fields["encoders"][name]["preprocessing"]
        for key in sorted({*given, *spec["preprocessing"]} - {TOKENIZER}):
            expected = spec["preprocessing"].get(key)
            if given.get(key) != expected:
                raise EncoderError(
                    f"{path}: {key} in the preprocessing of {name!r} is {given.get(key)!r}, expected {expected!r}: "
                    "manyviews has no other for this encoder"
                )
    return config


def read_folder_fields(folder: Path) -> dict[str, Any]:
    """Read config.json, and check its format and the names of its fields and files.

    Raises:
        EncoderError: it is not that of an encoder; the message names the field.
    """
    path = find_file(folder, CONFIG_FILE)
    try:
        fields = parse_json(read_text(path))
        if not isinstance(fields, dict) or "format" not in fields:
            raise ValueError("it has no field 'format': it is not that of an encoder of manyviews")
        if type(fields["format"]) is not int or fields["format"] != FORMAT:
            got, by = fields["format"], fields.get("manyviews")
            raise ValueError(
                f"its format is {got!r:.80}, expected {FORMAT}: manyviews {by!r:.80} wrote it, this is {__version__}"
            )
        _check_fields("it", fields, FIELDS)
        for name in ("encoders", "modalities"):
            if not isinstance(fields[name], dict):
                raise ValueError(f"its {name} are {describe_type(fields[name])}, expected an object")
        for name, spec in fields["encoders"].items():
            _check_fields(f"its encoder {name!r:.80}", spec, SPEC_FIELDS)
            preprocessing = spec["preprocessing"]
            if not isinstance(preprocessing, dict):
                raise ValueError(f"the preprocessing of its encoder {name!r:.80} is {describe_type(preprocessing)}")
            file = preprocessing.get(TOKENIZER, "tokenizer-x.json")
            if not isinstance(file, str) or not TOKENIZER_NAME.fullmatch(file):
                raise ValueError(f"its tokenizer {file!r:.80} is not the name of a file tokenizer-NAME.json")
    except (OSError, *MALFORMED_ERRORS) as error:
        raise EncoderError(f"{folder / CONFIG_FILE}: invalid encoder config: {error}") from error
    return fields


def list_files(fields: Mapping[str, Any]) -> list[str]:
    """List the other files that are read, by the content of config.json."""
    tokenizers = {spec["preprocessing"].get(TOKENIZER) for spec in fields["encoders"].values()} - {None}
    return [WEIGHTS_FILE, *sorted(tokenizers)]


def _check_fields(owner: str, value: object, names: tuple[str, ...]) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{owner} is {describe_type(value)}, expected an object")
    if missing := [name for name in names if name not in value]:
        raise ValueError(f"{owner} has no {missing[0]!r}")
    if unknown := [name for name in value if name not in names]:
        raise ValueError(f"{owner} has the unknown field {unknown[0]!r:.80}")


def _read_tokenizer(path: Path) -> str:
    try:
        text = read_text(path)
        if not isinstance(parse_json(text), dict):
            raise ValueError("expected a JSON object")
    except (OSError, ValueError) as error:
        raise EncoderError(f"cannot read the tokenizer {path}: {error}") from error
    return text


def find_file(folder: Path, name: str) -> Path:
    """Return the path of a file in a folder.

    Raises:
        EncoderError: there is none, or it is a link to a file elsewhere. In a snapshot of the Hub's cache, files are
            links into the `blobs` of the same repository.
    """
    path = folder / name
    try:
        resolved, root = path.resolve(strict=True), folder.resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
        raise EncoderError(
            f"{folder} has no file {name}: a folder of an encoder has {CONFIG_FILE} and {WEIGHTS_FILE}, as "
            "save_pretrained writes them"
        ) from error
    roots = [root, root.parents[1] / "blobs"] if root.parent.name == "snapshots" else [root]
    if resolved.parent not in roots:
        raise EncoderError(f"{path} is a link to {resolved}, out of the folder: copy the file into the folder")
    return path
