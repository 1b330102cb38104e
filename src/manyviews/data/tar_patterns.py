"""Names of tar files: braces and wildcards, as in `train-{000..099}.tar` and `*.tar`."""

import glob
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

from manyviews.data.errors import DatasetError

MAX_SHARDS = 100_000
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


def is_shards(source: str | Path) -> bool:
    """Return whether a source is a tar file, or a pattern of several.

    Examples:
        >>> is_shards("shards/{000..099}.tar"), is_shards("cifar-10-python.tar.gz")
        (True, False)
    """
    return str(source).lower().endswith(".tar") and not Path(source).is_dir()


def is_pattern(source: str) -> bool:
    """Return whether a source is a pattern of tar files, and not the name of one."""
    return is_shards(source) and bool(re.search(r"[{*?\[]", source)) and not Path(source).exists()


def expand_braces(pattern: str) -> Iterator[str]:
    """Expand `{000..099}` and `{a,b}`, as a shell does.

    Examples:
        >>> list(expand_braces("{train,val}-{08..10}.tar"))[2:5]
        ['train-10.tar', 'val-08.tar', 'val-09.tar']
    """
    match = _BRACES.search(pattern)
    if match is None:
        yield pattern
        return
    choices: list[str] = match[1].split(",")
    if bounds := _RANGE.fullmatch(match[1]):
        first, last, width = int(bounds[1]), int(bounds[2]), len(bounds[1])
        if not 0 <= last - first < MAX_SHARDS:
            raise DatasetError(f"{match[0]} has {last - first + 1:,} numbers, expected 1 to {MAX_SHARDS:,}")
        choices = [f"{number:0{width}d}" for number in range(first, last + 1)]
    for choice in choices:
        yield from expand_braces(pattern[: match.start()] + choice + pattern[match.end() :])


def list_shards(source: str) -> list[Path]:
    """List the tar files of a pattern, in the order of the pattern and then of their names.

    Raises:
        DatasetError: a file does not exist, or there are too many.
    """
    if Path(source).expanduser().exists():
        return [Path(source).expanduser()]
    paths: list[Path] = []
    for text in itertools.islice(expand_braces(source), MAX_SHARDS + 1):
        name = str(Path(text).expanduser())
        found = sorted(glob.glob(name)) if glob.has_magic(name) else [name]  # noqa: PTH207 (of absolute paths)
        if not found or not Path(found[0]).exists():
            raise DatasetError(f"no file {name} (of {source})" if name != source else f"no file {name}")
        paths += map(Path, found)
    if len(paths) > MAX_SHARDS:
        raise DatasetError(f"{source} has more than {MAX_SHARDS:,} files")
    return list(dict.fromkeys(paths))


def get_shards_name(source: str) -> str:
    """Return a name for shards: what their names have in common, or the name of their folder.

    Examples:
        >>> get_shards_name("cats/train-{000..099}.tar"), get_shards_name("cats/{000..099}.tar")
        ('train', 'cats')
    """
    stem = re.split(r"[{*?\[]", Path(source).name[: -len(".tar")])[0].rstrip("-_. ")
    return stem or re.split(r"[{*?\[]", Path(source).absolute().parent.name)[0].rstrip("-_. ") or "shards"
