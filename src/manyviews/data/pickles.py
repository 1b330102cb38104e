"""Reading a stranger's pickle without running it: numbers, strings, lists, dicts and plain numpy arrays.

Nothing of numpy's own unpickling is used: it trusts the pickle's flags, and a forged dtype makes it follow pointers.
The names a pickle calls are answered by small stand-ins that take an array's bytes, its shape and one of a few dtypes.
"""

from __future__ import annotations

import math
import pickle
import re
import struct
from collections.abc import Callable, Mapping
from typing import IO, Any

import numpy as np

from manyviews.data.dataset import DatasetError
from manyviews.utils.budget import Budget, BudgetError

OBJECT_BYTES = 64
"""Bytes of memory that a number, a list or a reference takes in addition to its content."""
MAX_DIMENSIONS = 32
MAX_KEY = 2**60
"""Larger numbers as keys may all have the same hash."""


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
        # A tuple or a text among the lengths would be repeated as often as the others say.
        if not isinstance(shape, tuple) or len(shape) > MAX_DIMENSIONS or any(type(n) is not int for n in shape):
            raise pickle.UnpicklingError("an array without a shape")
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


def _counted(load: Callable[[Any], None]) -> Callable[[Any], None]:
    def step(reader: _NumpyOnly) -> None:
        reader.budget.take(OBJECT_BYTES)
        load(reader)

    return step


class _NumpyOnly(pickle._Unpickler):
    """The reader in Python, not the one in C: that one hashes any key and makes room for any number of a memo."""

    stack: list[Any]
    memo: dict[int, Any]
    read: Callable[[int], bytes]
    append: Callable[[Any], None]
    pop_mark: Callable[[], list[Any]]
    readline: Callable[[], bytes]

    def __init__(self, file: IO[bytes], budget: Budget) -> None:
        super().__init__(_CountedFile(file, budget), encoding="bytes")
        self.budget = budget

    def find_class(self, module: str, name: str) -> Any:
        for pattern, stand_in in _STAND_INS:
            if re.fullmatch(pattern, f"{module}.{name}"):
                return stand_in
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")

    def refuse(self) -> None:
        raise pickle.UnpicklingError("it makes objects or sets")

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.set(self.stack[-1], [key, value])

    def load_setitems(self) -> None:
        items = self.pop_mark()
        self.set(self.stack[-1], items)

    def load_dict(self) -> None:
        items = self.pop_mark()
        self.append({})
        self.set(self.stack[-1], items)

    def set(self, held: object, items: list[Any]) -> None:
        """A tuple of tuples as a key is hashed in a time that doubles with each."""
        if not isinstance(held, dict):
            raise pickle.UnpicklingError("items of what is no dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, (str, bytes)) and not (isinstance(key, int) and abs(key) < MAX_KEY):
                raise pickle.UnpicklingError(f"a {type(key).__name__} as a name")
            held[key] = value

    def load_put(self) -> None:
        number = int(self.readline()[:-1])
        if not 0 <= number < MAX_KEY:
            raise pickle.UnpicklingError("a reference to nothing")
        self.memo[number] = self.stack[-1]

    def load_bytearray8(self) -> None:
        (size,) = struct.unpack("<Q", self.read(8))
        self.append(bytearray(self.read(size)))


_REFUSED = (
    pickle.PERSID, pickle.BINPERSID, pickle.EXT1, pickle.EXT2, pickle.EXT4, pickle.INST, pickle.OBJ, pickle.NEWOBJ,
    pickle.NEWOBJ_EX, pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET, pickle.NEXT_BUFFER,
    pickle.READONLY_BUFFER,
)  # fmt: skip
_OWN: dict[bytes, Callable[[Any], None]] = {
    **dict.fromkeys(_REFUSED, _NumpyOnly.refuse),
    pickle.SETITEM: _NumpyOnly.load_setitem,
    pickle.SETITEMS: _NumpyOnly.load_setitems,
    pickle.DICT: _NumpyOnly.load_dict,
    pickle.PUT: _NumpyOnly.load_put,
    pickle.BYTEARRAY8: _NumpyOnly.load_bytearray8,
}
_all = {**_NumpyOnly.dispatch, **{code[0]: load for code, load in _OWN.items()}}
_NumpyOnly.dispatch = {code: _counted(load) for code, load in _all.items()}


class _CountedFile:
    def __init__(self, file: IO[bytes], budget: Budget) -> None:
        self.file, self.budget = file, budget

    def read(self, size: int) -> bytes:
        self.budget.take(size)
        return self.file.read(size)

    def readline(self) -> bytes:
        line = self.file.readline()
        self.budget.take(len(line))
        return line


def _resolved(held: object, done: dict[int, tuple[Any, int]]) -> tuple[Any, int]:
    """The arrays in the place of their stand-ins, in dicts, lists and tuples; and the bytes of all of it.

    Each is made once, however often it is held, and counted as often: numpy makes as many of it.
    """
    if held is None or isinstance(held, (bool, float)):
        return held, OBJECT_BYTES
    if isinstance(held, (int, str, bytes)):
        return held, OBJECT_BYTES + (held.bit_length() // 8 if isinstance(held, int) else len(held))
    if id(held) not in done:
        done[id(held)] = _unpacked(held, done)
    return done[id(held)]


def _unpacked(held: object, done: dict[int, tuple[Any, int]]) -> tuple[Any, int]:
    if isinstance(held, _Array):
        if held.value is None:
            raise pickle.UnpicklingError("an array without its bytes")
        return _resolved(held.value, done) if isinstance(held.value, list) else (held.value, held.value.nbytes)
    if isinstance(held, dict):
        values = {key: _resolved(value, done) for key, value in held.items()}
        total = sum(OBJECT_BYTES + size for _, size in values.values())
        return {key: value for key, (value, _) in values.items()}, total
    if isinstance(held, (list, tuple)):
        parts = [_resolved(value, done) for value in held]
        return type(held)(value for value, _ in parts), OBJECT_BYTES + sum(size for _, size in parts)
    raise pickle.UnpicklingError(f"a {type(held).__name__}")


def load_numpy_pickle(file: IO[bytes], name: str, size: int) -> Any:
    """The content of a pickle of so many bytes that holds numpy arrays; anything else is refused before it runs."""
    try:
        held, total = _resolved(_NumpyOnly(file, Budget(name, size)).load(), {})
        Budget(name, size).take(total)
    except BudgetError:
        raise
    # A broken pickle fails in any way its opcodes can; none of them is ours to tell apart.
    except Exception as error:
        reason = f"{error}"[:1000]
        raise DatasetError(f"{name} is not a pickle of numpy arrays: {reason}. Nothing of it was run") from error
    return held


class _Inert(dict[Any, Any]):
    """What a call in a pickle of tensors gives: it can be filled, and does nothing."""

    def __init__(self, *_arguments: object) -> None:
        super().__init__()

    def __setstate__(self, _state: object) -> None:
        pass


class _TensorsOnly(_NumpyOnly):
    """Goes through a pickle that torch wrote without making a tensor. `records` are the sizes of their bytes."""

    records: Mapping[str, int]

    def find_class(self, module: str, name: str) -> Any:
        called = f"{module}.{name}"
        if called == "torch._utils._rebuild_tensor_v2":
            return _StandIn(self.tensor)
        if re.fullmatch(r"collections\.OrderedDict|torch\._utils\._rebuild_parameter|torch\.\w+Storage", called):
            return _StandIn(_Inert)
        raise pickle.UnpicklingError(f"it asks for {called}")

    def persistent_load(self, pid: Any) -> Any:
        return pid

    def tensor(self, storage: Any, _offset: object, shape: Any, *_: object) -> _Inert:
        _, _, key, _, count = storage
        if any(type(length) is not int for length in (count, *shape)) or len(shape) > MAX_DIMENSIONS:
            raise pickle.UnpicklingError("a tensor without a shape")
        if not 0 <= math.prod(shape) <= count <= self.records[key]:
            raise pickle.UnpicklingError(f"a tensor {shape} of {self.records[key]} bytes")
        return _Inert()


_TensorsOnly.dispatch = {
    **_NumpyOnly.dispatch,
    pickle.BINPERSID[0]: _counted(pickle._Unpickler.dispatch[pickle.BINPERSID[0]]),
}


def check_tensor_pickle(file: IO[bytes], name: str, size: int, records: Mapping[str, int]) -> None:
    """Raise if a pickle of so many bytes holds other things than tensors, numbers, text, lists and dictionaries.

    Raises:
        ValueError: it would take more than its budget, or a tensor claims more than its record holds.
    """
    reader = _TensorsOnly(file, Budget(name, size))
    reader.records = records
    try:
        reader.load()
    except BudgetError:
        raise
    except Exception as error:
        raise DatasetError(f"{error}"[:1000]) from error
