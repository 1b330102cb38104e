"""Reading a stranger's pickle without running it: numbers, strings, lists, dicts and plain numpy arrays.

Nothing of numpy's own unpickling is used: it trusts the pickle's flags, and a forged dtype makes it follow pointers.
The names a pickle calls are answered by small stand-ins that take an array's bytes, its shape and one of a few dtypes.
"""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Callable
from typing import IO, Any

import numpy as np

from manyviews.data.dataset import DatasetError


class _Dtype:
    """Stands for numpy.dtype: booleans, integers, floats and fixed strings; an array of objects becomes a list."""

    def __init__(self, code: str | bytes, *_flags: object) -> None:
        code = code.decode("latin1") if isinstance(code, bytes) else code
        if not isinstance(code, str) or not re.fullmatch(r"[<>=|]?([iu][1248]|f[248]|b1|[SU]\d{1,5}|O8?)", code):
            raise pickle.UnpicklingError(f"an array of {code!r}")
        self.objects = code.endswith(("O", "O8"))
        self.dtype = np.dtype("u1" if self.objects else code)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order: Any = state[1].decode("latin1") if isinstance(state[1], bytes) else state[1]
        if order not in ("<", ">", "=", "|"):
            raise pickle.UnpicklingError(f"a byte order {order!r}")
        self.dtype = self.dtype.newbyteorder(order)


class _Array:
    """Stands for an array until its bytes are there."""

    value: np.ndarray | list[Any] | None = None

    def __init__(self, *_shape: object) -> None:
        pass

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, content = state
        if isinstance(dtype, _Dtype) and dtype.objects:
            if not isinstance(content, list) or math.prod(shape) != len(content):
                raise pickle.UnpicklingError("an array of objects that is no list of them")
            self.value = content
            for length in reversed(shape[1:]):
                self.value = [self.value[first : first + length] for first in range(0, len(self.value), length)]
            return
        self.value = _array(content, dtype, shape, "F" if fortran else "C")


def _array(content: object, dtype: object, shape: object, order: object = "C") -> np.ndarray:
    if not isinstance(content, (bytes, bytearray)) or not isinstance(dtype, _Dtype) or order not in ("C", "F"):
        raise pickle.UnpicklingError("an array that is not plain bytes")
    if dtype.objects:
        raise pickle.UnpicklingError("objects in the bytes of an array")
    return np.frombuffer(bytes(content), dtype.dtype).reshape(shape, order=order)  # type: ignore[call-overload]


def _from_buffer(content: object, dtype: object, shape: object, order: object) -> _Array:
    made = _Array()
    made.value = _array(content, dtype, shape, order)
    return made


def _scalar(dtype: object, content: object) -> Any:
    return _array(content, dtype, ()).item()


def _encoded(text: str, encoding: str) -> bytes:
    """What old pickles call to make bytes."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes in encoding {encoding!r}")
    return text.encode("latin1")


class _StandIn:
    """Answers a name that a pickle calls, and can be called alone: a pickle may also try to set its attributes."""

    __slots__ = ("_made",)

    def __init__(self, made: Callable[..., Any]) -> None:
        self._made = made

    def __call__(self, *arguments: object) -> Any:
        return self._made(*arguments)

    def __setstate__(self, _state: object) -> None:
        raise pickle.UnpicklingError("a state for what is only called")


_CORE = r"numpy\.(_?core)\."
_STAND_INS: list[tuple[str, object]] = [
    (_CORE + r"multiarray\._reconstruct", _StandIn(_Array)),
    (_CORE + r"multiarray\.scalar", _StandIn(_scalar)),
    (_CORE + r"numeric\._frombuffer", _StandIn(_from_buffer)),
    (r"numpy\.dtype", _StandIn(_Dtype)),
    (r"numpy\.ndarray", "the type of the array that _reconstruct is to make"),
    (r"_codecs\.encode", _StandIn(_encoded)),
]


class _NumpyOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        for pattern, stand_in in _STAND_INS:
            if re.fullmatch(pattern, f"{module}.{name}"):
                return stand_in
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def _resolved(held: object, done: dict[int, Any]) -> Any:
    """The arrays in the place of their stand-ins, in dicts, lists and tuples; each once, however often it is held."""
    if held is None or isinstance(held, (bool, int, float, str, bytes)):
        return held
    if id(held) not in done:
        done[id(held)] = _unpacked(held, done)
    return done[id(held)]


def _unpacked(held: object, done: dict[int, Any]) -> Any:
    if isinstance(held, _Array):
        if held.value is None:
            raise pickle.UnpicklingError("an array without its bytes")
        return _resolved(held.value, done) if isinstance(held.value, list) else held.value
    if isinstance(held, dict):
        return {key: _resolved(value, done) for key, value in held.items()}
    if isinstance(held, (list, tuple)):
        return type(held)(_resolved(value, done) for value in held)
    raise pickle.UnpicklingError(f"a {type(held).__name__}")


def load_numpy_pickle(file: IO[bytes], name: str) -> Any:
    """The content of a pickle that holds numpy arrays; anything else is refused before it runs."""
    try:
        return _resolved(_NumpyOnly(file, encoding="bytes").load(), {})
    # A broken pickle fails in any way its opcodes can; none of them is ours to tell apart.
    except Exception as error:
        raise DatasetError(f"{name} is not a pickle of numpy arrays: {error}. Nothing of it was run") from error
