"""The store: a directory that holds one sub-directory per run. The only writer of run files.

A `Store` keeps the head of every record that it has read. A file is read again, and its checksum verified,
when its size or modification time has changed; a history is read when it is first used.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from initmem import files
from initmem.errors import Damaged, InitmemError, StoreError, first_of
from initmem.files import explained, readable, retried
from initmem.record import Arrays, RunRecord
from initmem.store import encoding
from initmem.store.claims import EXPIRY, Checkpoints, Claims, LiveHistory, LiveRun
from initmem.store.faults import FaultLog
from initmem.store.paths import Paths
from initmem.study import Run, Study

T = TypeVar("T")
FORMAT = 1
Stamp = tuple[int, int]  # size in bytes, modification time in nanoseconds


class Store:
    """A directory of runs. Open an existing one, or make one with `Store.create`.

    Args:
        path: the directory.
        session: name of the session that writes, for claims; a new one unless given.

    The contract, which `docs/store.md` explains and the tests hold:

    - A record appears whole or not at all, and never changes once it is there.
    - A run is claimed by at most one living worker. A claim ends with its process (same machine) or when its
      heartbeat stops for `EXPIRY` seconds of the observer's own clock: a jump of the system time ends none.
    - The records of a pack become visible together, or the next process completes them: no run is trained
      again in another pack because a crash fell between two commits.
    - The files are the truth: everything derived from them can be deleted.
    - Only what fails its checksum is moved aside. What cannot be read for another reason stops everything.
    - What the disk refuses is a `StoreError` in one line; a full disk, `FullDisk`, loses nothing committed.

    Reading needs the methods below; training also uses the parts: `claims`, `checkpoints`, `faults`, `live`.
    """

    def __init__(self, path: str | Path, *, session: str | None = None) -> None:
        self.path = Path(path).absolute()  # user code may change the working directory
        self.session = session or uuid.uuid4().hex  # shared by the processes of one call of an engine
        self.paths = Paths(self.path)
        for folder in (self.paths.runs, self.paths.studies, self.paths.pending, self.paths.aside):
            files.refuse_link(folder)
        _check_format(self.paths)
        self._entries: dict[str, tuple[Stamp, RunRecord]] = {}  # the records as they were last read
        self.live, self.checkpoints = LiveHistory(self.paths), Checkpoints(self.paths)
        self.faults = FaultLog(self.paths, session=self.session)
        self.claims = Claims(self.paths, self.faults, self._finish_commits, session=self.session)

    @classmethod
    def create(cls, path: str | Path, *, session: str | None = None) -> Store:
        """Open the store at a path, making it where there is none; check that it can be written."""
        root = Path(path).absolute()
        paths = Paths(root)
        with explained(root):
            if retried(root.is_file):
                raise StoreError(f"{path}: a file, no store (initmem restore makes a store of an archive)")
            retried(lambda: root.mkdir(parents=True, exist_ok=True))
            for folder in (paths.runs, paths.studies, paths.pending):
                files.make_folder(folder)
            if not files.is_there(paths.format):
                files.write_atomic(paths.format, json.dumps({"format": FORMAT}).encode() + b"\n")
            files.check_file_system(root)
        return cls(root, session=session)

    # -- studies ------------------------------------------------------------------------------------------

    def studies(self) -> list[Study]:
        """The studies that were requested, in the order of their file names."""
        return [_read_study(path) for path in files.jsons(self.paths.studies)]

    def add_study(self, study: Study) -> None:
        """Note a request, in place of the study of the same name and preset."""
        with explained(self.path):
            files.write_atomic(self.paths.study(study.name, study.preset), encoding.encode_study(study))

    # -- reading records ----------------------------------------------------------------------------------

    def has(self, run: Run) -> bool:
        """Whether a run is done."""
        return files.is_there(self.paths.record(run.id))

    def read(self, run_id: str) -> RunRecord:
        """One record; a damaged one is an error."""
        return self._parsed(run_id, lambda data: _of_run(run_id, encoding.decode(data)))

    def records(self) -> list[RunRecord]:
        """All records, in a fixed order. Damaged ones are left out; `survey` names them."""
        return self.survey()[0]

    def survey(self, *, verify: bool = False) -> tuple[list[RunRecord], list[str]]:
        """All records, and what is wrong with each that cannot be read.

        A file that has not changed since this `Store` last read it is read only to `verify` it.
        """
        damaged, unreadable = self._scan(verify=verify)
        remedy = "initmem run moves it aside and trains its run again"
        problems = [*(f"{line}; {remedy}" for line in damaged.values()), *unreadable]
        return [record for _, record in self._entries.values()], problems

    def verify(self) -> list[str]:
        """Check every record against its checksum, changed or not; what is wrong with each bad one."""
        return self.survey(verify=True)[1]

    def _scan(self, *, verify: bool = False) -> tuple[dict[str, str], list[str]]:
        """Read what is new; what is wrong with records by run id that fail their checksum, and with others
        that may be intact: of a newer version, or on a bad disk."""
        entries: dict[str, tuple[Stamp, RunRecord]] = {}
        damaged: dict[str, str] = {}
        unreadable: list[str] = []
        for run_id in self.paths.run_ids():
            path = self.paths.record(run_id)
            try:
                with readable(path):
                    status = retried(path.stat)  # before it is read: a change in between is seen next time
                    stamp, entry = (status.st_size, status.st_mtime_ns), self._entries.get(run_id)
                    if verify or entry is None or entry[0] != stamp:
                        entry = (stamp, self._head(run_id, retried(path.read_bytes)))
                entries[run_id] = entry
            except FileNotFoundError:
                continue  # not done yet, or moved aside by another process a moment ago
            except Damaged as error:
                damaged[run_id] = str(error)
            except StoreError as error:
                unreadable.append(str(error))
        self._entries = entries
        return damaged, unreadable

    def _head(self, run_id: str, data: bytes) -> RunRecord:
        """A record whose history and arrays are read when they are first used."""
        encoded = encoding.split(data)
        return _of_run(run_id, encoding.join(encoded.head, partial(self._part, run_id, encoded.sha256)))

    def _part(self, run_id: str, sha256: str, parse: Callable[[encoding.Encoded], Arrays]) -> Arrays:
        """The history, or the arrays, of the very record whose head was read."""

        def parse_same(data: bytes) -> Arrays:
            encoded = encoding.split(data)
            if encoded.sha256 != sha256:
                raise StoreError("changed since the store was opened")
            return parse(encoded)

        return self._parsed(run_id, parse_same)

    def _parsed(self, run_id: str, parse: Callable[[bytes], T]) -> T:
        """What the record of a run contains; whatever is wrong with it is one line that names the file."""
        path = self.paths.record(run_id)
        try:
            with readable(path):
                return parse(retried(path.read_bytes))
        except FileNotFoundError as error:
            raise StoreError(f"{path}: {files.reason(error)}") from None

    # -- writing records ----------------------------------------------------------------------------------

    def commit(self, records: Sequence[RunRecord]) -> None:
        """Make the records of a pack visible: all of them now or, after a crash, at the next `recover`."""
        lines = [encoding.encode(record) for record in records]
        pending = self.paths.pending / f"{uuid.uuid4().hex}.json"
        with explained(self.path):
            if len(records) > 1:
                files.write_atomic(pending, b"".join(lines))
            for record, line in zip(records, lines, strict=True):
                self._commit_one(record.id, line)
            pending.unlink(missing_ok=True)

    def _commit_one(self, run_id: str, data: bytes) -> None:
        folder = self.paths.make_run(run_id)
        files.write_atomic(self.paths.record(run_id), data, once=True)
        _clear(folder)

    def _finish_commits(self) -> list[str]:
        """Complete the packs whose records were decided, but not all visible, when a worker died.

        Returns what was moved aside because it is damaged, and why.
        """
        moved = []
        with explained(self.path):
            for pending in files.jsons(self.paths.pending):
                damage = ""
                try:
                    lines = retried(pending.read_bytes).splitlines(keepends=True)
                except FileNotFoundError:
                    continue  # its own worker finished it
                for line in lines:
                    try:
                        self._commit_one(encoding.decode(line).id, line)
                    except Damaged as error:
                        damage = str(error)
                if damage:
                    target = self.paths.move_aside(pending, "pending")
                    moved.append(f"{pending}: {damage}; moved to {target}")
                pending.unlink(missing_ok=True)
        return moved

    def set_aside(self, unwanted: Callable[[RunRecord], bool]) -> int:
        """Move records out of the way, so that their runs are trained again; how many."""
        ids = [record.id for record in self.records() if unwanted(record)]
        with explained(self.path):
            for run_id in ids:
                self.paths.move_aside(self.paths.record(run_id), run_id)
        return len(ids)

    def recover(self) -> list[str]:
        """Finish what a crash interrupted; move aside what fails its checksum, and say what and why.

        A file that cannot be read for another reason (a newer version, an error of the disk, a file of
        another user) may be intact: then this is a `StoreError`, and nothing is moved.
        """
        damaged, unreadable = self._scan()
        if unreadable:
            raise StoreError(f"{first_of(unreadable, 1)}; it may be intact, so nothing was moved or trained")
        moved = []
        with explained(self.path):
            for run_id, problem in damaged.items():
                path = self.paths.record(run_id)
                if _is_damaged(path):  # still: another process may have trained its run again
                    moved.append(f"{problem}; moved to {self.paths.move_aside(path, run_id)}")
            for path in files.jsons(self.paths.studies):
                try:
                    _read_study(path)
                except Damaged as error:
                    moved.append(f"{error}; moved to {self.paths.move_aside(path, f'study-{path.stem}')}")
            moved += self._finish_commits()
            for folder in (self.path, self.paths.studies, self.paths.pending):
                files.sweep(folder)
            for run_id in self.paths.run_ids():
                if files.is_there(self.paths.record(run_id)):
                    _clear(self.paths.run(run_id))
        return moved

    # -- runs in training ---------------------------------------------------------------------------------

    def in_flight(self) -> list[str]:
        """Ids of the runs that are claimed now, by workers alive or dead."""
        return [run_id for run_id in self.paths.run_ids() if files.is_there(self.paths.claim(run_id))]

    def training(self) -> list[str]:
        """Ids of the runs that are being trained now: claimed by a worker whose heartbeat goes on."""
        return [run_id for run_id in self.in_flight() if self.claims.watched(run_id)[1] < EXPIRY]

    def live_run(self, run_id: str) -> LiveRun:
        """How far a claimed run is, and how old the last heartbeat of its worker is."""
        return LiveRun(*self.claims.watched(run_id), self.live.rows(run_id), self.faults.attempt(run_id))

    def _repr_html_(self) -> str:
        from initmem.plots.columns import results_table
        from initmem.plots.tables import html
        from initmem.store.results import store_status

        return html(results_table(store_status(self)))


def _of_run(run_id: str, record: RunRecord) -> RunRecord:
    """The record, if it is in the folder of its own run."""
    if record.id != run_id:
        raise StoreError(f"holds run {record.id}")
    return record


def _is_damaged(record: Path) -> bool:
    """Whether the file of a record fails its checksum; one that is gone does not."""
    try:
        encoding.split(retried(record.read_bytes))
    except (StoreError, FileNotFoundError) as error:
        return isinstance(error, Damaged)
    return False


def _clear(folder: Path) -> None:
    """Remove whatever is next to a record, except what a living process is about to rename."""
    files.refuse_link(folder)
    for path in map(folder.joinpath, files.names(folder)):
        if path.name != "record.json" and path.suffix != ".tmp" and not retried(path.is_dir):
            path.unlink(missing_ok=True)
    files.sweep(folder)


def _check_format(paths: Paths) -> None:
    try:
        with readable(paths.format):
            version = json.loads(retried(paths.format.read_bytes))["format"]
    except FileNotFoundError:
        raise StoreError(f"{paths.root}: no store here (initmem run makes one)") from None
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{paths.root}: not a readable store (store.json: {error}); if it is one, delete store.json, "
            "and initmem run writes it again"
        ) from None
    if version != FORMAT:
        raise StoreError(f"{paths.root}: store of format {version!r} (allowed: {FORMAT})")


def _read_study(path: Path) -> Study:
    try:
        return encoding.decode_study(retried(path.read_bytes))
    except Damaged as error:
        raise Damaged(f"{path}: damaged study ({error})") from None
    except (OSError, InitmemError) as error:
        raise StoreError(f"{path}: unreadable study ({files.reason(error)})") from None
