"""The members of a tar file: checked headers, and an index that is made once and kept.

A header has 512 bytes: name, size, type, checksum; the content follows it, padded to 512 bytes. Only headers are read,
so an index takes one pass of seeks. The index is `NAME.tar.index.npz` next to the file or, if that folder cannot be
written, in the folder `tar-index` of `get_data_home()`.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from manyviews.data.download import get_data_home
from manyviews.data.errors import DatasetError
from manyviews.data.image_arrays import read_npy
from manyviews.utils import Budget, atomic_path, check_regular

BLOCK_BYTES = 512
MAX_EXTENDED_BYTES = 2**16
"""Maximum size of an extended header: a long name, or records of the pax format."""
INDEX_SUFFIX = ".index.npz"
INDEX_VERSION = 1
KIND_NAMES = {
    tarfile.LNKTYPE: "a link",
    tarfile.SYMTYPE: "a link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a named pipe",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
}
EXTENDED_TYPES = (
    tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK,
)  # fmt: skip
"""Headers about the next member or, `XGLTYPE`, about all of them."""
REGULAR_TYPES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)


@dataclass(frozen=True)
class TarIndex:
    """The files in a tar: names, and offsets and sizes of their contents, int64 (n,)."""

    names: tuple[str, ...]
    offsets: np.ndarray
    sizes: np.ndarray


def load_index(path: Path) -> TarIndex:
    """Load the index of a tar file, or make and keep it if there is none, or if the file has changed.

    Raises:
        DatasetError: the file is not a tar file or is truncated, or a member is not a file in the archive's folder.

    Examples:
        >>> import io, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with tarfile.open(Path(folder) / "a.tar", "w") as tar:
        ...         member = tarfile.TarInfo("0001.txt")
        ...         member.size = 3
        ...         tar.addfile(member, io.BytesIO(b"cat"))
        ...     load_index(Path(folder) / "a.tar").names
        ('0001.txt',)
    """
    check_regular(path)
    status = path.stat()
    stamp = np.array([INDEX_VERSION, status.st_size, status.st_mtime_ns])
    beside, cached = path.with_name(path.name + INDEX_SUFFIX), _get_cache_path(path)
    for candidate in (beside, cached):
        if index := _read_index(candidate, stamp):
            return index
    index = make_index(path)
    for candidate in (beside, cached):
        with suppress(OSError):  # a folder that cannot be written, a full disk: the index is made again next time
            candidate.parent.mkdir(parents=True, exist_ok=True)
            _write_index(candidate, index, stamp)
            break
    return index


def _get_cache_path(path: Path) -> Path:
    digest = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:16]
    return get_data_home() / "tar-index" / f"{path.name}-{digest}{INDEX_SUFFIX}"


def _write_index(path: Path, index: TarIndex, stamp: np.ndarray) -> None:
    names = np.frombuffer("\0".join(index.names).encode("utf-8", "surrogateescape"), np.uint8)
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez(file, stamp=stamp, names=names, offsets=index.offsets, sizes=index.sizes)


def _read_index(path: Path, stamp: np.ndarray) -> TarIndex | None:
    """Read a kept index; None if there is none, or if it does not belong to the file or is corrupt."""
    try:
        size = check_regular(path)
        arrays: dict[str, np.ndarray] = {}
        with zipfile.ZipFile(path) as archive:
            for name in ("stamp", "names", "offsets", "sizes"):
                info = archive.getinfo(f"{name}.npy")
                if info.compress_type != zipfile.ZIP_STORED or info.file_size > size:
                    return None
                with archive.open(info) as file:
                    arrays[name] = read_npy(file, info.file_size)
        offsets, sizes = arrays["offsets"], arrays["sizes"]
        text = arrays["names"].tobytes().decode("utf-8", "surrogateescape")
        names = tuple(text.split("\0")) if text else ()
        is_valid = (
            np.array_equal(arrays["stamp"], stamp)
            and offsets.dtype == sizes.dtype == np.int64
            and offsets.shape == sizes.shape == (len(names),)
            and bool(((offsets >= 0) & (sizes >= 0) & (sizes <= stamp[1]) & (offsets <= stamp[1] - sizes)).all())
        )
    except (OSError, ValueError, LookupError, NotImplementedError, RuntimeError, EOFError, zipfile.BadZipFile):
        return None
    return TarIndex(names, offsets, sizes) if is_valid else None


def make_index(path: Path) -> TarIndex:
    """Read the headers of a tar file in one pass.

    Raises:
        DatasetError: as `load_index`.
    """
    size = check_regular(path)
    budget = Budget(path, size)
    members: dict[str, tuple[int, int]] = {}
    with path.open("rb") as file:
        for name, offset, length in _iterate_members(file, path, size):
            if name in members:
                raise DatasetError(f"{path}, member {name!r}: there are two members of this name: remove one")
            budget.take(2 * len(name) + 200)
            members[name] = offset, length
    places = np.array(list(members.values()), np.int64).reshape(-1, 2)
    return TarIndex(tuple(members), places[:, 0].copy(), places[:, 1].copy())


def _iterate_members(file: IO[bytes], path: Path, size: int) -> Iterator[tuple[str, int, int]]:
    """Yield name, offset and size of the content of each regular file."""
    position, extended = 0, _Extended()
    while True:
        file.seek(position)
        block = file.read(BLOCK_BYTES)
        if len(block) == BLOCK_BYTES and not any(block):
            return
        try:
            header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            raise DatasetError(_describe_invalid_header(path, position, block, size)) from error
        # Fields of 100 bytes are too short for long names, fields of 11 digits for sizes from 8 GiB.
        is_extended = header.type in EXTENDED_TYPES
        name = header.name if is_extended or extended.path is None else extended.path
        length = header.size if is_extended or extended.size is None else extended.size
        start = position + BLOCK_BYTES
        if not 0 <= length <= size - start:
            raise DatasetError(
                f"{path}, member {name!r}: the file is truncated: the member has {length:,} bytes at {start:,}, but "
                f"the file ends at {size:,}: download it again"
            )
        position = start + -(-length // BLOCK_BYTES) * BLOCK_BYTES
        if is_extended:
            if length > MAX_EXTENDED_BYTES:
                raise DatasetError(f"{path}: the extended header at {start:,} has {length:,} bytes: it is corrupt")
            content = file.read(length)
            if header.type == tarfile.GNUTYPE_LONGNAME:
                extended.path = content.rstrip(b"\0").decode("utf-8", "surrogateescape")
            elif header.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE):
                extended.parse(content, path, start)
            elif header.type == tarfile.XGLTYPE and _Extended().parse(content, path, start):
                raise DatasetError(f"{path}: the global header at {start:,} has the name or size of a member")
            continue
        extended = _Extended()
        if header.type in REGULAR_TYPES:
            yield _check_name(name, path), start, length
        elif header.type != tarfile.DIRTYPE:
            kind = KIND_NAMES.get(header.type, f"of the type {header.type!r}")
            raise DatasetError(f"{path}, member {name!r} is {kind}, not a regular file: make the archive without it")


def _describe_invalid_header(path: Path, position: int, block: bytes, size: int) -> str:
    if len(block) < BLOCK_BYTES and position:
        return f"{path} is truncated: it has {size:,} bytes, and no block of zeros at its end: download it again"
    if position:
        return f"{path} is corrupt: there is no header of a member at {position:,}: download it again"
    hint = ": unpack it with gunzip, members are read by their offsets" if block[:2] == b"\x1f\x8b" else ""
    return f"{path} is not a tar file{hint}"


@dataclass
class _Extended:
    """What extended headers say about the next member."""

    path: str | None = None
    size: int | None = None

    def parse(self, content: bytes, path: Path, start: int) -> bool:
        r"""Parse the records `LENGTH KEY=VALUE\n` of a pax header; return whether one is a path or a size."""
        try:
            while content:
                digits = content.partition(b" ")[0]
                length = int(digits)
                key, equals, value = content[len(digits) + 1 : length].partition(b"=")
                if not len(digits) + 1 < length <= len(content) or not equals or value[-1:] != b"\n":
                    raise ValueError("a record has an invalid length")
                if key.startswith(b"GNU.sparse"):
                    raise ValueError("a member is a sparse file")
                if key == b"path":
                    self.path = value[:-1].decode("utf-8", "surrogateescape")
                elif key == b"size":
                    self.size = int(value)
                content = content[length:]
        except ValueError as error:
            raise DatasetError(f"{path}: the extended header at {start:,} is invalid: {error}") from error
        return self.path is not None or self.size is not None


def _check_name(name: str, path: Path) -> str:
    """Return a name without `./`; raise a DatasetError if it leaves the folder of an archive."""
    parts = name.replace("\\", "/").split("/")
    if name.startswith(("/", "\\")) or ".." in parts or "\0" in name or parts[0][1:2] == ":":
        raise DatasetError(f"{path}, member {name!r}: the name leads out of the archive: make the archive again")
    return name.removeprefix("./")
