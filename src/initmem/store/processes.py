"""Which process on which machine: so that what it left behind can be told from what is in use."""

from __future__ import annotations

import os
import socket
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=1)
def machine() -> str:
    """A name for the space in which a process id means something.

    Host names repeat (containers, clones), so the kernel's boot id and the space of process ids count too.
    """
    parts = [socket.gethostname()]
    try:
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    except OSError:  # not Linux: the host name has to do
        pass
    return " ".join(parts)


def myself() -> tuple[int, str]:
    """The id of this process and when it was born."""
    pid = os.getpid()
    return pid, born(pid)


def born(pid: int) -> str:
    """The start time of a process as the kernel counts it; empty when there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "" if not _alive(pid) else "unknown"
    return "" if fields[0] == "Z" else fields[19]


def is_gone(pid: int, since: str) -> bool:
    """Whether the process of this id, born then, is no more; another one may have its id by now."""
    return born(pid) != since


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def processor_lines(*names: str) -> list[str]:
    """What Linux says of its processors, line by line; nothing elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
    return [line for line in lines if line.startswith(names)]
