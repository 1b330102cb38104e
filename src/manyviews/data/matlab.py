"""Read MATLAB .mat files (version 5 to 7): numeric arrays and cells of them only.

A file is a header of 128 bytes and elements: a type, a length and a body, which may be compressed. An array is an
element of elements: class, shape, name, numbers.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from manyviews.data.dataset import DatasetError
from manyviews.utils import Budget, BudgetError, check_regular

CHUNK_BYTES = 2**24
ELEMENT_BYTES = 256
"""Memory of an element in addition to its content."""
_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_ARRAY, _COMPRESSED = 14, 15
_CELL, _FIRST_NUMERIC, _LAST_NUMERIC = 1, 6, 15


def load_matlab(path: Path) -> dict[str, Any]:
    """Load the variables of a file: arrays, and for a cell the list of its arrays in column order.

    Raises:
        DatasetError: the file is not a .mat file of these versions, or is corrupt.
    """
    budget = Budget(path, check_regular(path))
    budget.take(budget.size)
    content = path.read_bytes()
    if content[:8] == b"\x89HDF\r\n\x1a\n" or content[512:520] == b"\x89HDF\r\n\x1a\n":
        raise DatasetError(
            f"{path} is a .mat file of version 7.3, which is not supported: save it again with `save -v7` in MATLAB"
        )
    if len(content) < 128 or content[126:128] not in (b"IM", b"MI"):
        raise DatasetError(f"{path} is not a .mat file of version 5 to 7")
    try:
        byte_order = "<" if content[126:128] == b"IM" else ">"
        return dict(_Reader(byte_order, budget).iterate_variables(memoryview(content)[128:]))
    except BudgetError:
        raise
    # A corrupt file can cause any error.
    except Exception as error:
        raise DatasetError(f"cannot parse {path} as a .mat file: {error!r}") from error


class _Reader:
    def __init__(self, byte_order: str, budget: Budget) -> None:
        self.byte_order, self.budget = byte_order, budget

    def iterate_variables(self, content: memoryview) -> Iterator[tuple[str, Any]]:
        for kind, body in self.iterate_elements(content):
            if kind == _COMPRESSED:
                yield from self.iterate_variables(memoryview(self.decompress(body)))
            elif kind == _ARRAY:
                name, value = self.parse_array(body)
                if value is not None:
                    yield name, value

    def decompress(self, body: memoryview) -> bytearray:
        unpacker, out = zlib.decompressobj(), bytearray()
        rest: memoryview | bytes = body
        while chunk := unpacker.decompress(rest, CHUNK_BYTES):
            self.budget.take(2 * len(chunk))  # the array is copied when it grows
            out += chunk
            rest = unpacker.unconsumed_tail
        return out

    def iterate_elements(self, content: memoryview) -> Iterator[tuple[int, memoryview]]:
        offset = 0
        while offset + 8 <= len(content):
            self.budget.take(ELEMENT_BYTES)
            (word,) = struct.unpack_from(self.byte_order + "I", content, offset)
            if word >> 16:  # a small element: length and content are in the first eight bytes
                kind, length = word & 0xFFFF, word >> 16
                yield kind, content[offset + 4 : offset + 4 + min(length, 4)]
                offset += 8
                continue
            kind, length = struct.unpack_from(self.byte_order + "II", content, offset)
            if offset + 8 + length > len(content):
                raise ValueError("the file ends inside an element")
            yield kind, content[offset + 8 : offset + 8 + length]
            offset += 8 + length + (-length % 8 if kind != _COMPRESSED else 0)

    def parse_array(self, body: memoryview) -> tuple[str, Any]:
        """Return name and value; the value is None unless it is a numeric array or a cell of them."""
        parts = list(self.iterate_elements(body))
        flags, shape, name = parts[0][1], self.parse_numbers(*parts[1]), bytes(parts[2][1]).decode("latin1")
        kind = struct.unpack_from(self.byte_order + "I", flags)[0]
        if kind & 0xFF == _CELL:
            cells = [self.parse_array(part)[1] for _, part in parts[3:]]
            return name, None if any(cell is None for cell in cells) else cells
        if not _FIRST_NUMERIC <= kind & 0xFF <= _LAST_NUMERIC or kind & 0x800:  # text, structs, sparse, complex
            return name, None
        return name, self.parse_numbers(*parts[3]).reshape(shape.astype(int), order="F")

    def parse_numbers(self, kind: int, content: memoryview) -> np.ndarray:
        return np.frombuffer(content, self.byte_order + _NUMBERS[kind])
