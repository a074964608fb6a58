"""This machine: its identity, its processes and its processor.

A process id alone does not name a process: ids are reused, and mean something on one machine only.
"""

from __future__ import annotations

import os
import socket
from functools import lru_cache
from pathlib import Path

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
        return HIDDEN if _exists(pid) else ""
    return "" if fields[0] == "Z" else fields[19]


def has_ended(pid: int, started: str) -> bool:
    """Whether the process with this id and start time has ended; its id may belong to another one by now.

    A hidden process (/proc mounted with hidepid) counts as running: only its heartbeat can tell more.
    """
    return start_time(pid) not in (started, HIDDEN)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def processor_lines(*names: str) -> list[str]:
    """The lines of /proc/cpuinfo that start with one of these names; none on other systems than Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
    return [line for line in lines if line.startswith(names)]
