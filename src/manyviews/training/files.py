"""Files that are either as they were or as they should be, whenever the machine stops."""

from __future__ import annotations

import errno
import glob
import os
import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from manyviews.utils.text import escape_surrogates
from manyviews.utils.untrusted import open_regular

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a write that may succeed once there is room: no space, no quota, a file larger than allowed."""


def check_writable(path: Path, endings: Collection[str], inputs: Iterable[str | Path] = ()) -> None:
    """Raise, before any work is done for it, unless a file of such an ending can be written there over no input."""
    if path.suffix.lower() not in endings:
        raise ValueError(f"the output must end in {', '.join(endings)}, and {path} does not")
    if path.is_dir():
        raise ValueError(f"cannot write {path}: it is a folder")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
        raise ValueError(f"cannot write {path}: {path.parent} is no folder that can be written to")
    for given in inputs:
        if path.exists() and Path(given).expanduser().exists() and path.samefile(Path(given).expanduser()):
            raise ValueError(f"{path} is what is read: name another output")


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A path beside it to write to; what is there when the block ends well takes its place, else the old file stays.

    What a killed process left of an earlier attempt is removed. An OSError names the file.
    """
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*"):
        if leftover.suffix[1:].isdigit() and stat.S_ISREG(leftover.lstat().st_mode):
            with suppress(OSError), leftover.open() as handle:
                if _lock(handle):
                    leftover.unlink()
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as handle:
            if _lock(handle) is None:
                handle.close()  # where nobody can tell a leftover, an open file may be in the way
            yield temporary
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
    except OSError as error:
        if error.errno and error.filename in (None, str(temporary)):
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write the whole of a file, or nothing of it."""
    with replaced(path) as temporary:
        temporary.write_bytes(escape_surrogates(content).encode() if isinstance(content, str) else content)


@contextmanager
def claimed(folder: Path, file: str, wait: bool = False) -> Iterator[int | None]:
    """Hold a file of the folder, where the system has locks, so that no other process writes there too.

    A process that dies holds it no longer. One that inherits the open file, whose descriptor is given, holds it too.

    Raises:
        BlockingIOError: another process holds it, and this one was not to wait.
    """
    with open_regular(folder / file) as handle:
        if _lock(handle, wait) is False:
            raise BlockingIOError(f"another process is at work in {folder}: wait for it, or stop it")
        yield handle.fileno()


@contextmanager
def take_turns(folder: Path) -> Iterator[bool]:
    """Wait until no other process is in such a block about the folder; gives False where the system has no locks."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # not to be read, or on Windows
        yield False
        return
    try:
        yield bool(_lock(handle, wait=True))
    finally:
        os.close(handle)


def _lock(handle: IO[Any] | int, wait: bool = False) -> bool | None:
    """Lock an open file until it is closed; False if another process holds it, None where the system has no locks."""
    if os.name == "nt":
        return None
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to the disk, where the system can (not on Windows)."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
