"""Resumable, checksum-verified, atomic downloads."""

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
from manyviews.utils import STDERR, open_regular

CHUNK_BYTES = 2**20


def verify_md5(file: Path, md5: str) -> None:
    """Raise if the file has another checksum."""
    digest = hashlib.md5(usedforsecurity=False)
    with open_regular(file) as content:
        while chunk := content.read(CHUNK_BYTES):
            digest.update(chunk)
    if digest.hexdigest() != md5:
        raise DatasetError(
            f"{file} has the MD5 checksum {digest.hexdigest()}, expected {md5}: it is corrupt or a different file; "
            "delete it and download it again"
        )


def download(url: str, file: Path, md5: str) -> None:
    """Download to `file` through `file`.part; an interrupted download is resumed.

    If several processes call this, one downloads and the others wait.
    """
    partial = file.with_name(file.name + ".part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with _lock_download(partial):
            if file.exists():  # another process downloaded it
                return
            _download_rest(url, partial, file.name)
            try:
                verify_md5(partial, md5)
            except DatasetError:
                partial.unlink()
                raise
            partial.rename(file)
    except (OSError, http.client.HTTPException) as error:
        raise DatasetError(f"cannot download {url} ({error}): download it elsewhere and put it at {file}") from error


@contextmanager
def _lock_download(partial: Path) -> Iterator[None]:
    """Lock the partial file (not on Windows), so that no other process writes to it."""
    if os.name == "nt":
        yield
        return
    import fcntl

    while True:
        with partial.open("ab") as handle:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(handle, fcntl.LOCK_EX)
            # The previous owner may have renamed or deleted the file: then the lock is on the wrong file.
            try:
                if not os.path.samestat(os.fstat(handle.fileno()), partial.stat()):
                    continue
            except FileNotFoundError:
                continue
            try:
                yield
            finally:
                with suppress(FileNotFoundError):
                    if not partial.stat().st_size:
                        partial.unlink()
            return


def _download_rest(url: str, partial: Path, name: str) -> None:
    """Append the missing bytes to the partial file."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = TextColumn(name, markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    offset = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={offset}-"} if offset else {})  # noqa: S310
    try:
        with (
            urllib.request.urlopen(request, timeout=30) as response,  # noqa: S310
            Progress(*columns, console=Console(file=STDERR)) as progress,
        ):
            resumed = response.status == 206
            offset = offset if resumed else 0
            length = response.headers.get("Content-Length", "")
            total = int(length) + offset if length.isdecimal() else None
            task = progress.add_task("", total=total, completed=offset)
            with partial.open("ab" if resumed else "wb") as out:
                while chunk := response.read(CHUNK_BYTES):
                    out.write(chunk)
                    progress.advance(task, len(chunk))
                out.flush()
                os.fsync(out.fileno())
    except urllib.error.HTTPError as error:
        if error.code != 416 or not offset:  # 416: the partial file is complete
            raise
    else:
        if total is not None and (size := partial.stat().st_size) < total:
            raise DatasetError(f"the download of {url} stopped at {size:,} of {total:,} bytes: run it again to resume")
