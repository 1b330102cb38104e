"""A program that converts a .parquet file to JSON lines and arrays, in a process of its own; see `table_readers.py`."""

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

INTERPRETER_BYTES = 2**31
"""Address space of Python, numpy and pyarrow."""
BATCH_ROWS = 1024


def convert(source: str, target: Path, max_bytes: int, max_columns: int) -> None:
    """Write `rows.jsonl`, `columns.json`, and for columns of number lists `I-values.npy` and `I-lengths.npy`.

    An error is printed as the last line of stderr.
    """
    if sys.platform != "win32":
        import resource

        for kind, limit in ((resource.RLIMIT_AS, INTERPRETER_BYTES + max_bytes), (resource.RLIMIT_FSIZE, max_bytes)):
            with suppress(ValueError):  # a lower limit is set already
                resource.setrlimit(kind, (limit, limit))
    from pyarrow import parquet

    with parquet.ParquetFile(source) as file:
        names = file.schema_arrow.names
        if len(names) > max_columns:
            sys.exit(f"it has {len(names):,} columns, the maximum is {max_columns:,}")
        if len(set(names)) < len(names) or not all(name.strip() for name in names):
            sys.exit(f"columns must have different names that are not empty, got {', '.join(names)[:500]}")
        types = dict(zip(names, file.schema_arrow.types, strict=True))
        invalid = {name: reason for name, kind in types.items() if (reason := _describe_invalid(kind))}
        is_array = [_is_number_list(kind) for kind in types.values()]
        arrays: dict[int, tuple[list[np.ndarray], list[np.ndarray]]] = {
            i: ([], []) for i, is_list in enumerate(is_array) if is_list
        }
        with (target / "rows.jsonl").open("w", encoding="utf-8") as out:
            for batch in file.iter_batches(BATCH_ROWS, use_threads=False):
                columns: dict[str, list[Any]] = {}
                for i, (name, column) in enumerate(zip(names, batch.columns, strict=True)):
                    columns[name] = [None] * len(column)
                    if i in arrays:
                        flat, lengths = _flatten(column)
                        arrays[i][0].append(flat)
                        arrays[i][1].append(lengths)
                    elif name in invalid:
                        columns[name] = [1 if valid else None for valid in column.is_valid().to_pylist()]
                    else:
                        columns[name] = column.to_pylist()
                for j in range(len(batch)):
                    row = {name: cells[j] for name, cells in columns.items()}
                    out.write(json.dumps(row, default=str) + "\n")
    for i, (values, counts) in arrays.items():
        np.save(target / f"{i}-values.npy", np.concatenate([np.empty(0, np.float32), *values]))
        np.save(target / f"{i}-lengths.npy", np.concatenate([np.empty(0, np.int64), *counts]))
    content = {"names": names, "arrays": list(arrays), "invalid": invalid}
    (target / "columns.json").write_text(json.dumps(content), encoding="utf-8")


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def _is_number_list(kind: Any) -> bool:
    from pyarrow import types

    return _is_list(kind) and (types.is_floating(kind.value_type) or types.is_integer(kind.value_type))


def _describe_invalid(kind: Any) -> str:
    """Describe values that are not numbers, text, or lists of them; else return an empty text."""
    from pyarrow import types

    if types.is_dictionary(kind) or _is_list(kind):
        return _describe_invalid(kind.value_type)
    nested_or_binary = types.is_nested(kind) or types.is_binary(kind) or types.is_large_binary(kind)
    return f"a value of type {kind}"[:200] if nested_or_binary or types.is_fixed_size_binary(kind) else ""


def _flatten(column: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return all numbers of lists, NaN for nulls, and the length of each list, 0 for a null."""
    import pyarrow as pa
    from pyarrow import compute

    lengths = compute.fill_null(compute.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    flat = column.flatten().cast(pa.float64(), safe=False)
    return flat.to_numpy(zero_copy_only=False).astype(np.float32), lengths.astype(np.int64)


if __name__ == "__main__":
    try:
        convert(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    except Exception as error:  # noqa: BLE001 (pyarrow raises any kind of error on a corrupt file)
        sys.exit(" ".join(f"{type(error).__name__}: {error}".split()))
