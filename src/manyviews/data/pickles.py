"""Reading a stranger's pickle without running it: numpy arrays, containers, numbers and strings alone."""

from __future__ import annotations

import importlib
import pickle
from typing import IO, Any

import numpy as np

from manyviews.data.dataset import DatasetError

# numpy 2 moved its core; a pickle names the place of the numpy that wrote it.
_CORES = ("numpy.core", "numpy._core")
_OURS = _CORES[int(np.__version__.split(".")[0]) >= 2]
_ADMITTED = {("multiarray", "_reconstruct"), ("multiarray", "scalar"), ("numeric", "_frombuffer")}


def _encoded(text: str, encoding: str) -> bytes:
    """What old pickles call to make bytes."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes in encoding {encoding!r}")
    return text.encode("latin1")


class _NumpyOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        core, _, part = module.rpartition(".")
        if core in _CORES and (part, name) in _ADMITTED:
            return getattr(importlib.import_module(f"{_OURS}.{part}"), name)
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        if (module, name) == ("_codecs", "encode"):
            return _encoded
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def load_numpy_pickle(file: IO[bytes], name: str) -> Any:
    """The content of a pickle that holds numpy arrays; anything else is refused before it runs."""
    try:
        return _NumpyOnly(file, encoding="bytes").load()
    except MemoryError as error:
        raise DatasetError(f"{name}: it asks for more memory than there is") from error
    # A broken pickle fails in any way its opcodes can; none of them is ours to tell apart.
    except Exception as error:
        raise DatasetError(f"{name} is not a pickle of numpy arrays: {error}. Nothing of it was run") from error
