"""The record files of a store, committed once and never changed.

A `Records` keeps the head of every record that it has read. A file is read again, and its checksum verified,
when its size or modification time has changed; a history is read when it is first used.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from initmem.errors import Damaged, StoreError
from initmem.files import (
    explained,
    is_there,
    jsons,
    names,
    readable,
    reason,
    refuse_link,
    retried,
    sweep,
    write_atomic,
    write_once,
)
from initmem.record import Arrays, RunRecord
from initmem.store.encoding import Encoded, decode, encode, join, parse_arrays, parse_history, split
from initmem.store.paths import Paths
from initmem.study import Run

Stamp = tuple[int, int]  # size in bytes, modification time in nanoseconds


@dataclass(slots=True)
class Scan:
    """All records of a store, by run id in a fixed order."""

    entries: dict[str, tuple[Stamp, RunRecord]] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)  # they fail their checksum
    unreadable: dict[str, str] = field(default_factory=dict)  # may be intact: a newer version, a disk error

    def records(self) -> list[RunRecord]:
        """All records that can be read."""
        return [record for _, record in self.entries.values()]

    def problems(self) -> list[str]:
        """What is wrong with each record that cannot be read."""
        remedy = "initmem run moves it aside and trains its run again"
        return [*(f"{line}; {remedy}" for line in self.damaged.values()), *self.unreadable.values()]


class Records:
    """The records of a store. One appears whole or not at all, and never changes once it is there."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self._entries: dict[str, tuple[Stamp, RunRecord]] = {}  # as they were last read

    # -- reading ------------------------------------------------------------------------------------------

    def has(self, run: Run) -> bool:
        """Whether a run is done."""
        return is_there(self.paths.record(run.id))

    def read(self, run_id: str) -> RunRecord:
        """One record; a damaged one is an error."""
        path = self.paths.record(run_id)
        try:
            with readable(path):
                record = decode(retried(path.read_bytes))
                if record.id != run_id:
                    raise StoreError(f"holds run {record.id}")
                return record
        except FileNotFoundError as error:
            raise StoreError(f"{path}: {reason(error)}") from None

    def scan(self, *, verify: bool = False) -> Scan:
        """All records. A file that has not changed since it was last read is read only to `verify` it."""
        scan = Scan()
        for run_id in self.paths.run_ids():
            path = self.paths.record(run_id)
            try:
                with readable(path):
                    status = retried(path.stat)  # before it is read: a change in between is seen next time
                    stamp, entry = (status.st_size, status.st_mtime_ns), self._entries.get(run_id)
                    if verify or entry is None or entry[0] != stamp:
                        entry = (stamp, self._read_head(run_id, path))
                scan.entries[run_id] = entry
            except FileNotFoundError:
                continue  # not done yet, or moved aside by another process a moment ago
            except Damaged as error:
                scan.damaged[run_id] = str(error)
            except StoreError as error:
                scan.unreadable[run_id] = str(error)
        self._entries = scan.entries
        return scan

    def _read_head(self, run_id: str, path: Path) -> RunRecord:
        """A record whose history and arrays are read when they are first used."""
        encoded = split(retried(path.read_bytes))
        read = partial(self._read_part, run_id, encoded.sha256)
        record = join(encoded.head, partial(read, parse_history), partial(read, parse_arrays))
        if record.id != run_id:
            raise StoreError(f"holds run {record.id}")
        return record

    def _read_part(self, run_id: str, sha256: str, parse: Callable[[Encoded], Arrays]) -> Arrays:
        """The history, or the arrays, of the very record whose head was read."""
        path = self.paths.record(run_id)
        try:
            with readable(path):
                encoded = split(retried(path.read_bytes))
                if encoded.sha256 != sha256:
                    raise StoreError("changed since the store was opened")
                return parse(encoded)
        except FileNotFoundError as error:
            raise StoreError(f"{path}: {reason(error)}") from None

    # -- writing ------------------------------------------------------------------------------------------

    def commit(self, records: Sequence[RunRecord]) -> None:
        """Make the records of a pack visible: all of them now or, after a crash, at the next recovery."""
        lines = [encode(record) for record in records]
        pending = self.paths.pending / f"{uuid.uuid4().hex}.json"
        with explained(self.paths.root):
            if len(records) > 1:
                write_atomic(pending, b"".join(lines))
            for record, line in zip(records, lines, strict=True):
                self._commit_one(record.id, line)
            pending.unlink(missing_ok=True)

    def _commit_one(self, run_id: str, data: bytes) -> None:
        folder = self.paths.make_run(run_id)
        write_once(self.paths.record(run_id), data)
        _clear(folder)

    def finish_commits(self) -> list[str]:
        """Complete the packs whose records were decided, but not all visible, when a worker died.

        Returns what was moved aside because it is damaged, and why.
        """
        moved = []
        with explained(self.paths.root):
            for pending in jsons(self.paths.pending):
                damage = ""
                try:
                    lines = retried(pending.read_bytes).splitlines(keepends=True)
                except FileNotFoundError:
                    continue  # its own worker finished it
                for line in lines:
                    try:
                        self._commit_one(decode(line).id, line)
                    except Damaged as error:
                        damage = str(error)
                if damage:
                    target = self.paths.move_aside(pending, "pending")
                    moved.append(f"{pending}: {damage}; moved to {target}")
                pending.unlink(missing_ok=True)
        return moved

    def set_aside(self, unwanted: Callable[[RunRecord], bool]) -> int:
        """Move records out of the way, so that their runs are trained again; how many."""
        ids = [record.id for record in self.scan().records() if unwanted(record)]
        with explained(self.paths.root):
            for run_id in ids:
                self.paths.move_aside(self.paths.record(run_id), run_id)
        return len(ids)

    def move_damaged_aside(self) -> list[str]:
        """Move records that fail their checksum out of the way, and say which and why.

        A record that cannot be read for any other reason may be intact. Then nothing is moved.
        """
        scan = self.scan()
        if unreadable := list(scan.unreadable.values()):
            more = f" (and {len(unreadable) - 1} more)" if len(unreadable) > 1 else ""
            raise StoreError(f"{unreadable[0]}{more}; it may be intact, so nothing was moved or trained")
        moved = []
        with explained(self.paths.root):
            for run_id, problem in scan.damaged.items():
                if self._is_damaged(run_id):  # still: another process may have trained its run again
                    target = self.paths.move_aside(self.paths.record(run_id), run_id)
                    moved.append(f"{problem}; moved to {target}")
        return moved

    def _is_damaged(self, run_id: str) -> bool:
        try:
            split(retried(self.paths.record(run_id).read_bytes))
        except Damaged:
            return True
        except (StoreError, FileNotFoundError):
            return False
        return False

    def clear_all(self) -> None:
        """Remove what crashed processes left next to records."""
        with explained(self.paths.root):
            for run_id in self.paths.run_ids():
                if is_there(self.paths.record(run_id)):
                    _clear(self.paths.run(run_id))


def _clear(folder: Path) -> None:
    """Remove whatever is next to a record, except what a living process is about to rename."""
    refuse_link(folder)
    for path in map(folder.joinpath, names(folder)):
        if path.name != "record.json" and path.suffix != ".tmp" and not retried(path.is_dir):
            path.unlink(missing_ok=True)
    sweep(folder)
