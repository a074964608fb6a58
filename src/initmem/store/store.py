"""The store: a directory that holds one sub-directory per run. The only writer of run files."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from initmem.errors import ConfigError, Damaged, InitmemError, StoreError
from initmem.files import check_file_system, explained, read_bounded, reason, sweep, write_atomic
from initmem.record import RunRecord
from initmem.store.checkpoints import Checkpoints
from initmem.store.claims import EXPIRY, Claim, Claims, Flight, Heartbeats, LiveHistory, look
from initmem.store.faults import FaultLog
from initmem.store.paths import Paths, move_aside, writes
from initmem.store.records import Records
from initmem.study import Run, Study

FORMAT = 1
LARGEST_STUDY = 64 << 20  # bytes


class Store:
    """A directory of runs. Open an existing one, or make one with `Store.create`.

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
        _check_format(self.paths)
        self._records, self._studies = Records(self.paths), Studies(self.paths)
        self.live, self.checkpoints = LiveHistory(self.paths), Checkpoints(self.paths)
        self.faults = FaultLog(self.paths, session=self.session)
        self.claims = Claims(self.paths, self._records, self.faults, session=self.session)
        self._heartbeats = Heartbeats()

    @classmethod
    def create(cls, path: str | Path, *, session: str | None = None) -> Store:
        """Open the store at a path, making it where there is none; check that it can be written."""
        root = Path(path).absolute()
        if root.is_file():
            raise StoreError(f"{path}: a file, and no store (initmem restore makes a store of an archive)")
        paths = Paths(root)
        with explained(root):
            root.mkdir(parents=True, exist_ok=True)
            for folder in (paths.runs, paths.studies, paths.pending):
                paths.make_folder(folder)
            if not paths.format.exists():
                write_atomic(paths.format, json.dumps({"format": FORMAT}).encode() + b"\n", paths.mode)
            check_file_system(root)
        return cls(root, session=session)

    def studies(self) -> list[Study]:
        """What was asked of this store."""
        return self._studies.all()

    def add_study(self, study: Study) -> None:
        """Note what was asked for."""
        self._studies.add(study)

    def has(self, run: Run) -> bool:
        """Whether a run is done."""
        return self._records.has(run)

    def read(self, run_id: str) -> RunRecord:
        """One record; a damaged one is an error."""
        return self._records.read(run_id)

    def records(self) -> list[RunRecord]:
        """All records, in a fixed order. Damaged ones are left out; `survey` names them."""
        return self.survey()[0]

    def survey(self) -> tuple[list[RunRecord], list[str]]:
        """All records, and what is wrong with each that cannot be read.

        A file that has not changed since it was indexed is not read again; `verify` reads them all.
        """
        scanned = self._records.scan()
        return list(scanned.records.values()), scanned.problems()

    def verify(self) -> list[str]:
        """Check every record against its checksum, changed or not; what is wrong with each bad one."""
        return self._records.scan(verify=True).problems()

    def commit(self, records: Sequence[RunRecord]) -> list[RunRecord]:
        """Make the records of a pack visible: all of them now or, after a crash, at the next `recover`.

        Returns what was written: a run with values that are not finite is recorded as diverged, one whose
        record would be too large to be read again as failed.
        """
        return self._records.commit(records)

    def set_aside(self, unwanted: Callable[[RunRecord], bool]) -> int:
        """Move records out of the way, so that their runs are trained again; how many."""
        return self._records.set_aside(unwanted)

    @writes
    def recover(self) -> list[str]:
        """Finish what a crash interrupted; move aside what fails its checksum, and say what and why.

        A file that cannot be read for another reason (a newer version, an error of the disk, a file of
        another user) may be intact: then this is a `StoreError`, and nothing is moved.
        """
        moved = [*self._records.move_damaged_aside(), *self._studies.move_damaged_aside()]
        moved += self._records.finish_commits()
        for folder in (self.path, self.paths.studies, self.paths.pending):
            sweep(folder)
        self._records.clear_all()
        return moved

    def _repr_html_(self) -> str:
        from initmem.plots.columns import results_table
        from initmem.plots.table_text import html
        from initmem.store.results import store_status

        return html(results_table(store_status(self)))

    def in_flight(self) -> list[str]:
        """Ids of the runs that are claimed now, by workers alive or dead."""
        return self.claims.ids()

    def training(self) -> list[str]:
        """Ids of the runs that are being trained now: claimed by a worker that shows signs of life."""
        return [run_id for run_id in self.claims.ids() if self._worker(run_id)[1] < EXPIRY]

    def flight(self, run_id: str) -> Flight:
        """How far a claimed run is, and how long its worker has given no sign of life."""
        claim, silence = self._worker(run_id)
        return Flight(claim, silence, self.live.rows(run_id), self.faults.attempt(run_id))

    def _worker(self, run_id: str) -> tuple[Claim | None, float]:
        """Who has claimed a run, and for how many seconds there has been no sign of life.

        Clocks of other machines are not trusted: silence counts from the first look of this `Store`, unless
        the worker was on this machine and has ended.
        """
        seen = None
        with contextlib.suppress(OSError, StoreError):
            seen = look(self.paths.claim(run_id))
        claim = seen.claim if seen else None
        if claim is not None and claim.process_is_gone():
            return claim, math.inf
        signs = (seen.beat if seen else None, self.live.beat(run_id))
        return claim, self._heartbeats.silence(run_id, signs)


def _check_format(paths: Paths) -> None:
    try:
        version = json.loads(read_bounded(paths.format, 4096))["format"]
    except FileNotFoundError:
        raise StoreError(f"{paths.root}: no store here (initmem run makes one)") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError, StoreError) as error:
        raise StoreError(
            f"{paths.root}: not a readable store (store.json: {error}); if it is one, delete store.json, "
            "and initmem run writes it again"
        ) from None
    if version != FORMAT:
        raise StoreError(f"{paths.root}: store of format {version!r} (allowed: {FORMAT})")


class Studies:
    """The study files of a store."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths

    @writes
    def add(self, study: Study) -> None:
        """Note what was asked for, in place of the study of the same name and effort."""
        self._rename_old_files()
        write_atomic(self._file(study), encode_study(study), self.paths.mode)

    def all(self) -> list[Study]:
        """What was asked for, in the order of the file names."""
        return [self._read(path) for path in self._files()]

    @writes
    def move_damaged_aside(self) -> list[str]:
        """Move studies that fail their checksum out of the way, and say which and why."""
        moved = []
        for path in self._files():
            try:
                self._read(path)
            except Damaged as error:
                target = move_aside(path, self.paths, f"study-{path.stem}")
                moved.append(f"{error}; moved to {target}")
        return moved

    def _rename_old_files(self) -> None:
        """Older versions gave studies of different names, as in "a b" and "a_b", the same file."""
        for path in self._files():
            with contextlib.suppress(StoreError, FileNotFoundError):
                proper = self._file(self._read(path))
                if proper.exists() and proper != path:
                    move_aside(path, self.paths, f"study-{path.stem}")
                elif proper != path:
                    path.replace(proper)

    def _file(self, study: Study) -> Path:
        return self.paths.study(study.name, study.effort)

    def _files(self) -> list[Path]:
        return sorted(self.paths.studies.glob("*.json"))

    def _read(self, path: Path) -> Study:
        try:
            return decode_study(read_bounded(path, LARGEST_STUDY))
        except Damaged as error:
            raise Damaged(f"{path}: damaged study ({error})") from None
        except (OSError, InitmemError) as error:
            raise StoreError(f"{path}: unreadable study ({reason(error)})") from None


def encode_study(study: Study) -> bytes:
    """A study as a file of a store."""
    content = study.to_json()
    return json.dumps({"sha256": _digest(content)} | content, indent=1).encode() + b"\n"


def decode_study(data: bytes) -> Study:
    """Read a study file back; anything that is not exactly what was written is an error."""
    try:
        content = json.loads(data)
        said = content.pop("sha256", None)
        fits = said == _digest(content)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"{type(error).__name__}: {error}") from None
    if said is not None and not fits:
        raise Damaged("checksum does not match")
    try:
        return Study.from_json(content)
    except ConfigError as error:
        # Only the first stores were written without a checksum: no newer version writes such a file.
        raise (StoreError if fits else Damaged)(str(error)) from None


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
