"""The index of a store: every record except its history, so that a large store opens at once.

It is derived and never the truth: it can be deleted at any time, and one that is damaged or of another
version is ignored. An entry is valid as long as its record has the size and modification time that it was
read with; anything else is read again and its checksum verified. Records that could not be read are not in
the index, so they are tried every time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from initmem.errors import Damaged, StoreError
from initmem.store.encoding import LARGEST_RECORD, join, parse_history, split, with_history
from initmem.store.files import read_bounded, reason
from initmem.store.paths import RUN_ID, Paths
from initmem.store.record import History, RunRecord

VERSION = 1
LARGEST_INDEX = 256 << 20  # bytes, some hundred thousand records: a larger one is neither written nor read

Stamp = tuple[int, int]  # size in bytes, modification time in nanoseconds


class Entry(NamedTuple):
    """What is known of one record file."""

    stamp: Stamp
    sha256: str
    head: Mapping[str, Any]
    record: RunRecord


@dataclass(frozen=True, slots=True)
class Found:
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

    def refresh(self, *, verify: bool = False) -> Found:
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
        return Found(records, damaged, unreadable, changed)

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
