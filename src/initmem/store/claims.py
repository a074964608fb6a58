"""Claims: who trains a run. One small file each, whole from its first moment."""

from __future__ import annotations

import json
import os
import time
import uuid
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from initmem.store.processes import is_gone, machine, myself

LARGEST = 4096  # bytes of a claim


@dataclass(frozen=True, slots=True)
class Claim:
    """Who trains a run, in the same words for all runs of a pack."""

    token: str  # makes every claim of a pack unique, however often a process id comes back
    host: str
    pid: int
    born: str  # start time of the process, so that a recycled pid is not taken for the old one
    session: str = ""  # of which call of an engine the process is a part
    pack: int = 1  # how many runs the worker took at once

    def is_mine(self) -> bool:
        """Whether this process made the claim."""
        return self.host == machine() and (self.pid, self.born) == myself()

    def process_is_gone(self) -> bool:
        """Whether the claim was made on this machine by a process that is no more."""
        return self.host == machine() and is_gone(self.pid, self.born)


@dataclass(frozen=True, slots=True)
class Sight:
    """What was seen of a claim file: its last heartbeat, and what it says unless it is damaged."""

    beat: int
    claim: Claim | None


class Heartbeats:
    """How long each heartbeat has been silent, by this process's own clock. The first look counts as one."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float]] = {}  # run id -> (beat, when it was first seen)

    def silence(self, run_id: str, beat: int) -> float:
        """Seconds since the heartbeat was seen to change."""
        now = time.monotonic()
        last, since = self._seen.get(run_id, (None, now))
        if beat != last:
            self._seen[run_id] = (beat, now)
            return 0.0
        return now - since


def new_claim(*, session: str, pack: int) -> bytes:
    """The content of a claim by this process."""
    pid, born = myself()
    return json.dumps(asdict(Claim(uuid.uuid4().hex, machine(), pid, born, session, pack))).encode()


def look(path: Path) -> Sight | None:
    """Look at a claim; None when there is none.

    The heartbeat is read from the opened file: network file systems may answer a plain look at the
    name from an old memory.
    """
    try:
        with path.open("rb") as stream:
            data = stream.read(LARGEST)
            beat = os.fstat(stream.fileno()).st_mtime_ns
    except FileNotFoundError:
        return None
    return Sight(beat, _parsed(data))


def _parsed(data: bytes) -> Claim | None:
    try:
        content = json.loads(data)
        claim = Claim(**content)
    except (ValueError, TypeError, RecursionError):
        return None
    kinds = {item.name: str if item.type == "str" else int for item in fields(Claim)}
    return claim if all(type(getattr(claim, name)) is kind for name, kind in kinds.items()) else None
