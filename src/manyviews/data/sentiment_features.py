"""Feature files of sentiment toolkits: pickles of MMSA and MultiBench, folders of MERBench.

- MMSA: `{train, valid, test}` -> `text`, `audio`, `vision`, `audio_lengths`, `vision_lengths`, `text_bert` (whose
  second row is the mask of the text), `regression_labels`, `id`
- MultiBench: `{train, valid, test}` -> `text`, `audio`, `vision`, `labels`, `id`
- MERBench: a folder with `label*.npz` (`train_corpus`, `val_corpus`, `test_corpus`: name -> `{emo: ..., val: ...}`;
  `val` is the label, or `emo` if `val` is constant) and, in it or in its `features`, a folder for each modality,
  `MODEL-UTT` (a vector for each name) or `MODEL-FRA` (a sequence), of `NAME.npy`

Pickles are read without executing them.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np

from manyviews.data.dataset import DatasetDict, get_canonical_split
from manyviews.data.errors import DatasetError, translate_errors
from manyviews.data.image_arrays import read_members, read_npy
from manyviews.data.multimodal_arrays import RawSplit, build_dataset
from manyviews.data.safe_pickle import load_numpy_pickle
from manyviews.utils import Budget, check_regular, describe_type

MODALITIES = ("text", "audio", "vision")
FEATURE_SUFFIXES = ("-UTT", "-FRA")


def load_pickle(path: Path) -> DatasetDict:
    """Load a pickle of MMSA or MultiBench."""
    size = check_regular(path)
    with path.open("rb") as file:
        content = _use_string_keys(load_numpy_pickle(file, str(path), size), f"{path}: expected a dictionary of splits")
    parts = {
        split: part for name, part in content.items() if (split := get_canonical_split(name)) and isinstance(part, dict)
    }
    if not parts:
        raise DatasetError(
            f"{path}: expected train, valid and test as in MMSA and MultiBench, got {_preview_keys(content)}"
        )
    messages: list[str] = []
    with translate_errors(f"{path} does not have the layout of MMSA or MultiBench"):  # errors of numpy on ragged lists
        raws = {split: _parse_split(part, f"{path}, {split}", size, messages) for split, part in parts.items()}
    return build_dataset(raws, path.stem, str(path), messages)


def _use_string_keys(content: Any, expected: str) -> dict[str, Any]:
    """Convert keys to strings; pickles of Python 2 have bytes."""
    if not isinstance(content, dict):
        raise DatasetError(f"{expected}, got {describe_type(content)}")
    named = {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in content.items()}
    return {
        key: _use_string_keys(value, expected) if isinstance(value, dict) else value for key, value in named.items()
    }


def _preview_keys(content: dict[str, Any]) -> str:
    return ", ".join(list(content)[:8]) or "nothing"


def _to_array(value: Any, context: str, size: int) -> np.ndarray:
    """Convert nested lists to an array, in which each string takes the memory of the longest."""

    def measure(value: Any) -> tuple[int, int]:
        if isinstance(value, (list, tuple)):
            sizes = [measure(item) for item in value]
            return sum(count for count, _ in sizes), max((itemsize for _, itemsize in sizes), default=0)
        if isinstance(value, np.ndarray):
            return value.size, value.itemsize
        return 1, 4 * len(value) if isinstance(value, (str, bytes)) else 8

    if not isinstance(value, np.ndarray):
        Budget(context, size).take(math.prod(measure(value)))
    try:
        return np.asarray(value)
    except ValueError as error:
        raise DatasetError(
            f"{context}: rows have different shapes: pad them to one array (n, T, d) and save their lengths as "
            "NAME_lengths"
        ) from error


def _parse_split(part: dict[str, Any], context: str, size: int, messages: list[str]) -> RawSplit:
    def array(name: str) -> np.ndarray:
        return _to_array(part[name], f"{context}, {name}", size)

    raw = RawSplit({name: array(name) for name in MODALITIES if name in part})
    if not raw.modalities or any(features.ndim == 0 for features in raw.modalities.values()):
        raise DatasetError(f"{context}: expected {', '.join(MODALITIES)}, got {_preview_keys(part)}")
    for key in ("regression_labels", "labels"):
        if key in part and raw.labels is None:
            labels = array(key).reshape(len(part[key]), -1)
            raw.labels = labels if labels.dtype.kind in "iub" else labels.astype(np.float32)
    ids = part.get("id", ())
    raw.ids = tuple("_".join(map(str, np.ravel(_to_array(i, context, size)).tolist())) for i in ids)
    words = array("text_bert") if "text_bert" in part else None
    for name, features in raw.modalities.items():
        if part.get(f"{name}_lengths") is not None:
            raw.lengths[name] = array(f"{name}_lengths")
        elif words is not None and features.ndim == 3 and features.shape[1] == words.shape[2]:
            raw.lengths[name] = words[:, 1].sum(1)  # the words, or features that are aligned to the words
    if extra := [key for key in part if key.startswith("regression_labels_")]:
        messages.append(f"{context}: {', '.join(extra)} are labels of single modalities and are skipped")
    return raw


def is_merbench(path: Path) -> bool:
    """Return whether a folder has the label file and the feature folders of MERBench."""
    return bool(_find_label_files(path)) and any(
        child.name.endswith(FEATURE_SUFFIXES) for child in _find_feature_root(path).iterdir()
    )


def _find_label_files(path: Path) -> list[Path]:
    return sorted(path.glob("label*.npz"))


def _find_feature_root(path: Path) -> Path:
    return path / "features" if (path / "features").is_dir() else path


def load_merbench(path: Path) -> DatasetDict:
    """Load a MERBench folder."""
    files = _find_label_files(path)
    if len(files) > 1:
        raise DatasetError(f"{path} has {len(files)} label files: keep one of {', '.join(f.name for f in files)}")
    children = _find_feature_root(path).iterdir()
    folders = sorted(child for child in children if child.is_dir() and child.name.endswith(FEATURE_SUFFIXES))
    raws: dict[str, RawSplit] = {}
    messages: list[str] = []
    for split, corpus in _read_labels(files[0], messages).items():
        raw = raws[split] = RawSplit(
            labels=_pick_target(corpus, f"{files[0]}, {split}", files[0].stat().st_size), ids=tuple(corpus)
        )
        for folder in folders:
            raw.modalities[folder.name], lengths = _load_features(folder, raw.ids)
            if lengths is not None:
                raw.lengths[folder.name] = lengths
    return build_dataset(raws, path.resolve().name, str(path), messages)


def _read_labels(path: Path, messages: list[str]) -> dict[str, dict[str, dict[str, Any]]]:
    """Read the labels of each name, by split."""
    corpora: dict[str, dict[str, dict[str, Any]]] = {}
    size = check_regular(path)
    with translate_errors(f"{path} does not have the layout of MERBench labels"), path.open("rb") as file:
        for member, _, content in read_members(file, Budget(path, size), by_name=True):
            split = get_canonical_split(member.partition("_")[0].rstrip("0123456789"))
            if split is None or split in corpora or not member.endswith("_corpus.npy"):
                messages.append(f"{member} of {path} is skipped")
                continue
            np.lib.format.read_magic(content)
            np.lib.format.read_array_header_1_0(content)
            obj = load_numpy_pickle(content, f"{path}, {member}", size)
            expected = f"{path}, {member}: expected a dictionary of names"
            corpora[split] = _use_string_keys(obj[0] if isinstance(obj, list) else obj, expected)
    if not corpora or not all(corpora.values()):
        raise DatasetError(f"{path}: expected train_corpus, val_corpus and test_corpus, with names")
    return corpora


def _pick_target(corpus: dict[str, dict[str, Any]], context: str, size: int) -> np.ndarray:
    """Pick the regression target `val` of each name or, if `val` is absent or constant, the class `emo`."""
    with translate_errors(f"{context}: expected val or emo for each name"):
        values = [labels.get("val") for labels in corpus.values()]
        is_numeric = all(isinstance(value, (int, float)) for value in values)
        if is_numeric and (len(set(values)) > 1 or "emo" not in next(iter(corpus.values()))):
            return np.array(values, np.float32)
        return _to_array([labels["emo"] for labels in corpus.values()], context, size)


def _load_features(folder: Path, names: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray | None]:
    """Load vectors (n, d), or padded sequences (n, T, d) and their lengths; NaN if a name has no file."""
    features: list[np.ndarray | None] = []
    total = 0
    for name in names:
        path = folder / f"{name}.npy"
        if path.parent != folder:
            raise DatasetError(f"{name!r} in the labels is not a valid file name")
        if not path.is_file():
            features.append(None)
            continue
        size = check_regular(path)
        total += size
        Budget(folder, total).take(total)
        with translate_errors(f"cannot parse {path} as a numeric .npy file"), path.open("rb") as file:
            features.append(read_npy(file, size).astype(np.float32))
    existing = [array for array in features if array is not None]
    if not existing:
        raise DatasetError(f"{folder} has no file for any name, such as {names[0]}.npy")
    shapes = {(array.ndim, array.shape[-1] if array.ndim else 0) for array in existing}
    if len(shapes) > 1 or existing[0].ndim not in (1, 2):
        raise DatasetError(f"{folder}: features must be (d,) or (T, d) with the same d, got {sorted(shapes)}")
    sequences = [None if array is None else np.atleast_2d(array) for array in features]
    lengths = np.array([0 if sequence is None else len(sequence) for sequence in sequences])
    shape = (len(sequences), max(1, int(lengths.max())), existing[0].shape[-1])
    Budget(folder, total).take(4 * math.prod(shape))
    out = np.full(shape, np.nan, np.float32)
    for i, sequence in enumerate(sequences):
        if sequence is not None:
            out[i, : len(sequence)], out[i, len(sequence) :] = sequence, 0
    return (out, lengths) if existing[0].ndim == 2 else (out[:, 0], None)
