"""Claims: which worker trains a run. One small file each, whole from its first moment.

A claim is held by at most one living worker. It ends with its process (on the same machine) or when its
heartbeat stops for `EXPIRY` seconds of the observer's own clock: no jump of the system time ends one.
Beside its claim, a run in training keeps the epochs it has shown so far, for those who watch.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from initmem.files import (
    append,
    is_gone,
    machine,
    myself,
    open_regular,
    open_to_write,
    permit,
    read_bounded,
    temporary,
    write_atomic,
)
from initmem.store.faults import FaultLog
from initmem.store.paths import Paths, writes
from initmem.store.records import Records
from initmem.study import Run

EXPIRY = 60.0  # seconds without a heartbeat after which a claim of another machine is dead
LARGEST = 4096  # bytes of a claim
LARGEST_HISTORY = 256 << 20  # bytes


@dataclass(frozen=True, slots=True)
class Claim:
    """Who trains a run; the same for all runs of a pack."""

    token: str  # makes every claim of a pack unique, however often a process id comes back
    host: str
    pid: int
    born: str  # start time of the process, so that a recycled pid is not taken for the old one
    session: str = ""  # the call of an engine that the process works for
    pack: int = 1  # how many runs the worker claimed together

    def is_mine(self) -> bool:
        """Whether this process made the claim."""
        return self.host == machine() and (self.pid, self.born) == myself()

    def process_is_gone(self) -> bool:
        """Whether the claim was made on this machine by a process that has ended."""
        return self.host == machine() and is_gone(self.pid, self.born)


@dataclass(frozen=True, slots=True)
class Sight:
    """What was seen of a claim file: its last heartbeat, and its content unless it is damaged."""

    beat: int
    claim: Claim | None


class Heartbeats:
    """How long each heartbeat has been silent, by this process's own clock. The first look counts as one."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[object, float]] = {}  # run id -> (beat, when it was first seen)

    def silence(self, run_id: str, beat: object) -> float:
        """Seconds since the heartbeat was seen to change."""
        now = time.monotonic()
        last, since = self._seen.get(run_id, (None, now))
        if beat != last:
            self._seen[run_id] = (beat, now)
            return 0.0
        return now - since


class Claims:
    """The claims of a store, as one session makes and sees them."""

    def __init__(self, paths: Paths, records: Records, faults: FaultLog, *, session: str) -> None:
        self.paths, self.session = paths, session
        self._records, self._faults = records, faults
        self._heartbeats = Heartbeats()

    @writes
    def take(self, runs: Sequence[Run]) -> list[Run]:
        """Claim the runs of a pack that have no record yet: all, or none while another worker has one.

        Workers with the same packs try the same first run first: whoever gets it gets the whole pack.
        """
        open_runs = [run for run in runs if not self._records.has(run)]
        content = new_claim(session=self.session, pack=len(open_runs))
        mine: list[Run] = []
        heir_of = ""
        try:
            for run in open_runs:
                dead = self._take_one(run, content, heir_of)
                if dead is None:  # a pack is trained whole: what another worker has of it is worth the wait
                    self.release(mine)
                    return []
                mine.append(run)
                heir_of = heir_of or dead
        except OSError:
            self.release(mine)
            raise
        if any(self._faults.attempt(run.id) > 1 for run in mine):
            self._records.finish_commits()  # the previous worker may have died in the middle of a commit
        done = [run for run in mine if self._records.has(run)]  # committed between the look and the claim
        self.release(done)
        return [run for run in mine if run not in done]

    @writes
    def heartbeat(self, runs: Sequence[Run]) -> None:
        """Show that the claims are alive."""
        for run in runs:
            with contextlib.suppress(FileNotFoundError):
                os.utime(self.paths.claim(run.id))

    def owns(self, run: Run) -> bool:
        """Whether this process still holds the claim."""
        seen = look(self.paths.claim(run.id))
        return seen is not None and seen.claim is not None and seen.claim.is_mine()

    @writes
    def release(self, runs: Sequence[Run]) -> None:
        """Give claims back, so that another worker can continue."""
        for run in runs:
            if self.owns(run):
                self.paths.claim(run.id).unlink(missing_ok=True)

    def ids(self) -> list[str]:
        """Ids of the runs that are claimed now."""
        return sorted(path.parent.name for path in self.paths.runs.glob("*/claim.json"))

    def _take_one(self, run: Run, content: bytes, heir_of: str) -> str | None:
        """Claim one run: None when another worker has it, else the token of the dead claim it had, if any."""
        self.paths.open_run(run.id)
        path = self.paths.claim(run.id)
        written = temporary(path)
        written.write_bytes(content)
        permit(written, self.paths.mode)
        try:
            os.link(written, path)  # exclusive, and whole at once: nobody ever reads half a claim
        except FileExistsError:
            return self._take_over(run, path, content, heir_of)
        finally:
            written.unlink(missing_ok=True)
        return ""

    def _take_over(self, run: Run, path: Path, content: bytes, heir_of: str) -> str | None:
        """Replace a dead claim. The lock keeps two observers from doing it one after the other."""
        if not self._is_dead(run, look(path), heir_of):
            return None
        with self._lock():
            seen = look(path)
            if seen is None or not self._is_dead(run, seen, heir_of):
                return None
            if seen.claim is not None:
                self._faults.note_loss(run, seen.claim.session, seen.claim.pack)
            write_atomic(path, content, self.paths.mode)
            return seen.claim.token if seen.claim else ""

    def _is_dead(self, run: Run, seen: Sight | None, heir_of: str) -> bool:
        if seen is None:
            return False  # released or committed a moment ago: nothing to take over
        if seen.claim is not None and seen.claim.process_is_gone():
            return True
        if seen.claim is not None and seen.claim.token == heir_of:
            return True  # one worker had them all: whoever takes over the first of its runs takes the rest
        return self._heartbeats.silence(run.id, seen.beat) > EXPIRY

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        with open_to_write(self.paths.lock, "ab") as stream:
            permit(self.paths.lock, self.paths.mode)
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield


def new_claim(*, session: str, pack: int) -> bytes:
    """The content of a claim by this process."""
    pid, born = myself()
    return json.dumps(asdict(Claim(uuid.uuid4().hex, machine(), pid, born, session, pack))).encode()


def look(path: Path) -> Sight | None:
    """Look at a claim; None when there is none.

    The heartbeat is read from the opened file: a network file system may answer a plain stat of the name
    from its cache.
    """
    try:
        with open_regular(path) as stream:
            data = stream.read(LARGEST)
            beat = os.fstat(stream.fileno()).st_mtime_ns
    except FileNotFoundError:
        return None
    return Sight(beat, _parsed(data))


def _parsed(data: bytes) -> Claim | None:
    """A claim; fields that only a newer version knows are ignored."""
    kinds = {item.name: str if item.type == "str" else int for item in fields(Claim)}
    try:
        content = json.loads(data)
        claim = Claim(**{name: content[name] for name in kinds if name in content})
    except (ValueError, TypeError, RecursionError):
        return None
    return claim if all(type(getattr(claim, name)) is kind for name, kind in kinds.items()) else None


@dataclass(frozen=True, slots=True)
class Flight:
    """A run in training, for those who watch."""

    claim: Claim | None  # None: released or committed a moment ago
    silence: float  # seconds since the last sign of life
    rows: list[dict[str, float]]  # its epochs so far
    attempt: int = 1  # how many workers have started it


class LiveHistory:
    """The epochs of runs in training. They are shown, never read back into training."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths

    @writes
    def append(self, run: Run, row: Mapping[str, float], *, fresh: bool) -> None:
        """Add the row of one epoch; `fresh` starts the file anew."""
        self.paths.open_run(run.id)
        line = json.dumps(row, separators=(",", ":")).encode() + b"\n"
        append(self.paths.history(run.id), line, self.paths.mode, fresh=fresh)

    def rows(self, run_id: str) -> list[dict[str, float]]:
        """The rows of a run in training. A line that is half written is left out until the next look."""
        return [row for line in self._read(run_id).splitlines() if (row := _row(line))]

    def epochs(self, run_id: str) -> int:
        """How many epochs a run in training has shown."""
        return self._read(run_id).count(b"\n")

    def beat(self, run_id: str) -> int | None:
        """When the history of a run was last written, by whatever clock; None when there is none."""
        try:
            return self.paths.history(run_id).stat().st_mtime_ns
        except OSError:
            return None

    def _read(self, run_id: str) -> bytes:
        try:
            return read_bounded(self.paths.history(run_id), LARGEST_HISTORY)
        except OSError:
            return b""


def _row(line: bytes) -> dict[str, float]:
    """One line of a history; empty where it is torn or something else."""
    try:
        return {str(name): float(value) for name, value in json.loads(line).items()}
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return {}
