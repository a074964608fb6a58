"""What can go wrong with a run, by name. Each fault is noted next to its run and counted in the record.

The causes of crashed runs, for people, are at the end.
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Literal, NamedTuple, get_args

from pydantic import TypeAdapter, ValidationError

from initmem.errors import FullDisk, first_of
from initmem.files import explained, opened, readable, retried
from initmem.record import RunRecord
from initmem.store.paths import Paths
from initmem.study import Run

Cause = Literal["lost worker", "exception", "out of memory", "divergence", "timeout", "full disk"]
CAUSES: tuple[Cause, ...] = get_args(Cause)

LOSSES: tuple[Cause, ...] = ("lost worker", "timeout")  # after which another worker takes over

MOST_LOSSES = 3  # of a run alone, in one session and without a new checkpoint; then it is recorded as crashed
MOST_TIMEOUTS = 2  # the same, when a time limit ended the worker

LONGEST_DETAIL = 8000  # characters
LONGEST_CAUSE = 300
# PyTorch's messages when there is no memory; only for accelerators does it have an exception of its own.
NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "DefaultCPUAllocator")


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that went wrong while a run was in training."""

    cause: Cause
    session: str = ""  # the call of an engine that the worker worked for
    pack: int = 1  # how many runs were trained together
    update: int = 0  # of the newest checkpoint at that time
    detail: str = ""


_FAULT = TypeAdapter(Fault)


class FaultLog:
    """The faults of runs that have no record yet."""

    def __init__(self, paths: Paths, *, session: str) -> None:
        self.paths, self.session = paths, session

    def of(self, run_id: str) -> list[Fault]:
        """What went wrong with a run so far."""
        path = self.paths.faults(run_id)
        try:
            with readable(path):
                return list(from_lines(retried(path.read_bytes)))
        except FileNotFoundError:
            return []

    def attempt(self, run_id: str) -> int:
        """How many workers have started a run, the present one included."""
        return 1 + sum(fault.cause in LOSSES for fault in self.of(run_id))

    def note(self, runs: Sequence[Run], cause: Cause, detail: str = "") -> None:
        """Write down what happened to runs that were trained together."""
        for run in runs:
            self._add(run, Fault(cause, self.session, len(runs), detail=detail))

    def note_loss(self, run: Run, session: str, pack: int) -> None:
        """Write down how the previous worker was lost; the watchdog of a time limit leaves a traceback."""
        hang, traceback = self.paths.hang(run.id), ""
        with contextlib.suppress(FileNotFoundError), readable(hang):
            traceback = retried(hang.read_bytes).decode(errors="replace")
        self._add(run, Fault("timeout" if traceback else "lost worker", session, pack, detail=traceback))
        hang.unlink(missing_ok=True)

    @contextlib.contextmanager
    def time_limit(self, seconds: float | None, runs: Sequence[Run]) -> Iterator[Callable[[], None]]:
        """End this process after so many seconds; what is yielded starts the time again. None: never.

        faulthandler does it in a thread of its own, which acts even if Python itself is stuck. It writes down
        where every thread stood, in a file in the folder of every run.
        """
        if seconds is None:
            yield lambda: None
            return
        with explained(self.paths.root):
            files = [self.paths.make_run(run.id) and self.paths.hang(run.id) for run in runs]
            for file in files:
                file.unlink(missing_ok=True)
            stream = opened(files[0], os.O_EXCL)
            for file in files[1:]:
                os.link(files[0], file)
        restart = partial(faulthandler.dump_traceback_later, seconds, exit=True, file=stream)
        restart()
        try:
            yield restart
        finally:
            faulthandler.cancel_dump_traceback_later()
            stream.close()
            for file in files:
                file.unlink(missing_ok=True)

    def _add(self, run: Run, fault: Fault) -> None:
        with explained(self.paths.root):
            self.paths.make_run(run.id)
            newest = max(self.paths.checkpoints(run.id), default=0)
            with opened(self.paths.faults(run.id), os.O_APPEND) as stream:
                stream.write(to_line(replace(fault, update=newest)))


def cause_of(error: BaseException) -> Cause:
    """Name what an exception in training means."""
    if isinstance(error, FullDisk) or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
        return "full disk"
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return "out of memory"
    if isinstance(error, RuntimeError) and any(text in str(error) for text in NO_MEMORY):
        return "out of memory"
    return "exception"


def next_pack(faults: Iterable[Fault], *, session: str, update: int, pack: int) -> int:
    """How many runs to train together after what happened so far; 0 gives the run up.

    The first loss may have nothing to do with the runs: the same pack is tried again. From the second loss on
    packs are halved, until the run that kills its workers is alone. Only losses of this session count (users
    may kill as many sessions as they like), and only those since the checkpoint of the given update.
    """
    lost = [f for f in faults if f.cause in LOSSES and f.session == session and f.update >= update]
    alone = [f.cause for f in lost if f.pack == 1]
    if len(alone) >= MOST_LOSSES or alone.count("timeout") >= MOST_TIMEOUTS:
        return 0
    return pack if len(lost) < 2 else min(pack, max(1, min(f.pack for f in lost) // 2))


def to_line(fault: Fault) -> bytes:
    """One line of a fault log. It begins with a line break, in case the line before was cut off."""
    text, half = fault.detail.encode(errors="replace").decode(), LONGEST_DETAIL // 2
    if len(text) > LONGEST_DETAIL:  # both ends: the cause in a traceback may be at either
        text = f"{text[:half]}\n...\n{text[-half:]}"
    return b"\n" + json.dumps(asdict(fault) | {"detail": text}).encode() + b"\n"


def from_lines(data: bytes) -> Iterator[Fault]:
    """The faults in a log; lines that are cut off or damaged are skipped."""
    for line in data.splitlines():
        with contextlib.suppress(ValidationError):
            yield _FAULT.validate_json(line, strict=True)


class CrashCause(NamedTuple):
    """A cause, how many runs crashed of it, and the first of them."""

    cause: str
    runs: int
    first_id: str
    scale: float | str  # or intervention
    seed: int
    workdir: str = ""  # where its files are, if it had a working directory of its own

    def __str__(self) -> str:
        files = f", files in {self.workdir}" if self.workdir else ""
        at = self.scale if isinstance(self.scale, str) else f"scale {self.scale:g}"
        return f"{self.runs} with {self.cause} (the first: {at}, seed {self.seed}{files})"


def cause_line(record: RunRecord) -> str:
    """The last line of a traceback that is not blank: the exception."""
    lines = [line.strip() for line in (record.error or "").splitlines() if line.strip()]
    return (lines[-1] if lines else "no reason given")[:LONGEST_CAUSE]


def crashed_alike(records: Iterable[RunRecord]) -> list[list[RunRecord]]:
    """The crashed runs, those of the same cause together, the most frequent first."""
    groups: dict[str, list[RunRecord]] = {}
    for record in records:
        if record.status == "crashed":
            # Causes may differ in numbers alone, such as the epoch or the scale.
            cause = re.sub(r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?", "0", cause_line(record))
            groups.setdefault(cause, []).append(record)
    return sorted(groups.values(), key=len, reverse=True)


def crash_causes(records: Iterable[RunRecord]) -> list[CrashCause]:
    """The causes of all crashed runs, the most frequent first."""
    causes = []
    for group in crashed_alike(records):
        run, workdir = group[0].run, str(group[0].provenance.get("workdir", ""))
        causes.append(CrashCause(cause_line(group[0]), len(group), run.id, run.level, run.seed, workdir))
    return causes


def crash_lines(records: Sequence[RunRecord], most: int = 3) -> list[str]:
    """One line that counts the crashed runs and names the most frequent causes; none where none crashed."""
    causes = crash_causes(records)
    if not causes:
        return []
    count = sum(cause.runs for cause in causes)
    return [f"{count} of {len(records)} runs crashed: {first_of(list(map(str, causes)), most)}"]
