"""A file from its official address: resumed if it broke off, checked, and there whole or not at all."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from manyviews.data.dataset import DatasetError
from manyviews.utils.stderr import STDERR
from manyviews.utils.untrusted import open_regular

BLOCK = 2**20


def check(file: Path, md5: str) -> None:
    """Raise if the file is not the one with that checksum."""
    digest = hashlib.md5(usedforsecurity=False)
    with open_regular(file) as content:
        while block := content.read(BLOCK):
            digest.update(block)
    if digest.hexdigest() != md5:
        raise DatasetError(
            f"{file} has the MD5 checksum {digest.hexdigest()}, expected {md5}: it is broken or another file; "
            "delete it and fetch it again"
        )


def download(address: str, file: Path, md5: str) -> None:
    """Fetch to `file` by way of `file`.part, from where an earlier attempt broke off.

    Of several processes one fetches, and the others wait for it.
    """
    part = file.with_name(file.name + ".part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with _held(part):
            if file.exists():  # another process was first
                return
            _fetch(address, part, file.name)
            try:
                check(part, md5)
            except DatasetError:
                part.unlink()
                raise
            part.rename(file)
    except (OSError, http.client.HTTPException) as error:
        raise DatasetError(
            f"cannot download {address} ({error}): fetch it where you can and put it at {file}"
        ) from error


@contextmanager
def _held(part: Path) -> Iterator[None]:
    """Hold the part, where the system can (not on Windows), so that no other process writes to it."""
    if os.name == "nt":
        yield
        return
    import fcntl

    while True:
        with part.open("ab") as handle:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(handle, fcntl.LOCK_EX)
            # Who held it before may have renamed or deleted it: then this is the part no longer.
            try:
                if not os.path.samestat(os.fstat(handle.fileno()), part.stat()):
                    continue
            except FileNotFoundError:
                continue
            try:
                yield
            finally:
                with suppress(FileNotFoundError):
                    if not part.stat().st_size:
                        part.unlink()
            return


def _fetch(address: str, part: Path, name: str) -> None:
    """Append to the part what is missing of it."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = TextColumn(name, markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    done = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(address, headers={"Range": f"bytes={done}-"} if done else {})  # noqa: S310 (ours)
    try:
        with (
            urllib.request.urlopen(request, timeout=30) as answer,  # noqa: S310
            Progress(*columns, console=Console(file=STDERR)) as progress,
        ):
            resumed = answer.status == 206
            done = done if resumed else 0
            length = answer.headers.get("Content-Length", "")
            total = int(length) + done if length.isdecimal() else None
            task = progress.add_task("", total=total, completed=done)
            with part.open("ab" if resumed else "wb") as out:
                while block := answer.read(BLOCK):
                    out.write(block)
                    progress.advance(task, len(block))
                out.flush()
                os.fsync(out.fileno())
    except urllib.error.HTTPError as error:
        if error.code != 416 or not done:  # 416: nothing is missing from the part
            raise
    else:
        if total is not None and (here := part.stat().st_size) < total:
            raise DatasetError(
                f"the download of {address} broke off at {here:,} of {total:,} bytes: try again, it goes on from there"
            )
