"""Read a pickle of plain data without executing anything in it.

Dicts, lists, tuples, strings, numbers and byte arrays are allowed. A pickle creates an array by naming NumPy
functions; those names resolve to harmless stand-ins here, so that NumPy never sees what the file requests.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from collections.abc import Callable, Sequence
from reprlib import repr  # what is nested without end is cut off
from typing import Any

import numpy as np
from numpy.typing import NDArray

from initmem.errors import DataError

MOST_STEPS = 500_000  # an official file of 10,000 images takes some 40,000
MEMO_LIMIT = 1_000_000
BYTE_TYPES = ("u1", b"u1", "|u1", b"|u1", "uint8", b"uint8")


def load_plain(data: bytes) -> dict[Any, Any]:
    """Read a pickled dict; its values may be byte arrays of any shape."""
    try:
        _check_steps(data)
        content = _Unpickler(data).load()
        if not isinstance(content, dict):
            raise DataError(f"the pickle contains a {type(content).__name__} (allowed: a dict)")
        return {key: value.array if isinstance(value, _Array) else value for key, value in content.items()}
    except DataError:
        raise
    except Exception as error:  # a damaged stream can make the unpickler raise anything
        raise DataError(f"not a readable pickle ({type(error).__name__}: {error})") from None


def _check_steps(data: bytes) -> None:
    for step, (code, argument, _) in enumerate(pickletools.genops(data)):
        if step == MOST_STEPS:
            raise DataError(f"the pickle takes more than {MOST_STEPS:,} steps to read")
        if code.name.endswith("PUT") and int(argument or 0) > MEMO_LIMIT:
            raise DataError(f"the pickle uses memo {argument} (allowed: up to {MEMO_LIMIT:,})")


class _Dtype:
    """Stand-in for the numpy.dtype of unsigned bytes, whose state carries no further information."""

    __slots__ = ()

    def __init__(self, name: object, *flags: object) -> None:
        if name not in BYTE_TYPES:
            raise DataError(f"the pickle contains an array of {repr(name)} (allowed: u1)")

    def __setstate__(self, state: object) -> None: ...


class _Array:
    """Stand-in for a NumPy array, which a pickle creates empty and then fills."""

    __slots__ = ("array",)

    array: NDArray[np.uint8]

    def __init__(self, *blank: object) -> None: ...

    def __setstate__(self, state: object) -> None:
        match state:
            case (1, tuple(shape), _Dtype(), bool(fortran), bytes(content)):
                pass
            case _:
                raise DataError("the pickle contains an array that is not made of plain bytes")
        if not all(type(side) is int and side >= 0 for side in shape) or math.prod(shape) != len(content):
            raise DataError(f"the pickle contains an array of shape {repr(shape)} in {len(content)} bytes")
        self.array = np.frombuffer(content, np.uint8).reshape(shape, order="F" if fortran else "C")


def _check_keys(keys: Sequence[object]) -> None:
    """Few bytes make a tuple of tuples of tuples that takes for ever to hash."""
    for key in keys:
        if type(key) not in (str, bytes, int):
            raise DataError(f"the pickle contains a dict with a {type(key).__name__} as a key: refused")


_InPython: Any = pickle._Unpickler  # the one in C hashes keys before anybody sees them


class _Unpickler(_InPython):  # type: ignore[misc]
    def __init__(self, data: bytes) -> None:
        # Python 2 strings are bytes, and the content of an array is one of them.
        super().__init__(io.BytesIO(data), encoding="bytes")
        self.bytes_left = len(data)

    def find_class(self, module: str, name: str) -> Callable[..., object] | str:
        """Resolve a name to its stand-in; only the names that a pickled byte array needs have one."""
        match module, name:
            case "numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct":
                return _Array
            case "numpy", "ndarray":
                return "numpy.ndarray"  # only ever an argument of _reconstruct, which ignores it
            case "numpy", "dtype":
                return _Dtype
            case "_codecs" | "codecs", "encode":
                return self._encode
            case "builtins" | "__builtin__", "bytes":
                return self._no_bytes
        raise DataError(f"the pickle refers to {module}.{name}, which plain data does not need: refused")

    def _load_setitem(self) -> None:
        _check_keys(self.stack[-2:-1])
        self.load_setitem()

    def _load_setitems(self) -> None:
        _check_keys(self.stack[::2])
        self.load_setitems()

    def _load_dict(self) -> None:
        _check_keys(self.stack[::2])
        self.load_dict()

    def _load_set(self) -> None:
        raise DataError("the pickle contains a set, which plain data does not need: refused")

    dispatch = _InPython.dispatch | {
        pickle.SETITEM[0]: _load_setitem,
        pickle.SETITEMS[0]: _load_setitems,
        pickle.DICT[0]: _load_dict,
        pickle.ADDITEMS[0]: _load_set,
        pickle.FROZENSET[0]: _load_set,
    }

    def persistent_load(self, pid: object) -> object:
        """Refuse references to objects outside the pickle."""
        raise DataError(f"the pickle refers to an external object ({repr(pid)}): refused")

    def _encode(self, text: str, encoding: str) -> bytes:
        """In old protocols, Python 3 writes bytes as latin-1 text to be encoded."""
        if encoding not in ("latin1", b"latin1"):  # any other name could make Python import a codec
            raise DataError(f"the pickle requests the codec {repr(encoding)} (allowed: latin1)")
        self.bytes_left -= len(text)
        if self.bytes_left < 0:  # a long text, encoded over and over, would fill the memory
            raise DataError("the pickle expands to more bytes than it has")
        return text.encode("latin1")

    def _no_bytes(self) -> bytes:
        """In old protocols, Python 3 writes b"" as a call of bytes without arguments."""
        return b""
