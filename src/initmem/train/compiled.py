"""Compile the C layers for this processor, once, and load them. Importing this module does not import torch.

What is loaded runs with the rights of the user, so files are kept in a folder that only the user can write to
(mode 0700), each under a name that holds its SHA-256. Anything else is compiled again.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import cffi

from initmem.files import processor_lines, reason, write_atomic

SOURCE = Path(__file__).parent / "native"
SOURCES = ("normalize.c", "layer_norm.c", "winograd.c", "lanes.c", "wide.c", "chain.c", "head.c", "update.c")
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
        return (
            f"C ({self.build}, vectors of {self.widest})"
            if self.code is not None
            else f"PyTorch ({self.reason})"
        )


class Unusable(Exception):
    """Why there is no compiled library, or why a file or folder is not trusted."""


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


def folder() -> Path:
    """Where compiled files are kept: $XDG_CACHE_HOME/initmem-native or ~/.cache/initmem-native.

    Apart from the datasets, which users may share.
    """
    cache_home = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (cache_home if cache_home.is_absolute() else Path.home() / ".cache") / "initmem-native"


def _kept_or_compiled() -> tuple[Any, str]:
    compiler = next(filter(None, map(shutil.which, [os.environ.get("CC", "cc"), "gcc", "clang"])), None)
    build = (
        f"{_source_key()}-{_compiler_key(compiler) if compiler else '*'}"  # without a compiler, any will do
    )
    try:
        cached = _private(folder())
    except (OSError, RuntimeError, Unusable) as error:  # RuntimeError: there is no home directory
        LOG.warning("layers in C are compiled for this process only: %s", _reason(error))
        cached = None
    for path in sorted(cached.glob(f"{build}.*.so")) if cached else ():
        try:
            return _verified(path), path.name.partition(".")[0]
        except (OSError, Unusable) as error:
            LOG.warning("%s: %s; it is not loaded", path, _reason(error))
    if compiler is None:
        raise Unusable("no C compiler")
    return _compiled(compiler, build, cached), build


def _source_key() -> str:
    code = [(SOURCE / name).read_bytes() for name in (*HEADERS, *SOURCES)]
    lines = sorted(set(processor_lines("model name", "flags", "Features")))
    processor = "\n".join(lines) or platform.machine()
    identity = b"\0".join([*code, " ".join(FLAGS).encode(), processor.encode()])
    return hashlib.sha256(identity).hexdigest()[:16]


def _compiler_key(compiler: str) -> str:
    try:
        version = subprocess.run([compiler, "--version"], check=True, capture_output=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise Unusable(f"{compiler} --version: {_reason(error)}") from None
    return hashlib.sha256(version).hexdigest()[:8]


def _private(path: Path) -> Path:
    """A folder that no other user can write to."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    about = path.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o077:
        raise Unusable(f"{path} is not a folder of this user with mode 0700 (remove it)")
    return path


def _verified(path: Path) -> Any:
    """Load a kept file if it is intact."""
    if hashlib.sha256(path.read_bytes()).hexdigest() != path.name.split(".")[1]:
        raise Unusable("it is damaged")
    return interface().dlopen(str(path))


def _compiled(compiler: str, build: str, cached: Path | None) -> Any:
    """Compile the code, keep it if there is a folder for it, and load it."""
    with tempfile.TemporaryDirectory() as work:  # mode 0700
        made = Path(work) / "native.so"
        command = [compiler, *(str(SOURCE / name) for name in SOURCES), *FLAGS, "-o", str(made)]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=60)
            if cached is not None:
                content = made.read_bytes()
                kept = cached / f"{build}.{hashlib.sha256(content).hexdigest()}.so"
                for old in set(cached.glob(f"{build}.*.so")) - {kept}:
                    old.unlink(missing_ok=True)
                write_atomic(kept, content, 0o700)
        except subprocess.SubprocessError as error:
            raise Unusable(f"{compiler} failed: {_reason(error)}") from None
        except OSError as error:
            LOG.warning("the compiled layers cannot be kept in %s: %s", cached, _reason(error))
        try:
            return interface().dlopen(str(made))  # a loaded library no longer needs its file
        except OSError as error:
            raise Unusable(_reason(error)) from None


def _reason(error: Exception) -> str:
    """The reason in one line: what a compiler printed first, rather than its exit code."""
    if isinstance(error, subprocess.CalledProcessError) and error.stderr:
        return str(error.stderr.decode(errors="replace").splitlines()[0])
    return reason(error)
