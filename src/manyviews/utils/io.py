"""Crash-safe file writes and locks."""

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

DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a write that may succeed after space is freed: disk full, quota exceeded, file too large."""


def check_writable(path: Path, suffixes: Collection[str], inputs: Iterable[str | Path] = ()) -> None:
    """Raise early unless a file with one of these suffixes can be written to `path` and `path` is not an input."""
    if path.suffix.lower() not in suffixes:
        raise ValueError(f"the output must end in {', '.join(suffixes)}, got {path}")
    if path.is_dir():
        raise ValueError(f"cannot write {path}: it is a folder")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
        raise ValueError(f"cannot write {path}: {path.parent} is not a writable folder")
    for source in inputs:
        if path.exists() and Path(source).expanduser().exists() and path.samefile(Path(source).expanduser()):
            raise ValueError(f"{path} is an input: choose another output")


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path; on success it atomically replaces `path`, on error `path` is untouched.

    Temporary files of killed processes are removed. An OSError has the name of `path`.
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
                handle.close()  # without locks (Windows), an open file cannot be replaced
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
    fsync_directory(path.parent)


def write_atomic(path: Path, content: bytes | str) -> None:
    """Write a file completely or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(escape_surrogates(content).encode() if isinstance(content, str) else content)


def append_line(path: Path, line: str) -> None:
    """Append a line to a file, which is created if needed, at once and synced to disk.

    Processes that append at once wait for each other. An incomplete last line, of a process that was killed, is ended
    first.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        _lock(file, wait=True)
        is_incomplete = False
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            is_incomplete = file.read(1) != b"\n"
        file.write(b"\n" * is_incomplete + line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def exclusive_lock(folder: Path, file: str, wait: bool = False) -> Iterator[int | None]:
    """Lock a file of the folder, where the system has locks, so that no other process writes to the folder.

    The lock ends with the process. A child that inherits the descriptor, which is yielded, keeps the lock. If another
    process has the lock, this waits or raises a BlockingIOError.
    """
    with open_regular(folder / file) as handle:
        if _lock(handle, wait) is False:
            raise BlockingIOError(f"another process is writing to {folder}: wait for it, or stop it")
        yield handle.fileno()


@contextmanager
def lock_directory(folder: Path) -> Iterator[bool]:
    """Wait until no other process is in this context for the folder; yields False where the system has no locks."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # not readable, or on Windows
        yield False
        return
    try:
        yield bool(_lock(handle, wait=True))
    finally:
        os.close(handle)


def _lock(handle: IO[Any] | int, wait: bool = False) -> bool | None:
    """Lock an open file until it is closed; return False if it is locked already, None where there are no locks."""
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


def fsync_directory(folder: Path) -> None:
    """Sync the entries of a folder to disk (does nothing on Windows)."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
