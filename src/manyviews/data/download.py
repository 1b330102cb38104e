"""Resumable, checksum-verified, atomic downloads."""

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from pathlib import Path

from manyviews.data.errors import DatasetError
from manyviews.utils import fsync_directory, lock_directory, open_regular, track

CHUNK_BYTES = 2**20


def get_data_home() -> Path:
    """Get the folder of downloaded datasets: $MANYVIEWS_DATA or ~/.cache/manyviews.

    Examples:
        >>> get_data_home().is_absolute()
        True
    """
    return Path(os.environ.get("MANYVIEWS_DATA") or "~/.cache/manyviews").expanduser()


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
        with lock_directory(file.parent):
            if file.exists():  # another process downloaded it
                return
            _download_rest(url, partial, file.name)
            try:
                verify_md5(partial, md5)
            except DatasetError:
                partial.unlink()
                raise
            partial.rename(file)
            fsync_directory(file.parent)
    except (OSError, http.client.HTTPException) as error:
        raise DatasetError(f"cannot download {url} ({error}): download it elsewhere and put it at {file}") from error


def _download_rest(url: str, partial: Path, name: str) -> None:
    """Append the missing bytes to the partial file."""
    offset = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={offset}-"} if offset else {})  # noqa: S310
    try:
        response = urllib.request.urlopen(request, timeout=30)  # noqa: S310
    except urllib.error.HTTPError as error:
        if error.code == 416 and offset:  # the partial file is complete
            return
        raise
    with response, partial.open("ab" if response.status == 206 else "wb") as out:
        length = response.headers.get("Content-Length", "")
        total = int(length) if length.isdecimal() else None
        chunks = iter(lambda: response.read(CHUNK_BYTES), b"")
        for chunk in track(chunks, f"{name} (MiB)", total and -(-total // CHUNK_BYTES)):
            out.write(chunk)
        out.flush()
        os.fsync(out.fileno())
        size, total = out.tell(), total and total + (offset if response.status == 206 else 0)
    if total and size < total:
        raise DatasetError(f"the download of {url} stopped at {size:,} of {total:,} bytes: run it again to resume")
