"""Why runs failed: the cause of each in one line, and how many share it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from initmem.store.record import RunRecord

LONGEST = 300  # characters of a cause


class FailureCause(NamedTuple):
    """A cause, how many runs failed of it, and the first of them."""

    cause: str
    runs: int
    first_id: str
    scale: float
    seed: int

    def __str__(self) -> str:
        return f"{self.runs} with {self.cause} (the first: scale {self.scale:g}, seed {self.seed})"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return self._asdict()


def cause_line(record: RunRecord) -> str:
    """The last line of a traceback that says something: the exception."""
    lines = [line.strip() for line in (record.error or "").splitlines() if line.strip()]
    return (lines[-1] if lines else "no reason given")[:LONGEST]


def same_cause(cause: str) -> str:
    """What causes have in common that differ in numbers alone, such as the epoch or the scale."""
    return re.sub(r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?", "0", cause)


def failure_causes(records: Iterable[RunRecord]) -> list[FailureCause]:
    """The causes of all failed runs, the most frequent first."""
    groups: dict[str, list[RunRecord]] = {}
    for record in records:
        if record.status == "failed":
            groups.setdefault(same_cause(cause_line(record)), []).append(record)
    found = []
    for group in groups.values():
        first = group[0]
        found.append(FailureCause(cause_line(first), len(group), first.id, first.run.scale, first.run.seed))
    return sorted(found, key=lambda cause: -cause.runs)


def failure_lines(records: Iterable[RunRecord], most: int = 3) -> list[str]:
    """One line that counts the failed runs and names the most frequent causes; none where none failed."""
    known = list(records)
    causes = failure_causes(known)
    if not causes:
        return []
    count = sum(cause.runs for cause in causes)
    more = f"; {len(causes) - most} more causes" if len(causes) > most else ""
    return [f"{count} of {len(known)} runs failed: {'; '.join(map(str, causes[:most]))}{more}"]
