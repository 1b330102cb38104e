"""From Arrow arrays to the cells of a table."""

from __future__ import annotations

from typing import Any

import numpy as np

from manyviews.data.table_readers import Cell, InvalidCell, convert_cell, split_array


def read_chunk(chunk: Any, feature: Any) -> list[Cell]:
    """Read the cells of an Arrow array; those that no kind of column can hold are an `InvalidCell`."""
    import pyarrow as pa
    from pyarrow import types

    chunk = chunk.storage if isinstance(chunk, pa.ExtensionArray) else chunk
    kind = chunk.type
    if types.is_dictionary(kind):
        chunk = chunk.dictionary_decode()
        kind = chunk.type
    if _is_list(kind):
        inner = kind.value_type
        is_nested = _is_list(inner)
        number = inner.value_type if is_nested else inner
        if types.is_floating(number) or types.is_integer(number):
            return _read_nested(chunk) if is_nested else _split_numbers(chunk)
    elif (
        types.is_string(kind)
        or types.is_large_string(kind)
        or (types.is_primitive(kind) and not types.is_temporal(kind))
    ):
        return [convert_cell(value) for value in chunk.to_pylist()]
    reason = f"values of the type {_describe_feature(feature)}"
    return [InvalidCell(reason) if valid else None for valid in chunk.is_valid().to_pylist()]


def _describe_feature(feature: Any) -> str:
    return f"{type(feature).__name__} ({feature})"[:100]


def _is_number(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind) or types.is_null(kind))


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _get_lengths(array: Any) -> np.ndarray:
    from pyarrow import compute

    lengths: np.ndarray = compute.fill_null(compute.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    return lengths.astype(np.int64)


def _to_numpy(array: Any) -> np.ndarray:
    """Convert numbers to float32, nulls to NaN."""
    import pyarrow as pa

    with np.errstate(over="ignore"):
        values: np.ndarray = array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False).astype(np.float32)
    return values


def _split_numbers(chunk: Any) -> list[Cell]:
    return split_array(_to_numpy(chunk.flatten()), _get_lengths(chunk).tolist())


def _read_nested(chunk: Any) -> list[Cell]:
    """Read lists of lists of numbers to arrays (T, d); lists of different lengths in a cell are invalid."""
    steps = chunk.flatten()
    widths, values = _get_lengths(steps), _to_numpy(steps.flatten())
    cells: list[Cell] = []
    first = start = 0
    for count in _get_lengths(chunk).tolist():
        part = widths[first : first + count]
        size = int(part.sum())
        if not size:
            cells.append(None)
        elif (part != part[0]).any():
            cells.append(InvalidCell("lists of lists of different lengths"))
        else:
            cells.append(values[start : start + size].reshape(count, -1))
        first, start = first + count, start + size
    return cells
