"""Load any dataset by its name or path."""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from manyviews.data.builtin import load_digits, load_photos
from manyviews.data.cifar import CIFAR_SPECS, detect_cifar, download_cifar, load_cifar
from manyviews.data.dataset import DatasetDict
from manyviews.data.download import get_data_home
from manyviews.data.errors import DatasetError, translate_errors, warn_each
from manyviews.data.hf_datasets import HF_PREFIX, is_hf_folder, load_hf_dataset, resolve_hf_source
from manyviews.data.image_arrays import load_arrays
from manyviews.data.image_folder import load_image_folder
from manyviews.data.matlab import load_matlab_views
from manyviews.data.sentiment_features import is_merbench, load_merbench, load_pickle
from manyviews.data.table_file import TableOptions, convert_table
from manyviews.data.table_readers import TABLE_EXTENSIONS, read_table
from manyviews.data.tar_patterns import get_shards_name, is_pattern, is_shards
from manyviews.data.tar_shards import load_shards
from manyviews.utils import describe_type, suggest

BUILTIN_DATASETS = ("photos", "digits", *CIFAR_SPECS)
MANUAL_DATASETS = ("imagenet", "imagenet100", "imagenet1k", "ch-sims", "cmu-mosei")
"""Datasets that have recipes but cannot be downloaded automatically."""
_READERS = {
    **dict.fromkeys((".npz", ".npy"), load_arrays),
    **dict.fromkeys((".pkl", ".pickle"), load_pickle),
    ".mat": load_matlab_views,
}
TABLE_OPTION_ERROR = "{} is for the columns of a table (" + ", ".join(TABLE_EXTENSIONS) + "), and {} is not a table"
CLASS_LIST_ERROR = "a class list selects subfolders of an image folder, and {} is not an image folder"


def as_path(source: str | Path) -> Path | None:
    """Convert `source` to a path, or None if it is a name (built in, or `hf:NAME`) or a pattern of tar files.

    Strings always prefer the name.

    Examples:
        >>> as_path("photos"), str(as_path("./photos")), as_path("shards/{00..99}.tar")
        (None, 'photos', None)
    """
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(
            f"data must be a name ({', '.join(BUILTIN_DATASETS)}) or a path, got {describe_type(source)}: "
            "save its images in a folder, or its arrays in a file with numpy.savez(PATH, images=..., labels=...), "
            "and pass the path"
        )
    path, name = Path(source).expanduser(), str(source)
    is_name = name in BUILTIN_DATASETS or name.startswith(HF_PREFIX) or is_pattern(name)
    return None if is_name and not (isinstance(source, Path) and path.exists()) else path


def resolve_source(source: str | Path) -> str:
    """Make the paths in a source absolute, if they exist; names stay as they are.

    Examples:
        >>> resolve_source("photos"), resolve_source("hf:org/name/config"), resolve_source("/a/{0..9}.tar")
        ('photos', 'hf:org/name/config', '/a/{0..9}.tar')
    """
    path, name = as_path(source), str(source)
    if path is not None:
        return str(path.resolve()) if path.exists() else name
    if name.startswith(HF_PREFIX):
        return resolve_hf_source(name)
    return str(Path(name).expanduser().absolute()) if is_pattern(name) else name


def get_source_name(source: str) -> str:
    """Return a short name of a source, for directories of runs.

    Examples:
        >>> get_source_name("pets.csv"), get_source_name("hf:org/pets"), get_source_name("pets/{000..099}.tar")
        ('pets', 'pets', 'pets')
    """
    if is_shards(source):
        return get_shards_name(source)
    return Path(source.removeprefix(HF_PREFIX)).expanduser().resolve().stem or "data"


def is_image_folder(path: Path) -> bool:
    """Return whether a path is a folder with a layout other than those of CIFAR, MERBench and `datasets`."""
    candidates = [path, *(path / spec.folder for spec in CIFAR_SPECS.values())]
    is_other = any(map(detect_cifar, candidates)) or is_merbench(path) or is_hf_folder(path)
    return path.is_dir() and not is_other


def is_table(path: Path | None) -> bool:
    """Return whether a path is a table, by its extension.

    Examples:
        >>> is_table(Path("pets.csv")), is_table(Path("pets.npz"))
        (True, False)
    """
    return path is not None and path.suffix.lower() in TABLE_EXTENSIONS and not path.is_dir()


def load_dataset(
    source: str | Path,
    *,
    class_list: str | Path | None = None,
    raise_on_corrupt: bool = False,
    follow_symlinks: bool = False,
    kinds: Mapping[str, str] | Sequence[str] = (),
    id_column: str | None = None,
    split_column: str | None = None,
    label_column: str | None = None,
    strict_columns: bool = True,
) -> DatasetDict:
    """Load a dataset by its name or path; data that is skipped or changed raises a `DatasetWarning`.

    Args:
        source: "photos" or "digits" (built in), "cifar10" or "cifar100" (downloaded once to `get_data_home()`), or a
            path: a folder of images, a table (.csv, .tsv, .jsonl, .parquet), a tar file or a pattern of several
            ("shards/{000..099}.tar"), a folder of parquet files, a CIFAR folder or archive, a .npz or .npy file of
            images, or multimodal features (.npz, .pkl, .mat, or a MERBench folder). "./photos" is a path;
            "hf:NAME[/CONFIG]" and "hf:FOLDER" are Hugging Face datasets. Tar files and Hugging Face datasets are read
            as tables.
        class_list: text file with the classes (subfolders) to load, one per line.
        raise_on_corrupt: raise an error for a corrupt image, instead of skipping it with a warning.
        follow_symlinks: load files outside of the folder of the data, behind links or from the paths in a table.
        kinds: kinds of a table's columns that are recognized wrongly: image, text, sequence, vector or skip, as a dict
            by the name of the column or as texts COLUMN=KIND.
        id_column: column of a table with the ids of its rows. Default: id.
        split_column: column of a table with the split of each row. Default: split.
        label_column: column of a table with the labels. Default: label, class, target or group.
        strict_columns: raise an error for options about columns that the data does not have, instead of ignoring them.

    Raises:
        DatasetError: the data does not exist or is invalid.

    Examples:
        >>> load_dataset("photos")["test"]
        Dataset(1,000 instances, image (image), labels)
    """
    path, name = as_path(source), str(source)
    load_columns = _find_columns_loader(path, name)
    if load_columns is None and strict_columns:
        given = {"kinds": kinds or None, "id_column": id_column, "split_column": split_column}
        given["label_column"] = label_column
        if names := [key for key, value in given.items() if value is not None]:
            raise DatasetError(TABLE_OPTION_ERROR.format(names[0], name))
    if path is None and load_columns is None:
        return _load_builtin(name, class_list)
    if path is not None and name in MANUAL_DATASETS and not path.exists():
        raise DatasetError(f"{name} cannot be downloaded automatically: download it and pass its path (--data PATH)")
    if path is not None and not path.exists():
        raise DatasetError(f"no dataset or path {name!r}{suggest(name, BUILTIN_DATASETS)}")
    with translate_errors(f"cannot read {name}"):
        if load_columns is None and path is not None and is_image_folder(path):
            return load_image_folder(path, Path(class_list) if class_list else None, raise_on_corrupt, follow_symlinks)
        if class_list is not None:
            raise DatasetError(CLASS_LIST_ERROR.format(name))
        if load_columns is not None:
            options = TableOptions(
                kinds, id_column, split_column, label_column, raise_on_corrupt, follow_symlinks, strict_columns
            )
            data = load_columns(options)
        else:
            assert path is not None
            data = _load_path(path)
    warn_each(data.warnings, name)
    return data


def _find_columns_loader(path: Path | None, name: str) -> Callable[[TableOptions], DatasetDict] | None:
    """Find the function that loads a table, tar files or a Hugging Face dataset; None for other data."""
    if path is not None and is_table(path):
        return lambda options: convert_table(read_table(path), path.stem, options)
    if is_shards(name):
        return lambda options: load_shards(name, options)
    if path is None and name.startswith(HF_PREFIX):
        return lambda options: load_hf_dataset(name, options)
    if path is not None and is_hf_folder(path):
        return lambda options: load_hf_dataset(f"{HF_PREFIX}{path}", options)
    return None


def _load_path(path: Path) -> DatasetDict:
    """Load a file, or a folder of CIFAR or MERBench."""
    spec = detect_cifar(path)
    if spec is not None:
        return load_cifar(path, spec)
    if path.is_dir():
        folders = [path / spec.folder for spec in CIFAR_SPECS.values() if detect_cifar(path / spec.folder)]
        if len(folders) > 1:
            raise DatasetError(f"{path} has more than one CIFAR: choose one of {', '.join(map(str, folders))}")
        return _load_path(folders[0]) if folders else load_merbench(path)
    if path.suffix.lower() not in _READERS:
        is_compressed = path.name.lower().endswith((".tgz", ".tar.gz", ".tar.zst", ".tar.xz", ".tar.bz2"))
        hint = ": unpack it to .tar, whose members are read by their offsets" if is_compressed else ""
        raise DatasetError(
            f"{path}: expected a folder, a table ({', '.join(TABLE_EXTENSIONS)}), tar shards (.tar), a .npz, .npy, "
            f".pkl or .mat file, or a CIFAR archive{hint}"
        )
    return _READERS[path.suffix.lower()](path)


def _load_builtin(name: str, class_list: str | Path | None) -> DatasetDict:
    """Load a built-in dataset, even if the working directory has a file of that name."""
    if Path(name).exists():
        kind = "folder" if Path(name).is_dir() else "file"
        warnings.warn(
            f"{name} is the built-in dataset: use ./{name} for the {kind} in the working directory", stacklevel=3
        )
    if class_list is not None:
        raise DatasetError(CLASS_LIST_ERROR.format(name))
    if name in CIFAR_SPECS:
        with translate_errors(f"cannot read {name}"):
            return download_cifar(name, get_data_home())
    return load_photos() if name == "photos" else load_digits()
