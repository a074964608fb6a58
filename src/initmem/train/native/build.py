"""Compile the C layers for this CPU, once, and load them."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from initmem.data.sources import cache_dir
from initmem.store.files import processor_lines, write_atomic

SOURCES = ("normalize.c", "winograd.c", "lanes.c")
HEADER = "vectors.h"
FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC", "-lm")

_POINTER, _NUMBER, _FLAG, _REAL = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_double
_IMAGES = [_NUMBER] * 4  # images, height, width, channels
_PACK = [_NUMBER] * 2  # replicas, lanes
_ARGUMENTS = {
    "normalize": [_POINTER, *_IMAGES, *_PACK, _FLAG, _POINTER, _POINTER, _REAL, *[_POINTER] * 4],
    "normalize_fixed": [_POINTER, *_IMAGES, *_PACK, _FLAG, _POINTER, _POINTER, _REAL, *[_POINTER] * 3],
    "normalize_backward": [_POINTER, _POINTER, *_IMAGES, *_PACK, _FLAG, *[_POINTER] * 4],
    "convolve": [*[_POINTER] * 3, *_IMAGES, _NUMBER, _FLAG, _POINTER],
    "convolve_backward": [_POINTER, _POINTER, *_IMAGES, _NUMBER, *[_POINTER] * 2],
    "lanes_convolve": [*[_POINTER] * 3, *_IMAGES, _NUMBER, *_PACK, _FLAG, _POINTER],
    "lanes_convolve_backward": [_POINTER, _POINTER, *_IMAGES, _NUMBER, *_PACK, *[_POINTER] * 2],
}


@cache
def library() -> ctypes.CDLL | None:
    """The compiled code; None if it is not available."""
    if os.environ.get("INITMEM_NATIVE") == "0":
        return None
    try:
        code = _load()
    except (OSError, subprocess.SubprocessError):
        return None
    for name, arguments in _ARGUMENTS.items():
        function = getattr(code, name)
        function.argtypes, function.restype = arguments, _FLAG if "convolve" in name else None
    return code


def _load() -> ctypes.CDLL:
    """Load the code from the cache, or compile it now."""
    here = Path(__file__).parent
    code = [(here / name).read_bytes() for name in (HEADER, *SOURCES)]
    identity = b"\0".join([*code, " ".join(FLAGS).encode(), _processor().encode()])
    kept = cache_dir() / f"native-{hashlib.sha256(identity).hexdigest()[:16]}.so"
    if kept.exists():
        try:
            return ctypes.CDLL(str(kept))
        except OSError:
            pass  # damaged: compile it again
    compiler = next(filter(None, map(shutil.which, [os.environ.get("CC", "cc"), "gcc", "clang"])), None)
    if compiler is None:
        raise FileNotFoundError("no C compiler")
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "native.so"
        sources = [str(here / name) for name in SOURCES]
        subprocess.run(
            [compiler, *sources, *FLAGS, "-o", str(made)], check=True, capture_output=True, timeout=60
        )
        try:
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(kept, made.read_bytes())
        except OSError:  # the cache is not writable; a loaded library no longer needs its file
            return ctypes.CDLL(str(made))
    return ctypes.CDLL(str(kept))


def _processor() -> str:
    """The CPU model and features that the code is compiled for."""
    return "\n".join(sorted(set(processor_lines("model name", "flags", "Features")))) or platform.machine()
