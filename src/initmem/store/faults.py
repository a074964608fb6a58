"""What can go wrong with a run, by name. Each fault is noted beside its run and counted in the record."""

from __future__ import annotations

import errno
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Literal, get_args

from initmem.errors import FullDisk

Cause = Literal["lost worker", "exception", "out of memory", "divergence", "timeout", "full disk"]
CAUSES: tuple[Cause, ...] = get_args(Cause)

LOSSES: tuple[Cause, ...] = ("lost worker", "timeout")  # after which another worker begins

MOST_LOSSES = 3  # of a run alone, in one session and without a new checkpoint; then it is recorded as failed
MOST_TIMEOUTS = 2  # the same, when a time limit ended the worker

LONGEST_DETAIL = 8000
# What PyTorch says when there is no memory; only its accelerators have an exception of their own for it.
NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "DefaultCPUAllocator")


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that went wrong while a run was in work."""

    cause: Cause
    session: str = ""  # of which call of an engine the worker was a part
    pack: int = 1  # how many runs were in work together
    epoch: int = 0  # of the newest checkpoint at that time
    detail: str = ""


def cause_of(error: BaseException) -> Cause:
    """Name what an exception in training means."""
    if isinstance(error, FullDisk) or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
        return "full disk"
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return "out of memory"
    if isinstance(error, RuntimeError) and any(text in str(error) for text in NO_MEMORY):
        return "out of memory"
    return "exception"


def next_pack(faults: Iterable[Fault], *, session: str, epoch: int, pack: int) -> int:
    """How many runs to train together after what happened so far; 0 gives the run up.

    The first loss may have been anybody's fault: the same pack is tried again. From the second on packs are
    halved, until the run that takes its workers with it stands alone. Only losses of this session count (a
    user may kill as many sessions as he likes), and only those since the checkpoint of the given epoch.
    """
    lost = [f for f in faults if f.cause in LOSSES and f.session == session and f.epoch >= epoch]
    alone = [f.cause for f in lost if f.pack == 1]
    if len(alone) >= MOST_LOSSES or alone.count("timeout") >= MOST_TIMEOUTS:
        return 0
    return pack if len(lost) < 2 else min(pack, max(1, min(f.pack for f in lost) // 2))


def counted(faults: Iterable[Fault]) -> dict[str, int]:
    """How many faults of each cause, in the order of the causes; those that never happened are left out."""
    counts = Counter(fault.cause for fault in faults)
    return {cause: counts[cause] for cause in CAUSES if counts[cause]}


def to_line(fault: Fault) -> bytes:
    """One line of a file of faults. It begins with a line break, in case the line before was cut off."""
    content = asdict(fault) | {"detail": _shortened(fault.detail)}
    return b"\n" + json.dumps(content).encode() + b"\n"


def _shortened(text: str) -> str:
    """Both ends of a long text: a traceback may have its point at either."""
    half = LONGEST_DETAIL // 2
    return text if len(text) <= LONGEST_DETAIL else f"{text[:half]}\n...\n{text[-half:]}"


def from_lines(data: bytes) -> Iterator[Fault]:
    """The faults that a file tells of; what is cut off or damaged tells nothing."""
    for line in data.split(b"\n"):
        try:
            fault = Fault(**json.loads(line))
        except (ValueError, TypeError, RecursionError):
            continue
        numbers = (fault.pack, fault.epoch)
        texts = (fault.session, fault.detail)
        if (
            fault.cause in CAUSES
            and all(type(n) is int for n in numbers)
            and all(type(t) is str for t in texts)
        ):
            yield fault
