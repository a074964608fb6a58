"""Runs in training, for those who watch: their epochs so far, and whether their worker is alive."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from initmem.store.files import append, read_bounded, writes
from initmem.store.paths import Paths
from initmem.study import Run

if TYPE_CHECKING:
    from initmem.store.claims import Claim

LARGEST_HISTORY = 256 << 20  # bytes


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
