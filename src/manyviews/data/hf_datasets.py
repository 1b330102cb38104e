"""Hugging Face datasets: `hf:NAME`, `hf:FOLDER`, and objects of `datasets`. A dataset is a table with typed columns.

Parquet files are converted once to Arrow files of the cache of `datasets`, in a process of its own, and then mapped
into memory: encoded images, audio and video are read when they are needed, and no column of them is loaded.
"""

from __future__ import annotations

import glob
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from manyviews.data.arrow_blobs import ArrowBlobs
from manyviews.data.arrow_cells import read_chunk
from manyviews.data.dataset import DatasetDict, get_canonical_split
from manyviews.data.errors import DatasetError, translate_errors
from manyviews.data.image_files import IMAGE_EXTENSIONS
from manyviews.data.table_columns import SKIP, choose_array_kind
from manyviews.data.table_file import TableOptions, convert_table
from manyviews.data.table_readers import EncodedFile, RawTable
from manyviews.utils import MAX_EXPANSION, MIN_BUDGET_BYTES, check_regular, get_memory_limit

if TYPE_CHECKING:
    import datasets

HF_PREFIX = "hf:"
BATCH_ROWS = 1000
MEDIA_FEATURES = {"Image": "image", "Audio": "audio", "Video": "video"}
"""Kinds of columns by the names of their features in `datasets`."""


def is_hf_dataset(source: object) -> bool:
    """Return whether an object is a `Dataset` of `datasets`, or a dict of them by split.

    One with a function as transform (`set_transform`) is not: it is used item by item, like any map-style dataset.
    """
    module = sys.modules.get("datasets")
    if module is None:
        return False
    parts = list(source.values()) if isinstance(source, Mapping) else [source]
    if any(isinstance(part, module.IterableDataset) for part in parts):
        raise DatasetError(
            "the dataset is streamed, so its instances cannot be drawn in random order: load it without streaming=True"
        )
    return bool(parts) and all(isinstance(part, module.Dataset) and part.format["type"] != "custom" for part in parts)


def convert_hf_dataset(source: Any) -> DatasetDict:
    """Convert a `Dataset` or a dict of them by split; without splits, all instances are for training."""
    parts = dict(source) if isinstance(source, Mapping) else {"train": source}
    return convert_table(_read_parts(parts, "the dataset", TableOptions(), None), "dataset", TableOptions())


def is_hf_folder(path: Path) -> bool:
    """Return whether a folder has the output of `save_to_disk`, or parquet files as the Hub lays them out.

    These are in the folder, in `data`, or in folders of splits, without images next to them.
    """
    if not path.is_dir() or _is_saved(path):
        return path.is_dir()
    folders = [path, path / "data"]
    with os.scandir(path) as entries:
        folders += [path / entry.name for entry in entries if get_canonical_split(entry.name) and entry.is_dir()]
    return any(_has_parquet(folder) for folder in folders)


def _is_saved(path: Path) -> bool:
    return (path / "dataset_dict.json").is_file() or (path / "state.json").is_file()


def _has_parquet(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    result = False
    with os.scandir(folder) as entries:
        for entry in entries:
            suffix = os.path.splitext(entry.name)[1].lower()  # noqa: PTH122 (fast)
            if suffix in IMAGE_EXTENSIONS:
                return False
            result = result or suffix == ".parquet"
    return result


def resolve_hf_source(source: str) -> str:
    """Make the folder of a source absolute; a name stays as it is."""
    path = Path(source.removeprefix(HF_PREFIX)).expanduser()
    return HF_PREFIX + str(path.resolve()) if path.is_dir() else source


def load_hf_dataset(source: str, options: TableOptions) -> DatasetDict:
    """Load `hf:NAME`, `hf:NAME/CONFIG` or `hf:FOLDER`; options are those of a table.

    Raises:
        DatasetError: the dataset does not exist, is not cached and cannot be downloaded, or is invalid.
    """
    if find_spec("datasets") is None:
        raise DatasetError(f'reading {source} needs datasets: pip install "manyviews[hf]"')
    name = source.removeprefix(HF_PREFIX)
    folder = Path(name).expanduser()
    if folder.is_dir():
        with translate_errors(f"cannot read {folder}"):
            parts, skipped = _load_folder(folder)
            roots, label = [folder.resolve()], folder.resolve().name
            for part in parts.values():
                part.data.validate(full=True)  # offsets that lead out of a column
    else:
        parts, skipped = _load_name(name), []
        import datasets
        from huggingface_hub import constants

        caches = (datasets.config.HF_CACHE_HOME, datasets.config.HF_DATASETS_CACHE, constants.HF_HUB_CACHE)
        roots, label = [Path(cache).resolve() for cache in caches], "-".join(name.split("/")[1:] or [name])
    table = _read_parts(parts, source, options, None if options.follow_symlinks else roots)
    if len(parts) == 1:
        table.splits = None  # a column may have them, or else a random fifth is for testing
    table.warnings[:0] = skipped
    return convert_table(table, label, options)


def _load_folder(folder: Path) -> tuple[dict[str, datasets.Dataset], list[str]]:
    import datasets

    if _is_saved(folder):
        saved = datasets.load_from_disk(str(folder))
        return (dict(saved) if isinstance(saved, Mapping) else {"train": saved}), []
    files, skipped = _list_parquet(folder)
    if chained := [path for paths in files.values() for path in paths if "::" in str(path)]:
        raise DatasetError(f"{chained[0]} has '::' in its name, which separates addresses for `datasets`: rename it")
    total = sum(check_regular(path) for paths in files.values() for path in paths)
    names = {split: [str(path) for path in paths] for split, paths in files.items()}
    return _build("parquet", None, names, max(MIN_BUDGET_BYTES, MAX_EXPANSION * total)), skipped


def _list_parquet(folder: Path) -> tuple[dict[str, list[Path]], list[str]]:
    """List the parquet files of each split, by the words in their names or the names of their folders."""
    root = folder.resolve()
    names = sorted(path.relative_to(root) for path in root.rglob("*.parquet"))
    names = [name for name in names if not any(part.startswith(".") for part in name.parts)]
    if not names:
        raise DatasetError(f"{folder} has no .parquet files, and is not the output of save_to_disk")
    configs: dict[str, None] = {}
    files: dict[str | None, list[Path]] = {}
    for name in names:
        parts = name.parts
        if len(parts) > 1 and parts[0] != "data" and get_canonical_split(parts[0]) is None:
            configs[parts[0]] = None
        words = [word for part in reversed(parts) for word in re.split(r"[^A-Za-z]+", part.removesuffix(".parquet"))]
        files.setdefault(next(filter(None, map(get_canonical_split, words)), None), []).append(root / name)
    if len(configs) > 1:
        raise DatasetError(f"{folder} has several configurations: choose one, as in {HF_PREFIX}{folder / min(configs)}")
    unknown = files.pop(None, [])
    if not files:
        return {"train": unknown}, []
    skipped = [
        f"{len(unknown):,} files without a split in their names are skipped, first: {path}" for path in unknown[:1]
    ]
    return {str(split): part for split, part in files.items()}, skipped


def _load_name(name: str) -> dict[str, datasets.Dataset]:
    parts = name.split("/")
    if name.startswith((".", "~", "/")) or len(parts) > 3 or not all(parts):
        raise DatasetError(f"no folder {name}: {HF_PREFIX} takes NAME, ORGANIZATION/NAME[/CONFIG] or a folder")
    path, config = "/".join(parts[:2]), parts[2] if len(parts) == 3 else None
    try:
        return _build(path, config, None, None)
    except Exception as error:
        reason = " ".join(str(error).split())[:1000]
        raise DatasetError(
            f"cannot load the dataset {name} of the Hugging Face Hub: {reason}. Without network, run `hf download "
            f"--repo-type dataset {path} --local-dir FOLDER` on a machine that has it, and use {HF_PREFIX}FOLDER"
        ) from error


def _build(
    path: str, config: str | None, files: dict[str, list[str]] | None, max_file: int | None
) -> dict[str, datasets.Dataset]:
    """Convert a dataset to Arrow files, unless it has been converted, and map them into memory."""
    import datasets

    # Names of files are patterns for `datasets`: without escapes, those of other folders may match.
    data_files = files and {split: list(map(glob.escape, names)) for split, names in files.items()}
    arguments: dict[str, Any] = {"path": path, "name": config, "data_files": data_files}
    arguments["cache_dir"] = str(datasets.config.HF_DATASETS_CACHE)
    builder = datasets.load_dataset_builder(**arguments)
    if not (Path(builder.cache_dir) / datasets.config.DATASET_INFO_FILENAME).exists():
        limits = {"max_memory": get_memory_limit(), "max_file": max_file}
        program = Path(__file__).with_name("_prepare_hf.py")
        no_bars = {} if sys.stderr.isatty() else {"HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
        done = subprocess.run(  # noqa: S603
            [sys.executable, str(program), json.dumps({**limits, "arguments": arguments})],
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            check=False,
            env={**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1", **no_bars},
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines()
            reason = lines[-1] if lines and done.returncode > 0 else f"its reader ended with {done.returncode}"
            raise DatasetError(f"cannot read {_describe_files(path, files)}: {reason[:1000]}")
        builder = datasets.load_dataset_builder(**arguments)  # with the result; this process does not convert anything
    return dict(builder.as_dataset())


def _describe_files(path: str, files: dict[str, list[str]] | None) -> str:
    names = [name for part in (files or {}).values() for name in part]
    return path if not names else names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _read_parts(
    parts: Mapping[str, datasets.Dataset], source: str, options: TableOptions, roots: Sequence[Path] | None
) -> RawTable:
    """Read splits to one table. Files that a cell only names must be in one of `roots`; None means anywhere."""
    import datasets

    names = {split: get_canonical_split(split) for split in parts}
    if len(parts) == 1:
        names = dict.fromkeys(parts, "train")
    kept = {split: _select_formatted(part) for split, part in parts.items() if names[split]}
    warnings = [f"{source}: the split {split} is skipped" for split in parts if split not in kept]
    canonical = [str(names[split]) for split in kept]
    if "train" not in canonical or len(set(canonical)) < len(canonical):
        raise DatasetError(f"{source} must have train, and each split once, got {', '.join(map(str, parts))}")
    _check_features(kept, source)
    with translate_errors(f"{source}: the splits differ"):
        merged = datasets.concatenate_datasets(list(kept.values()))
    split_sizes = tuple((split, len(part)) for split, part in kept.items())
    rows = [f"{split}/{i}" for split, part in kept.items() for i in range(len(part))]
    ids = tuple(str(i) for part in kept.values() for i in range(len(part)))
    splits = [name for name, part in zip(canonical, kept.values(), strict=True) for _ in range(len(part))]
    table = RawTable(source, rows=rows, ids=ids, splits=splits, warnings=warnings)
    told = options.parse_kinds()
    for name, feature in merged.features.items():
        if told.get(name) == SKIP:
            table.columns[name] = [None] * len(rows)
        else:
            column = merged.select_columns([name]).with_format("arrow")
            kind = MEDIA_FEATURES.get(type(feature).__name__, "")
            if not kind and told.get(name) in MEDIA_FEATURES.values() and _has_binary(feature):
                kind = told[name]
            if kind:
                blobs = ArrowBlobs.make(column, f"{source}, column {name}", split_sizes, roots)
                table.columns[name] = [EncodedFile(kind) if exists else None for exists in blobs.exists.tolist()]
                table.blobs[name] = blobs
            else:
                _read_column(table, name, feature, column)
    return table


def _select_formatted(part: datasets.Dataset) -> datasets.Dataset:
    """Select the columns that items have: `set_format(columns=...)` may have chosen some."""
    chosen = part.format
    return part if chosen["output_all_columns"] else part.select_columns(chosen["columns"])


def _check_features(parts: Mapping[str, datasets.Dataset], source: str) -> None:
    """Raise a DatasetError if a column has classes of other names, or in another order, in another split."""
    first: dict[str, tuple[str, Any]] = {}
    for split, part in parts.items():
        for name, feature in part.features.items():
            other_split, other = first.setdefault(name, (split, feature))
            classes, expected = getattr(feature, "names", None), getattr(other, "names", None)
            if classes != expected:
                raise DatasetError(
                    f"{source}: column {name} has the classes {_list_classes(expected)} in {other_split} and "
                    f"{_list_classes(classes)} in {split}: make them equal with cast_column"
                )


def _list_classes(names: Sequence[str] | None) -> str:
    return ", ".join(names)[:200] if names else "none"


def _read_column(table: RawTable, name: str, feature: Any, column: datasets.Dataset) -> None:
    """Read the cells of a column that does not have files."""
    table.columns[name] = cells = [cell for chunk in _iterate_chunks(column) for cell in read_chunk(chunk, feature)]
    if (classes := getattr(feature, "names", None)) and type(feature).__name__ == "ClassLabel":
        table.class_names[name] = tuple(classes)
        # A negative class means that there is none.
        table.columns[name] = [classes[cell] if isinstance(cell, int) and cell >= 0 else None for cell in cells]
    elif any(isinstance(cell, np.ndarray) for cell in cells):
        table.kinds[name] = choose_array_kind(cells)
    elif any(isinstance(cell, str) for cell in cells):
        table.kinds[name] = "text"


def _has_binary(feature: Any) -> bool:
    """Return whether a feature is binary, or a struct of bytes and path that is not declared to be an image."""
    feature = feature.get("bytes") if isinstance(feature, dict) else feature
    return getattr(feature, "dtype", "") in ("binary", "large_binary")


def _iterate_chunks(column: datasets.Dataset) -> Iterator[Any]:
    for batch in column.iter(BATCH_ROWS):
        yield from batch.column(0).chunks
