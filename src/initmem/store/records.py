"""The record files of a store, committed once and never changed, and their index.

The index holds every record except its history, so that a large store opens at once. It is derived and never
the truth: it can be deleted at any time, and one that is damaged or of another version is ignored. An entry
is valid as long as its record has the size and modification time that it was read with; anything else is read
again and its checksum verified. Records that could not be read are not in the index, so they are tried every
time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from initmem.errors import Damaged, StoreError
from initmem.files import open_regular, read_bounded, reason, sweep, write_atomic, write_once
from initmem.record import History, RunRecord, failed, finite
from initmem.store.encoding import (
    LARGEST_RECORD,
    TooLarge,
    decode,
    encode,
    join,
    parse_history,
    split,
    with_history,
)
from initmem.store.paths import RUN_ID, Paths, move_aside, writes
from initmem.study import Run

VERSION = 1
LARGEST_INDEX = 256 << 20  # bytes, some hundred thousand records: a larger one is neither written nor read

Stamp = tuple[int, int]  # size in bytes, modification time in nanoseconds


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

    def scan(self, *, verify: bool = False) -> Scan:
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


class Entry(NamedTuple):
    """What is known of one record file."""

    stamp: Stamp
    sha256: str
    head: Mapping[str, Any]
    record: RunRecord


@dataclass(frozen=True, slots=True)
class Scan:
    """All records of a store, by run id in a fixed order."""

    records: dict[str, RunRecord]
    damaged: dict[str, str]  # those that fail their checksum, and what is wrong with each
    unreadable: dict[str, str]  # those that may be intact: of a newer version, or refused by the disk
    changed: bool  # whether the index has to be written again

    def problems(self) -> list[str]:
        """What is wrong with each record that cannot be read."""
        again = "initmem run moves it aside and trains its run again"
        return [*(f"{line}; {again}" for line in self.damaged.values()), *self.unreadable.values()]


class Index:
    """The entries of all readable records of a store."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self._entries: dict[str, Entry] | None = None  # None: not read yet

    def refresh(self, *, verify: bool = False) -> Scan:
        """Look at every record file; read those that are new or changed, or all of them to `verify`."""
        if verify:
            self._entries = {}
        known = self._read() if self._entries is None else self._entries
        entries: dict[str, Entry] = {}
        damaged: dict[str, str] = {}
        unreadable: dict[str, str] = {}
        for run_id in self._run_ids():
            try:
                stamp, entry = self._stamp(run_id), known.get(run_id)
                entries[run_id] = entry if entry and entry.stamp == stamp else self._enter(run_id, stamp)
            except (FileNotFoundError, NotADirectoryError):
                continue  # not done yet, or moved aside by another process a moment ago
            except Damaged as error:
                damaged[run_id] = f"{self.paths.record(run_id)}: {error}"
            except (StoreError, OSError) as error:
                unreadable[run_id] = f"{self.paths.record(run_id)}: {reason(error)}"
        changed = verify or entries != known
        self._entries = entries
        records = {run_id: entry.record for run_id, entry in entries.items()}
        return Scan(records, damaged, unreadable, changed)

    def encode(self) -> bytes:
        """The content of the index file: a line with version and digest, then the entries."""
        entries = {
            run_id: [entry.stamp, entry.sha256, entry.head] for run_id, entry in (self._entries or {}).items()
        }
        body = json.dumps(entries, separators=(",", ":")).encode()
        return _first_line(body) + body

    def _read(self) -> dict[str, Entry]:
        try:
            first, _, body = read_bounded(self.paths.index, LARGEST_INDEX).partition(b"\n")
            if first + b"\n" != _first_line(body):
                return {}
            content = json.loads(body)
            return {
                run_id: self._entry(run_id, (size, time), sha256, head)
                for run_id, ((size, time), sha256, head) in content.items()
            }
        except (OSError, ValueError, TypeError, AttributeError, RecursionError, StoreError):
            return {}

    def _run_ids(self) -> list[str]:
        try:
            names = [folder.name for folder in self.paths.runs.iterdir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreError(f"{self.paths.runs}: cannot be read ({reason(error)})") from None
        return sorted(filter(RUN_ID.fullmatch, names))

    def _stamp(self, run_id: str) -> Stamp:
        found = self.paths.record(run_id).stat()
        return found.st_size, found.st_mtime_ns

    def _enter(self, run_id: str, stamp: Stamp) -> Entry:
        """Read a record; its stamp was taken before, so that a change in between is seen next time."""
        sha256, head, _ = split(read_bounded(self.paths.record(run_id), LARGEST_RECORD))
        entry = self._entry(run_id, stamp, sha256, head)
        if not entry.record.id == run_id == head.get("id"):
            raise StoreError(f"holds run {entry.record.id}, under the id {head.get('id')!r}")
        return entry

    def _entry(self, run_id: str, stamp: Stamp, sha256: str, head: Mapping[str, Any]) -> Entry:
        record = with_history(join(head), partial(self._read_history, run_id, sha256))
        return Entry(stamp, sha256, head, record)

    def _read_history(self, run_id: str, sha256: str) -> History:
        """The history of the very record that was indexed."""
        file = self.paths.record(run_id)
        try:
            encoded = split(read_bounded(file, LARGEST_RECORD))
            if encoded.sha256 != sha256:
                raise StoreError("changed since the store was opened")
            return parse_history(encoded.history, encoded.head["summary"]["epochs"])
        except (StoreError, OSError) as error:
            raise StoreError(f"{file}: {reason(error)}") from None


def _first_line(body: bytes) -> bytes:
    return json.dumps({"index": VERSION, "sha256": hashlib.sha256(body).hexdigest()}).encode() + b"\n"
