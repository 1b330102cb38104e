"""Files that are either as they were or as they should be, whenever the machine stops."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A path beside it to write to; what is there when the block ends well takes its place, else the old file stays."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write the whole of a file, or nothing of it."""
    with replaced(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def claimed(folder: Path, file: str) -> Iterator[None]:
    """Hold a file of the folder, where the system can (not on Windows), so that no other process writes there too.

    Raises:
        BlockingIOError: another process holds it. A process that dies holds it no longer.
    """
    if os.name == "nt":
        yield
        return
    import fcntl

    with (folder / file).open() as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BlockingIOError(f"another process is at work in {folder}: wait for it, or stop it") from error
        yield


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to the disk, where the system can (not on Windows)."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
