"""One way to read results, whether they are in a store or in an archive."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from initmem.store.archive import Archive
from initmem.store.live import Flight
from initmem.store.record import RunRecord
from initmem.store.store import Store
from initmem.study import Study


class Results(Protocol):
    """What a store and an archive have in common: all that reports, figures and tables need."""

    @property
    def path(self) -> Path:
        """Where they are."""

    def studies(self) -> list[Study]:
        """What was asked for."""

    def survey(self) -> tuple[list[RunRecord], list[str]]:
        """All records, and what is wrong with each that cannot be read."""

    def records(self) -> list[RunRecord]:
        """All records, in a fixed order."""

    def in_flight(self) -> list[str]:
        """Ids of the runs that are claimed now, by workers alive or dead."""

    def training(self) -> list[str]:
        """Ids of the runs that are being trained now, by living workers."""

    def flight(self, run_id: str) -> Flight:
        """How far a run is that is being trained now."""

    def verify(self) -> list[str]:
        """Check every record against its checksum; what is wrong with the damaged ones."""


def open_results(path: str | Path) -> Results:
    """Open a store, or an archive of one."""
    return Archive(path) if Path(path).is_file() else Store(path)
