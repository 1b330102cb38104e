"""MATLAB .mat files, version 5 to 7: a cell `X` of views (n, d) and classes `Y`, read by scipy.

scipy trusts a file: an unknown element type makes it follow a wild pointer, nested cells overflow its stack, and a
header allocates any amount of memory. So only X and Y are passed to it, after a check of their structure. A file is a
header and elements: a type, a length and a body, which may be compressed. An array is an element of elements: flags,
shape, name, numbers; a cell has arrays instead of numbers.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from manyviews.data.dataset import DatasetDict, DatasetError, translate_errors
from manyviews.data.multimodal_arrays import RawSplit, build_dataset
from manyviews.utils import Budget, check_regular

CHUNK_BYTES = 2**24
ELEMENT_BYTES = 256
"""Memory of an element in addition to its content."""
HEADERS = {b"IM": b" " * 124 + b"\0\1IM", b"MI": b" " * 124 + b"\1\0MI"}
"""Header of version 5 for each mark of the byte order (little, big)."""
_FLAGS, _ARRAY, _COMPRESSED = 6, 14, 15
_NUMBERS = {1, 2, 3, 4, 5, 6, 7, 9, 12, 13}
_CELL, _NUMERIC_CLASSES, _COMPLEX = 1, range(6, 16), 0x800


def load_matlab_views(path: Path) -> DatasetDict:
    """Load the views of a .mat file as modalities view1, view2, ...; every fifth instance of a class is for testing."""
    variables = _load_variables(path)
    views, labels = variables["X"].ravel(order="F"), variables["Y"].reshape(-1)
    if not (labels == labels.astype(np.int64)).all():
        raise DatasetError(f"{path}: Y must be integers")
    labels = labels.astype(np.int64)
    for i, view in enumerate(views, 1):
        if view.ndim != 2 or len(view) != len(labels):
            raise DatasetError(
                f"{path}: view {i} of X must be ({len(labels)}, d), one row for each of Y, got {view.shape}"
            )
    # The rank of each instance within its class.
    class_rank = np.zeros(len(labels), np.int64)
    order = np.argsort(labels, kind="stable")
    _, first, inverse = np.unique(labels[order], return_index=True, return_inverse=True)
    class_rank[order] = np.arange(len(labels)) - first[inverse]
    raws = {
        split: RawSplit(
            {f"view{i}": view[mask] for i, view in enumerate(views, 1)},
            labels[mask],
            ids=tuple(map(str, np.flatnonzero(mask))),
        )
        for split, mask in (("train", class_rank % 5 != 4), ("test", class_rank % 5 == 4))
        if mask.any()
    }
    rule = "the file has no splits; every fifth instance of each class is in the test split"
    return replace(build_dataset(raws, path.stem, str(path), []), split_rule=rule)


def _load_variables(path: Path) -> dict[str, Any]:
    """Load X, an array of arrays, and Y, an array of numbers."""
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise DatasetError(f'reading {path} needs scipy: pip install "manyviews[matlab]" ({error})') from error
    budget = Budget(path, check_regular(path))
    budget.take(budget.size)
    content = path.read_bytes()
    if b"\x89HDF\r\n\x1a\n" in (content[:8], content[512:520]):
        raise DatasetError(
            f"{path} is a .mat file of version 7.3, which is not supported: save it again with `save -v7` in MATLAB"
        )
    if len(content) < 128 or content[126:128] not in HEADERS:
        raise DatasetError(f"{path} is not a .mat file of version 5 to 7")
    byte_order = "<" if content[126:128] == b"IM" else ">"
    checker = _StructureChecker(byte_order, budget)
    with translate_errors(f"cannot parse {path} as a .mat file"):
        arrays = dict(checker.iterate_arrays(memoryview(content)[128:]))
        bodies = [arrays[name] for name in ("X", "Y") if name in arrays]
        if len(bodies) == 2 and checker.is_numeric(bodies[0], cell=True) and checker.is_numeric(bodies[1]):
            budget.take(2 * sum(map(len, bodies)))
            elements = (struct.pack(byte_order + "II", _ARRAY, len(body)) + body for body in bodies)
            return dict(loadmat(BytesIO(HEADERS[content[126:128]] + b"".join(elements))))
    raise DatasetError(f"{path}: expected a cell X of views and an array Y of classes, got {', '.join(arrays)}")


class _StructureChecker:
    def __init__(self, byte_order: str, budget: Budget) -> None:
        self.byte_order, self.budget = byte_order, budget

    def iterate_arrays(self, content: memoryview) -> Iterator[tuple[str, memoryview]]:
        """Yield the name and the unpacked body of each array."""
        for kind, body in self.iterate_elements(content):
            if kind == _COMPRESSED:
                yield from self.iterate_arrays(memoryview(self.decompress(body)))
            elif kind == _ARRAY:
                name = list(islice(self.iterate_elements(body), 3))[2][1]
                yield bytes(name).decode("latin1"), body

    def iterate_elements(self, content: memoryview) -> Iterator[tuple[int, memoryview]]:
        offset = 0
        while offset < len(content):
            self.budget.take(ELEMENT_BYTES)
            kind, length = struct.unpack_from(self.byte_order + "II", content, offset)
            start = offset + 8
            end = start + length + (0 if kind == _COMPRESSED else -length % 8)
            if kind >> 16:  # a small element: type, length and content are in the first eight bytes
                kind, length, start, end = kind & 0xFFFF, kind >> 16, offset + 4, offset + 8
            if max(end, start + length) > len(content):
                raise ValueError("the file ends inside an element")
            yield kind, content[start : start + length]
            offset = end

    def decompress(self, body: memoryview) -> bytearray:
        unpacker, out = zlib.decompressobj(), bytearray()
        rest: memoryview | bytes = body
        while chunk := unpacker.decompress(rest, CHUNK_BYTES):
            self.budget.take(2 * len(chunk))  # the array is copied when it grows
            out += chunk
            rest = unpacker.unconsumed_tail
        return out

    def is_numeric(self, body: memoryview, cell: bool = False) -> bool:
        """Return whether an array, or each array of a cell, has real numbers and nothing else."""
        (flags_kind, flags), (_, shape), _, *content = self.iterate_elements(body)
        array_class = struct.unpack_from(self.byte_order + "I", flags)[0] & (0xFF | _COMPLEX)
        if flags_kind != _FLAGS or len(flags) != 8:
            return False
        if cell:
            count = math.prod(struct.unpack(f"{self.byte_order}{len(shape) // 4}i", shape))
            arrays = [part for kind, part in content if kind == _ARRAY]
            return array_class == _CELL and count == len(arrays) == len(content) and all(map(self.is_numeric, arrays))
        return array_class in _NUMERIC_CLASSES and len(content) == 1 and content[0][0] in _NUMBERS
