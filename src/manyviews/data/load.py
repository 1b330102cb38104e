"""One call for every data set."""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from manyviews.data import arrays, bundles, cifar, embedded, files, sentiment
from manyviews.data.dataset import Dataset, DatasetError, DatasetWarning
from manyviews.utils.budget import BudgetError
from manyviews.utils.text import describe_type

NAMED = ("photos", "digits", *cifar.LAYOUTS)
ELSEWHERE = ("imagenet", "imagenet100", "imagenet1k", "ch-sims", "cmu-mosei")
"""Data sets that have recipes, and no address to download them from."""
MOST_NOTES = 10
"""Of a bundle's, that are warned of."""
NO_SUBFOLDERS = "classes selects subfolders of a folder of images, which {} is not"


def data_home() -> Path:
    """Where named data sets are kept: $MANYVIEWS_DATA, else the user's cache.

    Examples:
        >>> data_home().is_absolute()
        True
    """
    return Path(os.environ.get("MANYVIEWS_DATA") or "~/.cache/manyviews").expanduser()


def path_of(source: str | Path) -> Path | None:
    """The path that a source is, or None if it is the name of a data set, as a text that is one always is.

    Examples:
        >>> path_of("photos"), str(path_of("./photos"))
        (None, 'photos')
    """
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(
            f"data must be a name ({', '.join(NAMED)}) or a path, got {describe_type(source)}: write its images to a "
            "folder, or its arrays to a file with numpy.savez(PATH, images=..., labels=...), and give the path"
        )
    path = Path(source).expanduser()
    return None if str(source) in NAMED and not (isinstance(source, Path) and path.exists()) else path


def is_plain_folder(path: Path) -> bool:
    """Whether a path is a folder laid out neither as CIFAR's nor as MERBench's: of images, if it holds anything."""
    known = [path, *(path / layout.folder for layout in cifar.LAYOUTS.values())]
    return path.is_dir() and not any(map(cifar.layout_of, known)) and not sentiment.is_merbench(path)


def load_dataset(
    source: str | Path,
    *,
    classes: str | Path | None = None,
    strict: bool = False,
    follow_links: bool = False,
) -> Dataset:
    """A data set by its name or its path; what had to be left out or changed is a `DatasetWarning`.

    Args:
        source: "photos" or "digits" (in the package), "cifar10" or "cifar100" (in `data_home()`, downloaded if need
            be), or a path: a folder of images, a CIFAR folder or archive, a .npz or .npy file of images, or a bundle of
            features (.npz, .pkl, .mat, or a folder of MERBench). "./photos" is a path.
        classes: a text file that names the classes (subfolders) to take, one a line.
        strict: a broken image is an error, instead of being named and left out.
        follow_links: take images behind links that lead out of the folder.

    Raises:
        DatasetError: the data is not there, or not what it should be.

    Examples:
        >>> load_dataset("photos")["test"]
        Split({'image': (1000, 3, 32, 32)}, labels)
    """
    path, name = path_of(source), str(source)
    if path is None:
        return _named(name, classes)
    if name in ELSEWHERE and not path.exists():
        raise DatasetError(f"{name} cannot be downloaded from here: get it and give its path (--data PATH)")
    if not path.exists():
        near = difflib.get_close_matches(name, NAMED, n=1)
        hint = f": did you mean {near[0]}?" if near else "."
        raise DatasetError(f"no data set {name!r}{hint} It is neither a path nor one of {', '.join(NAMED)}")
    with _translate_errors(name):
        if is_plain_folder(path):
            return files.load_folder(path, Path(classes) if classes else None, strict, follow_links)
        if classes is not None:
            raise DatasetError(NO_SUBFOLDERS.format(name))
        data = _laid_out(path)
    for note in data.notes[:MOST_NOTES]:
        warnings.warn(note, DatasetWarning, stacklevel=2)
    if (more := len(data.notes) - MOST_NOTES) > 0:
        warnings.warn(f"{path}: {more} more, which `manyviews data` shows", DatasetWarning, stacklevel=2)
    return data


@contextmanager
def _translate_errors(source: str) -> Iterator[None]:
    """Turn whatever a reader raises into a `DatasetError`."""
    try:
        yield
    except (DatasetError, Warning):
        raise
    except (BudgetError, OSError) as error:
        raise DatasetError(str(error)) from error
    # A file that was made to break its reader fails in any way.
    except Exception as error:
        raise DatasetError(f"cannot read {source}: {error!r}") from error


def _laid_out(path: Path) -> Dataset:
    """A file, or a folder of CIFAR or MERBench."""
    layout = cifar.layout_of(path)
    if layout is not None:
        return cifar.from_folder(path, layout) if path.is_dir() else cifar.from_archive(path, layout)
    if path.is_dir():
        inside = [path / known.folder for known in cifar.LAYOUTS.values() if cifar.layout_of(path / known.folder)]
        if len(inside) > 1:
            raise DatasetError(f"{path} holds more than one CIFAR: name one of {', '.join(map(str, inside))}")
        return _laid_out(inside[0]) if inside else sentiment.load_merbench(path)
    if path.suffix.lower() in (".npz", ".npy"):
        return arrays.load_arrays(path)
    if path.suffix.lower() in (".pkl", ".pickle"):
        return sentiment.load_pickle(path)
    if path.suffix.lower() == ".mat":
        return bundles.load_mat(path)
    raise DatasetError(f"{path}: expected a folder, a .npz, .npy, .pkl or .mat file, or an archive of CIFAR")


def _named(name: str, classes: str | Path | None) -> Dataset:
    """A data set by its name, whatever lies in the working directory."""
    if Path(name).exists():
        kind = "folder" if Path(name).is_dir() else "file"
        warnings.warn(f"{name} is the data set of that name: write ./{name} for the {kind} here", stacklevel=3)
    if classes is not None:
        raise DatasetError(NO_SUBFOLDERS.format(name))
    if name in cifar.LAYOUTS:
        with _translate_errors(name):
            return cifar.load_cifar(name, data_home())
    return embedded.photos() if name == "photos" else embedded.digits()
