"""Files that are either as they were or as they should be, whenever the machine stops."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


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
