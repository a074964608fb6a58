"""Files that are there whole or not at all, and errors of the disk in plain words."""

from __future__ import annotations

import errno
import hashlib
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from initmem.errors import FullDisk, StoreError
from initmem.store.processes import is_gone, machine, myself

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that it is there whole or not at all, also after a power cut."""
    with _written(path, data) as written:
        written.replace(path)


def write_once(path: Path, data: bytes) -> None:
    """Write a file like `write_atomic`, unless there is one already."""
    with _written(path, data) as written:
        with suppress(FileExistsError):
            os.link(written, path)
        written.unlink()


@contextmanager
def _written(path: Path, data: bytes) -> Iterator[Path]:
    """A synced temporary file beside the path, and a synced folder once it has its name."""
    written = temporary(path)
    try:
        with written.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        yield written
    except BaseException:
        written.unlink(missing_ok=True)
        raise
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sweep(folder: Path) -> None:
    """Remove the temporary files that dead processes of this machine left behind.

    Their names tell who made them, so that no clock is asked how old they are.
    """
    for path in folder.glob(".*.tmp"):
        where, _, process = path.name.split(".")[-3].partition("-")
        pid, _, born = process.partition("-")
        if where == _here() and pid.isdecimal() and is_gone(int(pid), born):
            path.unlink(missing_ok=True)


def temporary(path: Path) -> Path:
    """A name beside a path that nobody else has, and that tells which process made it."""
    pid, born = myself()
    return path.with_name(f".{path.name}.{_here()}-{pid}-{born}.{uuid.uuid4().hex}.tmp")


def _here() -> str:
    return hashlib.sha256(machine().encode()).hexdigest()[:8]


def read_bounded(path: Path, limit: int) -> bytes:
    """Read a file that has no business to be larger than so many bytes."""
    with path.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > limit:
            raise StoreError(f"{size:,} bytes (allowed: up to {limit:,})")
        return stream.read(size)


@contextmanager
def explained(place: Path) -> Iterator[None]:
    """Turn an error of the disk into one line that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise FullDisk(
                f"{place}: no room left ({error.strerror}); all that was committed is kept: "
                "make room, and the same command goes on"
            ) from error
        raise StoreError(f"{place}: cannot be written ({error.strerror or error})") from error
