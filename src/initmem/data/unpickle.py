"""Read a pickle of plain data without running anything that it says.

Admitted are dicts, lists, tuples, strings, numbers and arrays of bytes. A pickle makes an array by naming
numpy's functions; those names get harmless stand-ins here, so that numpy never sees what the file dictates.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from initmem.errors import DataError

MEMO_LIMIT = 1_000_000  # the unpickler allocates its memo up to the largest index that a file names
BYTE_TYPES = ("u1", b"u1", "|u1", b"|u1", "uint8", b"uint8")


def load_plain(data: bytes) -> dict[Any, Any]:
    """Read a pickled dict; its values may be arrays of bytes, of any shape."""
    try:
        _check_memo(data)
        found = _Unpickler(data).load()
        if not isinstance(found, dict):
            raise DataError(f"the pickle holds a {type(found).__name__} (allowed: a dict)")
        return {key: value.array if isinstance(value, _Array) else value for key, value in found.items()}
    except DataError:
        raise
    except Exception as error:  # a damaged stream can make the unpickler raise anything
        raise DataError(f"not a readable pickle ({type(error).__name__}: {error})") from None


def _check_memo(data: bytes) -> None:
    for code, argument, _ in pickletools.genops(data):
        if code.name.endswith("PUT") and int(argument or 0) > MEMO_LIMIT:
            raise DataError(f"the pickle uses memo {argument} (allowed: up to {MEMO_LIMIT:,})")


class _Dtype:
    """Stands for numpy.dtype of unsigned bytes, whose state says nothing more."""

    __slots__ = ()

    def __init__(self, name: object, *flags: object) -> None:
        if name not in BYTE_TYPES:
            raise DataError(f"the pickle holds an array of {name!r} (allowed: u1)")

    def __setstate__(self, state: object) -> None: ...


class _Array:
    """Stands for a numpy array that a pickle makes empty and then fills."""

    __slots__ = ("array",)

    array: NDArray[np.uint8]

    def __init__(self, *blank: object) -> None: ...

    def __setstate__(self, state: object) -> None:
        match state:
            case (1, tuple(shape), _Dtype(), bool(fortran), bytes(content)):
                pass
            case _:
                raise DataError("the pickle holds an array that is not made of plain bytes")
        if not all(type(side) is int and side >= 0 for side in shape) or math.prod(shape) != len(content):
            raise DataError(f"the pickle holds an array of shape {shape} in {len(content)} bytes")
        self.array = np.frombuffer(content, np.uint8).reshape(shape, order="F" if fortran else "C")


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes) -> None:
        # Strings of Python 2 are bytes: an array's content is one of them.
        super().__init__(io.BytesIO(data), encoding="bytes")
        self.bytes_left = len(data)

    def find_class(self, module: str, name: str) -> Callable[..., object] | str:
        """Give the stand-in for a name; only what a pickled array of bytes needs has one."""
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
        raise DataError(f"the pickle asks for {module}.{name}, which plain data does not need: refused")

    def persistent_load(self, pid: object) -> object:
        """Refuse references to objects outside the pickle."""
        raise DataError(f"the pickle refers to an outside object ({pid!r}): refused")

    def _encode(self, text: str, encoding: str) -> bytes:
        """Python 3 writes bytes in an old protocol as latin-1 text to encode."""
        if encoding not in ("latin1", b"latin1"):  # any other name could make Python import a codec
            raise DataError(f"the pickle asks for the codec {encoding!r} (allowed: latin1)")
        self.bytes_left -= len(text)
        if self.bytes_left < 0:  # one long text, encoded again and again, would fill the memory
            raise DataError("the pickle unfolds to more bytes than it has")
        return text.encode("latin1")

    def _no_bytes(self) -> bytes:
        """Python 3 writes b"" in an old protocol as a call of bytes without arguments."""
        return b""
