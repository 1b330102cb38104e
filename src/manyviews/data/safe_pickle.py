"""Read untrusted pickles without executing them: numbers, strings, lists, dicts and plain numpy arrays.

numpy's own unpickling is not used: it trusts the flags of the pickle, and a forged dtype makes it follow pointers.
The globals that a pickle may call are replaced by stubs that accept bytes, a shape and one of a few dtypes.
"""

import math
import pickle
import re
import struct
from collections.abc import Callable, Mapping
from typing import IO, Any

import numpy as np

from manyviews.data.errors import translate_errors
from manyviews.utils import Budget, describe_type

OBJECT_BYTES = 64
"""Memory of a number, a list or a reference in addition to its content."""
MAX_DIMENSIONS = 32
MAX_KEY = 2**60
"""Larger integer keys could all have the same hash."""


class _Dtype:
    """Replaces numpy.dtype: booleans, integers, floats and fixed strings; an array of objects becomes a list."""

    def __init__(self, code: str | bytes, *_flags: object) -> None:
        code = code.decode("latin1") if isinstance(code, bytes) else code
        if not isinstance(code, str) or not re.fullmatch(r"[<>=|]?([iu][1248]|f[248]|b1|[SU]\d{1,5}|O8?)", code):
            raise pickle.UnpicklingError(f"an array has the unsupported dtype {code!r}")
        self.objects = code.endswith(("O", "O8"))
        self.dtype = np.dtype("u1" if self.objects else code)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order: Any = state[1].decode("latin1") if isinstance(state[1], bytes) else state[1]
        if order not in ("<", ">", "=", "|"):
            raise pickle.UnpicklingError(f"a dtype has the invalid byte order {order!r}")
        self.dtype = self.dtype.newbyteorder(order)


class _Array:
    """Replaces an array until its content is set."""

    value: np.ndarray | list[Any] | None = None

    def __init__(self, *_shape: object) -> None:
        pass

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, content = state
        # math.prod would repeat a tuple or a string in the shape.
        if not isinstance(shape, tuple) or len(shape) > MAX_DIMENSIONS or any(type(n) is not int for n in shape):
            raise pickle.UnpicklingError("an array has an invalid shape")
        if isinstance(dtype, _Dtype) and dtype.objects:
            if not isinstance(content, list) or math.prod(shape) != len(content):
                raise pickle.UnpicklingError("an array of objects is not a list of that length")
            self.value = content
            for length in reversed(shape[1:]):
                self.value = [self.value[start : start + length] for start in range(0, len(self.value), length)]
            return
        self.value = _make_array(content, dtype, shape, "F" if fortran else "C")


def _make_array(content: object, dtype: object, shape: object, order: object = "C") -> np.ndarray:
    if not isinstance(content, (bytes, bytearray)) or not isinstance(dtype, _Dtype) or order not in ("C", "F"):
        raise pickle.UnpicklingError("an array is not plain bytes")
    if dtype.objects:
        raise pickle.UnpicklingError("the bytes of an array are objects")
    return np.frombuffer(bytes(content), dtype.dtype).reshape(shape, order=order)  # type: ignore[call-overload]


def _make_array_from_buffer(content: object, dtype: object, shape: object, order: object) -> _Array:
    array = _Array()
    array.value = _make_array(content, dtype, shape, order)
    return array


def _make_scalar(dtype: object, content: object) -> Any:
    return _make_array(content, dtype, ()).item()


def _encode_text(text: str, encoding: str) -> bytes:
    """Replaces `_codecs.encode`, which old protocols call to make bytes."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes have the unsupported encoding {encoding!r}")
    return text.encode("latin1")


class _Stub:
    """Callable stub for an allowed global; refuses BUILD (attribute setting)."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: object) -> Any:
        return self._function(*arguments)

    def __setstate__(self, _state: object) -> None:
        raise pickle.UnpicklingError("it sets attributes of a function")


_CORE = r"numpy\.(_?core)\."
_ALLOWED: list[tuple[str, object]] = [
    (_CORE + r"multiarray\._reconstruct", _Stub(_Array)),
    (_CORE + r"multiarray\.scalar", _Stub(_make_scalar)),
    (_CORE + r"numeric\._frombuffer", _Stub(_make_array_from_buffer)),
    (r"numpy\.dtype", _Stub(_Dtype)),
    (r"numpy\.ndarray", "the array type that _reconstruct is called with"),
    (r"_codecs\.encode", _Stub(_encode_text)),
]


def _count_opcode(load: Callable[[Any], None]) -> Callable[[Any], None]:
    def step(reader: _NumpyUnpickler) -> None:
        reader.budget.take(OBJECT_BYTES)
        load(reader)

    return step


class _NumpyUnpickler(pickle._Unpickler):
    """Based on the Python unpickler: the C one hashes any key and allocates a memo of any size."""

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
        for pattern, stub in _ALLOWED:
            if re.fullmatch(pattern, f"{module}.{name}"):
                return stub
        raise pickle.UnpicklingError(f"it calls {module}.{name}")

    def refuse(self) -> None:
        raise pickle.UnpicklingError("it creates objects or sets")

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.set_items(self.stack[-1], [key, value])

    def load_setitems(self) -> None:
        items = self.pop_mark()
        self.set_items(self.stack[-1], items)

    def load_dict(self) -> None:
        items = self.pop_mark()
        self.append({})
        self.set_items(self.stack[-1], items)

    def set_items(self, target: object, items: list[Any]) -> None:
        """Set items of a dictionary; nested tuples as keys are refused, because hashing them takes exponential time."""
        if not isinstance(target, dict):
            raise pickle.UnpicklingError("it sets items of an object that is not a dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, (str, bytes)) and not (isinstance(key, int) and abs(key) < MAX_KEY):
                raise pickle.UnpicklingError(f"a dictionary key is {describe_type(key)}")
            target[key] = value

    def load_put(self) -> None:
        index = int(self.readline()[:-1])
        if not 0 <= index < MAX_KEY:
            raise pickle.UnpicklingError("a memo index is out of range")
        self.memo[index] = self.stack[-1]

    def load_bytearray8(self) -> None:
        (size,) = struct.unpack("<Q", self.read(8))
        self.append(bytearray(self.read(size)))


_REFUSED = (
    pickle.PERSID, pickle.BINPERSID, pickle.EXT1, pickle.EXT2, pickle.EXT4, pickle.INST, pickle.OBJ, pickle.NEWOBJ,
    pickle.NEWOBJ_EX, pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET, pickle.NEXT_BUFFER,
    pickle.READONLY_BUFFER,
)  # fmt: skip
_OVERRIDES: dict[bytes, Callable[[Any], None]] = {
    **dict.fromkeys(_REFUSED, _NumpyUnpickler.refuse),
    pickle.SETITEM: _NumpyUnpickler.load_setitem,
    pickle.SETITEMS: _NumpyUnpickler.load_setitems,
    pickle.DICT: _NumpyUnpickler.load_dict,
    pickle.PUT: _NumpyUnpickler.load_put,
    pickle.BYTEARRAY8: _NumpyUnpickler.load_bytearray8,
}
_all = {**_NumpyUnpickler.dispatch, **{code[0]: load for code, load in _OVERRIDES.items()}}
_NumpyUnpickler.dispatch = {code: _count_opcode(load) for code, load in _all.items()}


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


def _materialize(obj: object, memo: dict[int, tuple[Any, int]]) -> tuple[Any, int]:
    """Replace the stubs in dicts, lists and tuples by arrays; also return the total size in bytes.

    A shared object is converted once but counted at each reference, because numpy would copy it each time.
    """
    if obj is None or isinstance(obj, (bool, float)):
        return obj, OBJECT_BYTES
    if isinstance(obj, (int, str, bytes)):
        return obj, OBJECT_BYTES + (obj.bit_length() // 8 if isinstance(obj, int) else len(obj))
    if id(obj) not in memo:
        memo[id(obj)] = _materialize_one(obj, memo)
    return memo[id(obj)]


def _materialize_one(obj: object, memo: dict[int, tuple[Any, int]]) -> tuple[Any, int]:
    if isinstance(obj, _Array):
        if obj.value is None:
            raise pickle.UnpicklingError("an array has no content")
        return _materialize(obj.value, memo) if isinstance(obj.value, list) else (obj.value, obj.value.nbytes)
    if isinstance(obj, dict):
        values = {key: _materialize(value, memo) for key, value in obj.items()}
        total = sum(OBJECT_BYTES + size for _, size in values.values())
        return {key: value for key, (value, _) in values.items()}, total
    if isinstance(obj, (list, tuple)):
        parts = [_materialize(value, memo) for value in obj]
        return type(obj)(value for value, _ in parts), OBJECT_BYTES + sum(size for _, size in parts)
    raise pickle.UnpicklingError(f"it contains {describe_type(obj)}")


def load_numpy_pickle(file: IO[bytes], name: str, size: int) -> Any:
    """Load a pickle of `size` bytes that holds numpy arrays; anything else is refused before it is executed."""
    with translate_errors(f"{name} is not a pickle of numpy arrays (nothing in it was executed)"):
        obj, total = _materialize(_NumpyUnpickler(file, Budget(name, size)).load(), {})
        Budget(name, size).take(total)
        return obj


class _Inert(dict[Any, Any]):
    """Result of any call in a pickle of tensors: accepts items and state, and does nothing."""

    def __init__(self, *_arguments: object) -> None:
        super().__init__()

    def __setstate__(self, _state: object) -> None:
        pass


class _TensorUnpickler(_NumpyUnpickler):
    """Checks a pickle of torch without creating tensors. `records` are the sizes of the storages in bytes."""

    records: Mapping[str, int]

    def find_class(self, module: str, name: str) -> Any:
        qualified_name = f"{module}.{name}"
        if qualified_name == "torch._utils._rebuild_tensor_v2":
            return _Stub(self.check_tensor)
        if re.fullmatch(
            r"collections\.OrderedDict|torch\._utils\._rebuild_parameter|torch\.\w+Storage", qualified_name
        ):
            return _Stub(_Inert)
        raise pickle.UnpicklingError(f"it calls {qualified_name}")

    def persistent_load(self, pid: Any) -> Any:
        return pid

    def check_tensor(self, storage: Any, _offset: object, shape: Any, *_: object) -> _Inert:
        _, _, key, _, count = storage
        if any(type(length) is not int for length in (count, *shape)) or len(shape) > MAX_DIMENSIONS:
            raise pickle.UnpicklingError("a tensor has an invalid shape")
        if not 0 <= math.prod(shape) <= count <= self.records[key]:
            raise pickle.UnpicklingError(f"a tensor {shape} has only {self.records[key]} bytes")
        return _Inert()


_TensorUnpickler.dispatch = {
    **_NumpyUnpickler.dispatch,
    pickle.BINPERSID[0]: _count_opcode(pickle._Unpickler.dispatch[pickle.BINPERSID[0]]),
}


def check_tensor_pickle(file: IO[bytes], name: str, size: int, records: Mapping[str, int]) -> None:
    """Raise if a pickle of `size` bytes holds anything but tensors, numbers, text, lists and dictionaries.

    Raises:
        DatasetError: it holds something else, exceeds its memory budget, or has a tensor larger than its record.
    """
    reader = _TensorUnpickler(file, Budget(name, size))
    reader.records = records
    with translate_errors("it is not a pickle of tensors"):
        reader.load()
