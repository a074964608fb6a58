"""Which process on which machine: so that files in use can be told from files left behind."""

from __future__ import annotations

import os
import socket
from functools import lru_cache
from pathlib import Path

UNREADABLE = "unknown"  # the start time of a process that is there, but hidden from this one


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
