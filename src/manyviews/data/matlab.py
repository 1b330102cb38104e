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
from manyviews.utils.budget import Budget, BudgetError
from manyviews.utils.untrusted import check_regular

PART_BYTES = 2**24
ELEMENT_BYTES = 256
"""Bytes of memory that an element takes in addition to its content."""
_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_ARRAY, _COMPRESSED = 14, 15
_CELL, _FIRST_NUMERIC, _LAST_NUMERIC = 1, 6, 15


def load_matlab(path: Path) -> dict[str, Any]:
    """The variables of a file: an array each, or for a cell the list of its arrays, column by column.

    Raises:
        DatasetError: it is no such file, or holds other things than numbers.
    """
    budget = Budget(path, check_regular(path))
    budget.take(budget.size)
    content = path.read_bytes()
    if content[:8] == b"\x89HDF\r\n\x1a\n" or content[512:520] == b"\x89HDF\r\n\x1a\n":
        raise DatasetError(f"{path} is a .mat file of version 7.3: save it again with `save -v7` in MATLAB")
    if len(content) < 128 or content[126:128] not in (b"IM", b"MI"):
        raise DatasetError(f"{path} is no .mat file of version 5 to 7")
    try:
        order = "<" if content[126:128] == b"IM" else ">"
        return dict(_Reader(order, budget).variables(memoryview(content)[128:]))
    except BudgetError:
        raise
    # A broken file points to bytes of any kind.
    except Exception as error:
        raise DatasetError(f"{path} is no whole .mat file of numbers: {error!r}") from error


class _Reader:
    def __init__(self, order: str, budget: Budget) -> None:
        self.order, self.budget = order, budget

    def variables(self, content: memoryview) -> Iterator[tuple[str, Any]]:
        for kind, body in self.elements(content):
            if kind == _COMPRESSED:
                yield from self.variables(memoryview(self.unpacked(body)))
            elif kind == _ARRAY:
                name, value = self.array(body)
                if value is not None:
                    yield name, value

    def unpacked(self, body: memoryview) -> bytearray:
        unpacker, out = zlib.decompressobj(), bytearray()
        rest: memoryview | bytes = body
        while part := unpacker.decompress(rest, PART_BYTES):
            self.budget.take(2 * len(part))  # the array is copied when it grows
            out += part
            rest = unpacker.unconsumed_tail
        return out

    def elements(self, content: memoryview) -> Iterator[tuple[int, memoryview]]:
        place = 0
        while place + 8 <= len(content):
            self.budget.take(ELEMENT_BYTES)
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

    def array(self, body: memoryview) -> tuple[str, Any]:
        """Name and value; the value is None for what is neither numbers nor a cell of them."""
        parts = list(self.elements(body))
        flags, shape, name = parts[0][1], self.numbers(*parts[1]), bytes(parts[2][1]).decode("latin1")
        kind = struct.unpack_from(self.order + "I", flags)[0]
        if kind & 0xFF == _CELL:
            cells = [self.array(part)[1] for _, part in parts[3:]]
            return name, None if any(cell is None for cell in cells) else cells
        if not _FIRST_NUMERIC <= kind & 0xFF <= _LAST_NUMERIC or kind & 0x800:  # text, structs, sparse, complex
            return name, None
        return name, self.numbers(*parts[3]).reshape(shape.astype(int), order="F")

    def numbers(self, kind: int, content: memoryview) -> np.ndarray:
        return np.frombuffer(content, self.order + _NUMBERS[kind])
