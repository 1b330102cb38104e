"""A file from its official address: resumed if it broke off, checked, and there whole or not at all."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from pathlib import Path

from manyviews.data.dataset import DatasetError

BLOCK = 2**20


def check(file: Path, md5: str) -> None:
    """Raise if the file is not the one with that checksum."""
    digest = hashlib.md5(usedforsecurity=False)
    with file.open("rb") as content:
        while block := content.read(BLOCK):
            digest.update(block)
    if digest.hexdigest() != md5:
        raise DatasetError(
            f"{file} has the MD5 checksum {digest.hexdigest()}, expected {md5}: it is broken or another file; "
            "delete it and fetch it again"
        )


def download(address: str, file: Path, md5: str) -> None:
    """Fetch to `file` by way of `file`.part, from where an earlier attempt broke off."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    part = file.with_name(file.name + ".part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        done = part.stat().st_size if part.exists() else 0
        request = urllib.request.Request(address, headers={"Range": f"bytes={done}-"} if done else {})  # noqa: S310
        with (
            urllib.request.urlopen(request, timeout=30) as answer,  # noqa: S310
            Progress(TextColumn(file.name), BarColumn(), DownloadColumn(), TransferSpeedColumn()) as progress,
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
            if total is not None and (here := part.stat().st_size) < total:
                raise DatasetError(
                    f"the download of {address} broke off at {here:,} of {total:,} bytes: try again, "
                    "it goes on from there"
                )
    except urllib.error.HTTPError as error:
        if error.code != 416 or not part.exists():  # 416: nothing is missing from the part
            raise DatasetError(_by_hand(address, file, error)) from error
    except (OSError, http.client.HTTPException) as error:
        raise DatasetError(_by_hand(address, file, error)) from error
    try:
        check(part, md5)
    except DatasetError:
        part.unlink()
        raise
    part.rename(file)


def _by_hand(address: str, file: Path, error: Exception) -> str:
    return f"cannot download {address} ({error}): fetch it where you can and put it at {file}"
