"""Features as sentiment toolkits keep them: pickles of MMSA and MultiBench, folders of MERBench.

- MMSA: `{train, valid, test}` -> `text`, `audio`, `vision`, `audio_lengths`, `vision_lengths`, `text_bert` (whose
  second row is the mask of the text), `regression_labels`, `id`
- MultiBench: `{train, valid, test}` -> `text`, `audio`, `vision`, `labels`, `id`
- MERBench: a folder with `label*.npz` (`train_corpus`, `val_corpus`, `test_corpus`: name -> `{emo: ..., val: ...}`;
  `val` is taken, or `emo` where `val` is the same for all) and, in it or in its `features`, a folder for each modality,
  `MODEL-UTT` (a vector for each name) or `MODEL-FRA` (a sequence), of `NAME.npy`

Pickles are read without running them.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from manyviews.data.arrays import members, read_npy
from manyviews.data.bundles import Raw, assembled, stack_rows
from manyviews.data.dataset import Dataset, DatasetError, split_of
from manyviews.data.pickles import load_numpy_pickle
from manyviews.utils.budget import Budget, BudgetError
from manyviews.utils.untrusted import check_regular

MODALITIES = ("text", "audio", "vision")
ENDINGS = ("-UTT", "-FRA")


def load_pickle(path: Path) -> Dataset:
    """A bundle of MMSA or MultiBench."""
    size = check_regular(path)
    with path.open("rb") as file:
        held = _named(load_numpy_pickle(file, str(path), size), f"{path}: expected a dictionary of splits")
    parts = {split: part for name, part in held.items() if (split := split_of(name)) and isinstance(part, dict)}
    if not parts:
        raise DatasetError(f"{path}: expected train, valid and test, as MMSA and MultiBench have, got {_told(held)}")
    notes: list[str] = []
    try:
        raws = {split: _raw(part, f"{path}, {split}", size, notes) for split, part in parts.items()}
    except (DatasetError, BudgetError):
        raise
    except (ValueError, TypeError, IndexError, OverflowError) as error:  # what numpy says of lists that are no arrays
        raise DatasetError(f"{path} is not as MMSA or MultiBench write it: {error}") from error
    return assembled(raws, path.stem, str(path), notes)


def _named(held: Any, expected: str) -> dict[str, Any]:
    """Pickles of Python 2 have bytes for names."""
    if not isinstance(held, dict):
        raise DatasetError(f"{expected}, got {type(held).__name__}")
    named = {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in held.items()}
    return {key: _named(value, expected) if isinstance(value, dict) else value for key, value in named.items()}


def _told(held: dict[str, Any]) -> str:
    return ", ".join(list(held)[:8]) or "nothing"


def _array(held: Any, where: str, size: int) -> np.ndarray:
    """What numpy makes of nested lists, in which each text takes the room of the longest."""

    def extent(held: Any) -> tuple[int, int]:
        if isinstance(held, (list, tuple)):
            inside = [extent(one) for one in held]
            return sum(count for count, _ in inside), max((longest for _, longest in inside), default=0)
        if isinstance(held, np.ndarray):
            return held.size, held.itemsize
        return 1, 4 * len(held) if isinstance(held, (str, bytes)) else 8

    if not isinstance(held, np.ndarray):
        Budget(where, size).take(math.prod(extent(held)))
    return stack_rows(held, where)


def _raw(part: dict[str, Any], where: str, size: int, notes: list[str]) -> Raw:
    def array(name: str) -> np.ndarray:
        return _array(part[name], f"{where}, {name}", size)

    raw = Raw({name: array(name) for name in MODALITIES if name in part})
    if not raw.modalities or any(rows.ndim == 0 for rows in raw.modalities.values()):
        raise DatasetError(f"{where}: expected {', '.join(MODALITIES)}, got {_told(part)}")
    for key in ("regression_labels", "labels"):
        if key in part and raw.labels is None:
            labels = array(key).reshape(len(part[key]), -1)
            raw.labels = labels if labels.dtype.kind in "iub" else labels.astype(np.float32)
    ids = part.get("id", ())
    raw.ids = tuple("_".join(map(str, np.ravel(_array(one, where, size)).tolist())) for one in ids)
    words = array("text_bert") if "text_bert" in part else None
    for name, rows in raw.modalities.items():
        if part.get(f"{name}_lengths") is not None:
            raw.lengths[name] = array(f"{name}_lengths")
        elif words is not None and rows.ndim == 3 and rows.shape[1] == words.shape[2]:
            raw.lengths[name] = words[:, 1].sum(1)  # aligned to the words, or the words themselves
    if extra := [key for key in part if key.startswith("regression_labels_")]:
        notes.append(f"{where}: {', '.join(extra)} are labels of single modalities, and left out")
    return raw


def is_merbench(path: Path) -> bool:
    return bool(_label_files(path)) and any(child.name.endswith(ENDINGS) for child in _features_of(path).iterdir())


def _label_files(path: Path) -> list[Path]:
    return sorted(path.glob("label*.npz"))


def _features_of(path: Path) -> Path:
    return path / "features" if (path / "features").is_dir() else path


def load_merbench(path: Path) -> Dataset:
    """A folder of MERBench."""
    files = _label_files(path)
    if len(files) > 1:
        raise DatasetError(f"{path} holds {len(files)} files of labels: keep one of {', '.join(f.name for f in files)}")
    inside = _features_of(path).iterdir()
    folders = sorted(child for child in inside if child.is_dir() and child.name.endswith(ENDINGS))
    raws: dict[str, Raw] = {}
    notes: list[str] = []
    for split, corpus in _corpora(files[0], notes).items():
        raw = raws[split] = Raw(
            labels=_meant(corpus, f"{files[0]}, {split}", files[0].stat().st_size), ids=tuple(corpus)
        )
        for folder in folders:
            raw.modalities[folder.name], raw.lengths[folder.name] = _features(folder, tuple(corpus))
        raw.lengths = {name: raw.lengths[name] for name, rows in raw.modalities.items() if rows.ndim == 3}
    return assembled(raws, path.resolve().name, str(path), notes)


def _corpora(path: Path, notes: list[str]) -> dict[str, dict[str, dict[str, Any]]]:
    """For each split the labels of each name."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    size = check_regular(path)
    try:
        with path.open("rb") as file:
            for member, _, content in members(file, Budget(path, size), by_name=True):
                split = split_of(member.partition("_")[0].rstrip("0123456789"))
                if split is None or split in found or not member.endswith("_corpus.npy"):
                    notes.append(f"{member} of {path} is not read")
                    continue
                np.lib.format.read_magic(content)
                np.lib.format.read_array_header_1_0(content)
                held = load_numpy_pickle(content, f"{path}, {member}", size)
                expected = f"{path}, {member}: expected a dictionary of names"
                found[split] = _named(held[0] if isinstance(held, list) else held, expected)
    except (DatasetError, BudgetError):
        raise
    except Exception as error:
        raise DatasetError(f"{path} holds no labels as MERBench writes them: {error!r}") from error
    if not found or not all(found.values()):
        raise DatasetError(f"{path}: expected train_corpus, val_corpus and test_corpus, with names")
    return found


def _meant(corpus: dict[str, dict[str, Any]], where: str, size: int) -> np.ndarray:
    """The quantity `val` of each name or, where there is none (it is then left out, or the same for all), `emo`."""
    try:
        values = [one.get("val") for one in corpus.values()]
        numbers = all(isinstance(value, (int, float)) for value in values)
        if numbers and (len(set(values)) > 1 or "emo" not in next(iter(corpus.values()))):
            return np.array(values, np.float32)
        return _array([one["emo"] for one in corpus.values()], where, size)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise DatasetError(f"{where}: expected val or emo for each name, got {error!r}") from error


def _features(folder: Path, names: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Vectors (n, d), or padded sequences (n, T, d), and their lengths; NaN where a name has no file."""
    rows: list[np.ndarray | None] = []
    total = 0
    for name in names:
        path = folder / f"{name}.npy"
        if path.parent != folder:
            raise DatasetError(f"{name!r} in the labels is no name of a file")
        if not path.is_file():
            rows.append(None)
            continue
        size = check_regular(path)
        total += size
        Budget(folder, total).take(total)
        try:
            with path.open("rb") as file:
                rows.append(read_npy(file, size).astype(np.float32))
        except (ValueError, TypeError, OSError, EOFError, MemoryError) as error:
            raise DatasetError(f"{path} is no whole .npy file of numbers: {error}") from error
    known = [row for row in rows if row is not None]
    if not known:
        raise DatasetError(f"{folder} has no features of {names[0]}.npy and all others")
    shapes = {(row.ndim, row.shape[-1] if row.ndim else 0) for row in known}
    if len(shapes) > 1 or next(iter(shapes))[0] not in (1, 2):
        raise DatasetError(f"{folder}: features must be (d,) or (T, d) with the same d, got {sorted(shapes)}")
    if known[0].ndim == 1:
        missing = np.full_like(known[0], np.nan)
        return np.stack([missing if row is None else row for row in rows]), np.ones(len(rows), np.int64)
    lengths = np.array([0 if row is None else len(row) for row in rows])
    shape = (len(rows), max(1, lengths.max()), known[0].shape[1])
    Budget(folder, total).take(4 * math.prod(map(int, shape)))
    out = np.full(shape, np.nan, np.float32)
    for place, row in enumerate(rows):
        if row is not None:
            out[place, : len(row)], out[place, len(row) :] = row, 0
    return out, lengths
