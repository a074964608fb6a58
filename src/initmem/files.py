"""Files that are there whole or not at all, reads that are bounded, and disk errors in one line.

Temporary files and claims name the process that made them: files in use can be told from files left behind.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import socket
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, Literal

from initmem.errors import FullDisk, StoreError

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NOT_SUPPORTED = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK)
FILE_SYSTEMS = (
    "needed: ext4, XFS, Btrfs, ZFS, APFS, tmpfs, NFS 4, or Lustre mounted with flock; "
    "FAT, exFAT and most FUSE mounts of cloud storage do not do"
)
UNREADABLE = "unknown"  # the start time of a process that is there, but hidden from this one


def write_atomic(path: Path, data: bytes, mode: int | None = None) -> None:
    """Write a file so that it is there whole or not at all, also after a power cut."""
    with _written(path, data, mode) as written:
        written.replace(path)


def write_once(path: Path, data: bytes, mode: int | None = None) -> None:
    """Write a file like `write_atomic`, unless there is one already."""
    with _written(path, data, mode) as written:
        with suppress(FileExistsError):
            os.link(written, path)
        written.unlink()


@contextmanager
def _written(path: Path, data: bytes, mode: int | None) -> Iterator[Path]:
    """A synced temporary file beside the path, and a synced folder once it has its name."""
    written = temporary(path)
    try:
        with written.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        permit(written, mode)
        yield written
    except BaseException:
        written.unlink(missing_ok=True)
        raise
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append(path: Path, data: bytes, mode: int | None, *, fresh: bool = False) -> None:
    """Add to a file, or start it anew."""
    with open_to_write(path, "wb" if fresh else "ab") as stream:
        stream.write(data)
    permit(path, mode)


def open_to_write(path: Path, mode: Literal["wb", "ab"]) -> BinaryIO:
    """Open a file to write. A FIFO that nobody reads is an error: it would block for ever."""
    return open(path, mode, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK, 0o666))


def permit(path: Path, mode: int | None) -> None:
    """Give a new file a mode; one that belongs to another user keeps its own."""
    if mode is not None:
        with suppress(PermissionError):
            path.chmod(mode)


def sweep(folder: Path) -> None:
    """Remove the temporary files that dead processes of this machine left behind.

    Their names say which process made them, so that no clock is needed to tell how old they are.
    """
    for path in folder.glob(".*.tmp"):
        where, _, process = path.name.split(".")[-3].partition("-")
        pid, _, born = process.partition("-")
        if where == _here() and pid.isdecimal() and is_gone(int(pid), born):
            path.unlink(missing_ok=True)


def temporary(path: Path) -> Path:
    """A unique name beside a path, which says which process made it."""
    pid, born = myself()
    return path.with_name(f".{path.name}.{_here()}-{pid}-{born}.{uuid.uuid4().hex}.tmp")


def _here() -> str:
    return hashlib.sha256(machine().encode()).hexdigest()[:8]


@contextmanager
def open_regular(path: Path) -> Iterator[BinaryIO]:
    """Open a file to read it. Anything but a regular file is refused: a FIFO would block for ever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise StoreError(f"{path.name} is not a regular file")
    with os.fdopen(descriptor, "rb") as stream:
        yield stream


def read_bounded(path: Path, limit: int) -> bytes:
    """Read a regular file of at most so many bytes; a larger one is refused before it is read."""
    with open_regular(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > limit:
            raise StoreError(f"{size:,} bytes (allowed: up to {limit:,})")
        return stream.read(size)


def reason(error: Exception) -> str:
    """What went wrong, without the number and the path of an `OSError`."""
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


@contextmanager
def explained(place: Path) -> Iterator[None]:
    """Turn an error of the disk into one line that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise FullDisk(
                f"{place}: no room left ({error.strerror}); all that was committed is kept: "
                "free some space, and the same command resumes"
            ) from error
        raise StoreError(f"{place}: cannot be written ({reason(error)})") from error


def check_file_system(folder: Path) -> None:
    """Try what a store needs of a file system: that files can be made, linked and locked."""
    probe, link = temporary(folder / "probe"), temporary(folder / "probe")
    need = "hard links"
    probe.touch()
    try:
        os.link(probe, link)
        need = "file locks"
        with probe.open("ab") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in NOT_SUPPORTED:
            raise
        raise StoreError(f"{folder}: no {need} here ({error.strerror}; {FILE_SYSTEMS})") from None
    finally:
        link.unlink(missing_ok=True)
        probe.unlink(missing_ok=True)


@lru_cache(maxsize=1)
def machine() -> str:
    """A name for the space in which a process id means something.

    Host names repeat (containers, clones), so the kernel's boot id and the PID namespace count too.
    """
    names = [socket.gethostname()]
    try:
        names.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        names.append(str(Path("/proc/self/ns/pid").readlink()))
    except OSError:  # not Linux: the host name has to do
        pass
    return " ".join(names)


def myself() -> tuple[int, str]:
    """The id of this process and its start time."""
    pid = os.getpid()
    return pid, born(pid)


def born(pid: int) -> str:
    """The start time of a process as the kernel counts it; empty when there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "" if not _alive(pid) else UNREADABLE
    return "" if fields[0] == "Z" else fields[19]


def is_gone(pid: int, since: str) -> bool:
    """Whether the process with this id and start time has ended; its id may belong to another one by now.

    A process that is hidden (/proc mounted with hidepid) is there: only its heartbeat can tell more.
    """
    return born(pid) not in (since, UNREADABLE)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def processor_lines(*names: str) -> list[str]:
    """What Linux says about its processors, line by line; nothing elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
    return [line for line in lines if line.startswith(names)]
