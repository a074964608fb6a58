"""Files that are there whole or not at all, disk errors in one line, and the processes that write them.

Temporary files and claims name the process that made them, so that files in use can be told from files left
behind. A process id alone does not name a process: ids are reused, and mean something on one machine only.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import socket
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, TypeVar

from initmem.errors import FullDisk, StoreError

T = TypeVar("T")

PASSING = (errno.ESTALE, errno.EIO)  # what a network file system may report once, and not again
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NOT_SUPPORTED = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK)
FILE_SYSTEMS = (
    "needed: ext4, XFS, Btrfs, ZFS, APFS, tmpfs, NFS 4, or Lustre mounted with flock; "
    "FAT, exFAT and most FUSE mounts of cloud storage are not supported"
)
TEMPORARY = re.compile(r"\..*\.([0-9a-f]{8})-([0-9]+)-([^.]*)\.[0-9a-f]{32}\.tmp")  # machine, pid, start time


def write_atomic(path: Path, data: bytes, mode: int | None = None, *, once: bool = False) -> None:
    """Write a file so that it is there whole or not at all, also after a power cut.

    A temporary file next to the path is synced and gets its name, `once` unless there is such a file; then
    the folder is synced.
    """
    written = temporary(path)
    try:
        with opened(written, os.O_EXCL) as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
            if mode is not None:
                os.fchmod(stream.fileno(), mode)
        if once:
            with suppress(FileExistsError):
                os.link(written, path)
            written.unlink()
        else:
            written.replace(path)
    except BaseException:
        written.unlink(missing_ok=True)
        raise
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_output(path: Path, data: bytes) -> None:
    """Write a file that the user asked for; what killed processes left of earlier ones next to it goes."""
    with suppress(StoreError):  # the folder may not be listed
        sweep(path.parent)
    with explained(path):
        write_atomic(path, data)


def opened(path: Path, flags: int) -> BinaryIO:
    """A file to write to, made if need be. A link is refused: in a folder of a group it may lead anywhere."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o666)
    return os.fdopen(descriptor, "wb")


def temporary(path: Path) -> Path:
    """A unique name next to a path that identifies this process."""
    pid, started = this_process()
    return path.with_name(f".{path.name}.{_machine_digest()}-{pid}-{started}.{uuid.uuid4().hex}.tmp")


def left_behind(folder: Path, prefix: str = "") -> Iterator[Path]:
    """The temporary files and folders of a name that dead processes of this machine left in a folder."""
    for name in names(folder):
        owner = TEMPORARY.fullmatch(name) if name.startswith(f".{prefix}") else None
        if owner and owner[1] == _machine_digest() and has_ended(int(owner[2]), owner[3]):
            yield folder / name


def sweep(folder: Path, prefix: str = "") -> None:
    """Remove what dead processes left behind, as far as this user may."""
    for path in left_behind(folder, prefix):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink(missing_ok=True)


@contextmanager
def temporary_folder(name: str = "initmem") -> Iterator[Path]:
    """A folder that is removed afterwards; if this process is killed, by the next sweep."""
    folder = temporary(Path(tempfile.gettempdir(), name))
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _machine_digest() -> str:
    return hashlib.sha256(machine_id().encode()).hexdigest()[:8]


def retried(read: Callable[[], T]) -> T:
    """What a read returns. It is tried twice where the error may pass."""
    try:
        return read()
    except OSError as error:
        if error.errno not in PASSING:
            raise
    return read()


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Whatever is wrong with a file is a `StoreError` that names it; a missing one a `FileNotFoundError`."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(*error.args) from None
    except StoreError as error:
        raise type(error)(f"{path}: {error}") from None
    except OSError as error:
        raise StoreError(f"{path}: {reason(error)}") from None


def names(folder: Path) -> list[str]:
    """The names of what is in a folder, in order; none where there is no folder."""
    try:
        with readable(folder):
            return sorted(retried(lambda: [path.name for path in folder.iterdir()]))
    except FileNotFoundError:
        return []


def jsons(folder: Path) -> list[Path]:
    """The JSON files in a folder, in the order of their names; not the hidden ones in the making."""
    return [folder / name for name in names(folder) if name.endswith(".json") and name[0] != "."]


def make_folder(folder: Path) -> None:
    """Make a folder of a store, unless it exists. What is done to its files is not done through a link."""
    retried(lambda: folder.mkdir(exist_ok=True))
    refuse_link(folder)


def refuse_link(path: Path) -> None:
    """Raise one line if a path is a symbolic link."""
    with readable(path):
        if retried(path.is_symlink):
            raise StoreError("a symbolic link (allowed: a file or folder of the store itself)")


def is_there(path: Path) -> bool:
    """Whether a file or folder exists; that it cannot be found out is an error."""
    try:
        with readable(path):
            retried(path.stat)
    except FileNotFoundError:
        return False
    return True


def read_bounded(path: Path, limit: int) -> bytes:
    """Read a file of at most so many bytes; a larger one is refused before it is read."""
    size = path.stat().st_size
    if size > limit:
        raise StoreError(f"{size:,} bytes (allowed: up to {limit:,})")
    return path.read_bytes()


def reason(error: Exception) -> str:
    """What went wrong, without the number and the path of an `OSError`."""
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


@contextmanager
def explained(root: Path) -> Iterator[None]:
    """Turn an error of the disk into one line with a remedy."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise FullDisk(
                f"{root}: no room left ({error.strerror}); all that was committed is kept: "
                "free some space, and the same command resumes"
            ) from error
        if error.errno == errno.ELOOP and error.filename:
            refuse_link(Path(error.filename))
        raise StoreError(f"{root}: cannot be written ({reason(error)})") from error


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


HIDDEN = "unknown"  # start time of a process that exists but that this one may not see


@lru_cache(maxsize=1)
def machine_id() -> str:
    """A name for the space in which a process id means something.

    Host names repeat (containers, clones), so the kernel's boot id and the PID namespace are part of it.
    """
    names = [socket.gethostname()]
    try:
        names.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        names.append(str(Path("/proc/self/ns/pid").readlink()))
    except OSError:  # not Linux: the host name has to do
        pass
    return " ".join(names)


def this_process() -> tuple[int, str]:
    """The id of this process and its start time."""
    pid = os.getpid()
    return pid, start_time(pid)


def start_time(pid: int) -> str:
    """The start time of a process, as the kernel counts it; empty if there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return ""
        except (PermissionError, OverflowError):
            pass
        return HIDDEN
    return "" if fields[0] == "Z" else fields[19]


def has_ended(pid: int, started: str) -> bool:
    """Whether the process with this id and start time has ended; its id may belong to another one by now.

    A hidden process (/proc mounted with hidepid) counts as running: only its heartbeat can tell more.
    """
    return start_time(pid) not in (started, HIDDEN)


def processor_lines(*names: str) -> list[str]:
    """The lines of /proc/cpuinfo that start with one of these names; none on other systems than Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
    return [line for line in lines if line.startswith(names)]
