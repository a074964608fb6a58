"""The record files of a store: committed once, indexed, never changed."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from initmem.errors import Damaged, StoreError
from initmem.store.encoding import LARGEST_RECORD, TooLarge, decode, encode, split
from initmem.store.files import (
    move_aside,
    open_regular,
    read_bounded,
    reason,
    sweep,
    write_atomic,
    write_once,
    writes,
)
from initmem.store.index import LARGEST_INDEX, Found, Index
from initmem.store.paths import Paths
from initmem.store.record import RunRecord, failed, finite
from initmem.study import Run


class Records:
    """The records of a store. One appears whole or not at all, and never changes once it is there."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self._index = Index(paths)

    def has(self, run: Run) -> bool:
        """Whether a run is done."""
        path = self.paths.record(run.id)
        try:
            path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise StoreError(f"{path}: {reason(error)}") from None
        return True

    def read(self, run_id: str) -> RunRecord:
        """One record; a damaged one is an error."""
        path = self.paths.record(run_id)
        try:
            record = decode(read_bounded(path, LARGEST_RECORD))
        except StoreError as error:
            raise type(error)(f"{path}: {error}") from None
        except OSError as error:
            raise StoreError(f"{path}: {reason(error)}") from None
        if record.id != run_id:
            raise StoreError(f"{path}: holds run {record.id}")
        return record

    def scan(self, *, verify: bool = False) -> Found:
        """All records. A file that has not changed since it was indexed is read only to `verify` it."""
        found = self._index.refresh(verify=verify)
        if found.changed and len(index := self._index.encode()) <= LARGEST_INDEX:
            with contextlib.suppress(OSError):  # a store that cannot be written can still be read
                write_atomic(self.paths.index, index, self.paths.mode)
        return found

    @writes
    def commit(self, records: Sequence[RunRecord]) -> list[RunRecord]:
        """Make the records of a pack visible: all of them now or, after a crash, at the next recovery.

        Returns what was written: a run with values that are not finite is recorded as diverged, one whose
        record would be too large to be read again as failed.
        """
        written = [_storable(record) for record in records]
        pending = self.paths.pending / f"{uuid.uuid4().hex}.json"
        if len(written) > 1:
            write_atomic(pending, b"".join(data for _, data in written), self.paths.mode)
        for record, data in written:
            self._commit_one(record.id, data)
        pending.unlink(missing_ok=True)
        return [record for record, _ in written]

    def _commit_one(self, run_id: str, data: bytes) -> None:
        folder = self.paths.open_run(run_id)
        write_once(self.paths.record(run_id), data, self.paths.mode)
        clear(folder)

    @writes
    def finish_commits(self) -> list[str]:
        """Complete the packs whose records were decided, but not all visible, when a worker died.

        Returns what was moved aside because it is damaged, and why.
        """
        moved = []
        for pending in self.paths.pending.glob("*.json"):
            try:
                damaged = self._finish(pending)
            except FileNotFoundError:
                continue  # its own worker finished it
            if damaged:
                target = move_aside(pending, self.paths, "pending")
                moved.append(f"{pending}: {damaged}; moved to {target}")
            else:
                pending.unlink(missing_ok=True)
        return moved

    def _finish(self, pending: Path) -> str:
        """Commit the records of one file, one at a time; what is damaged in it, if anything."""
        damaged = ""
        with open_regular(pending) as stream:
            while line := stream.readline(LARGEST_RECORD + 1):
                try:
                    self._commit_one(decode(line).id, line)
                except Damaged as error:
                    damaged = str(error)
        return damaged

    @writes
    def set_aside(self, unwanted: Callable[[RunRecord], bool]) -> int:
        """Move records out of the way, so that their runs are trained again; how many."""
        found = [run_id for run_id, record in self.scan().records.items() if unwanted(record)]
        for run_id in found:
            move_aside(self.paths.record(run_id), self.paths, run_id)
        return len(found)

    @writes
    def move_damaged_aside(self) -> list[str]:
        """Move records that fail their checksum out of the way, and say which and why.

        A record that cannot be read for any other reason may be intact. Then nothing is moved.
        """
        found = self.scan()
        if unreadable := list(found.unreadable.values()):
            more = f" (and {len(unreadable) - 1} more)" if len(unreadable) > 1 else ""
            raise StoreError(f"{unreadable[0]}{more}; it may be intact, so nothing was moved or trained")
        moved = []
        for run_id, problem in found.damaged.items():
            if not self._is_damaged(run_id):
                continue  # another process has moved it meanwhile, and may have trained its run again
            target = move_aside(self.paths.record(run_id), self.paths, run_id)
            moved.append(f"{problem}; moved to {target}")
        return moved

    def _is_damaged(self, run_id: str) -> bool:
        try:
            split(read_bounded(self.paths.record(run_id), LARGEST_RECORD))
        except Damaged:
            return True
        except (StoreError, FileNotFoundError):
            return False
        return False

    @writes
    def clear_all(self) -> None:
        """Remove what crashed processes left beside records."""
        for path in self.paths.runs.glob("[0-9a-f]" * 16 + "/record.json"):
            clear(path.parent)


def _storable(record: RunRecord) -> tuple[RunRecord, bytes]:
    """A record that can be written and read again, and its bytes."""
    record = finite(record)
    try:
        return record, encode(record)
    except TooLarge as error:
        reason = f"{error}: record fewer epochs, fewer metrics or shorter texts"
    for provenance in (record.provenance, {}):  # what is too large may be in there
        record = failed(record.run, reason, provenance)
        with contextlib.suppress(TooLarge):
            return record, encode(record)
    raise StoreError(f"run {record.id}: {reason}")


def clear(folder: Path) -> None:
    """Remove whatever is beside a record, except what a living process is about to rename."""
    for path in folder.iterdir():
        if path.name != "record.json" and path.suffix != ".tmp" and not path.is_dir():
            path.unlink(missing_ok=True)
    sweep(folder)
