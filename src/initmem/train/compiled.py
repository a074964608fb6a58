"""Compile the C layers for this processor, once, and load them. Importing this module does not import torch.

What is loaded runs with the rights of the user, so it is kept in a folder that only the user can write to,
under a name that identifies source, flags, processor and compiler.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import cffi
import platformdirs

from initmem.files import processor_lines, reason, write_atomic

SOURCE = Path(__file__).parent / "native"
SOURCES = sorted(path.name for path in SOURCE.glob("*.c"))
HEADERS = ("layers.h", "vectors.h")  # cffi reads the declarations in the first
FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC", "-lm")
LOG = logging.getLogger(__name__)


class Library(NamedTuple):
    """The compiled layers, or why there are none."""

    code: Any  # the functions of layers.h; None: not available
    build: str = ""  # identifies source, flags, processor and compiler
    widest: int = 0  # floats in its widest vectors
    reason: str = ""  # why PyTorch computes all layers

    def __str__(self) -> str:
        layers = f"C ({self.build}, vectors of {self.widest})"
        return layers if self.code is not None else f"PyTorch ({self.reason})"


class Unusable(Exception):
    """Why there is no compiled library."""


@cache
def library() -> Library:
    """The compiled layers of this process. The reason is logged if there are none."""
    if os.environ.get("INITMEM_NATIVE") == "0":
        return Library(None, reason="INITMEM_NATIVE=0")
    try:
        code, build = _kept_or_compiled()
    except Unusable as error:
        LOG.info("layers: PyTorch (%s)", error)
        return Library(None, reason=str(error))
    return Library(code, build, code.widest())


@cache
def interface() -> cffi.FFI:
    """The types and functions that layers.h declares."""
    ffi = cffi.FFI()
    ffi.cdef((SOURCE / HEADERS[0]).read_text("ascii"))
    return ffi


def _kept_or_compiled() -> tuple[Any, str]:
    """The code and its build: loaded from the folder, or compiled and kept there."""
    compiler = next(filter(None, map(shutil.which, [os.environ.get("CC", "cc"), "gcc", "clang"])), None)
    build = f"{_source_key()}-{_compiler_key(compiler) if compiler else '*'}"  # without one, any will do
    folder = _folder()
    for kept in folder.glob(f"{build}.so") if folder else ():
        try:
            return interface().dlopen(str(kept)), kept.stem
        except OSError as error:
            LOG.warning("%s is compiled again: %s", kept, reason(error))
    if compiler is None:
        raise Unusable("no C compiler")
    with tempfile.TemporaryDirectory() as work:  # mode 0700
        made = Path(work) / "native.so"
        _output([compiler, *(str(SOURCE / name) for name in SOURCES), *FLAGS, "-o", str(made)])
        try:
            code = interface().dlopen(str(made))  # a loaded library no longer needs its file
        except OSError as error:
            raise Unusable(reason(error)) from None
        try:
            if folder is not None:
                write_atomic(folder / f"{build}.so", made.read_bytes(), 0o700)
        except OSError as error:
            LOG.warning("the compiled layers cannot be kept in %s: %s", folder, reason(error))
    return code, build


def _folder() -> Path | None:
    """Where compiled files are kept, apart from the datasets, which users may share; None: nowhere."""
    try:
        folder = platformdirs.user_cache_path("initmem-native")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.geteuid() or folder.stat().st_mode & 0o022:
            raise PermissionError(f"others can write to {folder}")
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home directory
        LOG.warning("layers in C are compiled for this process only: %s", reason(error))
        return None
    return folder


def _source_key() -> str:
    code = [(SOURCE / name).read_bytes() for name in (*HEADERS, *SOURCES)]
    lines = sorted(set(processor_lines("model name", "flags", "Features")))
    processor = "\n".join(lines) or platform.machine()
    identity = b"\0".join([*code, " ".join(FLAGS).encode(), processor.encode()])
    return hashlib.sha256(identity).hexdigest()[:16]


def _compiler_key(compiler: str) -> str:
    return hashlib.sha256(_output([compiler, "--version"])).hexdigest()[:8]


def _output(command: list[str]) -> bytes:
    """What a compiler prints; the first line that it complains with is the reason if it fails."""
    try:
        return subprocess.run(command, check=True, capture_output=True, timeout=600).stdout
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode(errors="replace").splitlines() or [f"exit code {error.returncode}"]
        raise Unusable(f"{command[0]} failed: {lines[0]}") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise Unusable(f"{command[0]}: {reason(error)}") from None
