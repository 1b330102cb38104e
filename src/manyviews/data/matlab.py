"""Reading MATLAB's .mat files (version 5 to 7): numbers and cells of numbers, nothing else.

A file is a header of 128 bytes and elements: a type, a length and so many bytes, which may be compressed. An array is
an element of elements: its class, its shape, its name, its numbers.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from manyviews.data.dataset import DatasetError

MOST_BYTES = 2**34
"""A file that unpacks to more is taken for a bomb."""
_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_ARRAY, _COMPRESSED = 14, 15
_CELL, _FIRST_NUMERIC, _LAST_NUMERIC = 1, 6, 15


def load_matlab(path: Path) -> dict[str, Any]:
    """The variables of a file: an array each, or for a cell the list of its arrays, column by column.

    Raises:
        DatasetError: it is no such file, or holds other things than numbers.
    """
    content = path.read_bytes()
    if content[:8] == b"\x89HDF\r\n\x1a\n" or content[512:520] == b"\x89HDF\r\n\x1a\n":
        raise DatasetError(f"{path} is a .mat file of version 7.3: save it again with `save -v7` in MATLAB")
    if len(content) < 128 or content[126:128] not in (b"IM", b"MI"):
        raise DatasetError(f"{path} is no .mat file of version 5 to 7")
    try:
        return dict(_Reader("<" if content[126:128] == b"IM" else ">").variables(content[128:]))
    except (struct.error, zlib.error, ValueError, IndexError, KeyError, RecursionError, MemoryError) as error:
        raise DatasetError(f"{path} is no whole .mat file of numbers: {error!r}") from error


class _Reader:
    def __init__(self, order: str) -> None:
        self.order = order
        self.unpacked = 0

    def variables(self, content: bytes) -> Iterator[tuple[str, Any]]:
        for kind, body in self.elements(content):
            if kind == _COMPRESSED:
                unpacker = zlib.decompressobj()
                unpacked = unpacker.decompress(body, MOST_BYTES - self.unpacked)
                self.unpacked += len(unpacked)
                if unpacker.unconsumed_tail:
                    raise ValueError(f"it unpacks to more than {MOST_BYTES:,} bytes")
                yield from self.variables(unpacked)
            elif kind == _ARRAY:
                name, value = self.array(body)
                if value is not None:
                    yield name, value

    def elements(self, content: bytes) -> Iterator[tuple[int, bytes]]:
        place = 0
        while place + 8 <= len(content):
            (word,) = struct.unpack_from(self.order + "I", content, place)
            if word >> 16:  # a small element: its length and its bytes are in the first eight
                kind, length = word & 0xFFFF, word >> 16
                yield kind, content[place + 4 : place + 4 + min(length, 4)]
                place += 8
                continue
            kind, length = struct.unpack_from(self.order + "II", content, place)
            if place + 8 + length > len(content):
                raise ValueError("it ends in the middle of an element")
            yield kind, content[place + 8 : place + 8 + length]
            place += 8 + length + (-length % 8 if kind != _COMPRESSED else 0)

    def array(self, body: bytes) -> tuple[str, Any]:
        """Name and value; the value is None for what is neither numbers nor a cell of them."""
        parts = list(self.elements(body))
        flags, shape, name = parts[0][1], self.numbers(*parts[1]), parts[2][1].decode("latin1")
        kind = struct.unpack_from(self.order + "I", flags)[0]
        if kind & 0xFF == _CELL:
            cells = [self.array(part)[1] for _, part in parts[3:]]
            return name, None if any(cell is None for cell in cells) else cells
        if not _FIRST_NUMERIC <= kind & 0xFF <= _LAST_NUMERIC or kind & 0x800:  # text, structs, sparse, complex
            return name, None
        return name, self.numbers(*parts[3]).reshape(shape.astype(int), order="F")

    def numbers(self, kind: int, content: bytes) -> np.ndarray:
        return np.frombuffer(content, self.order + _NUMBERS[kind])
