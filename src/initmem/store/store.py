"""The store: a directory that holds one sub-directory per run. The only writer of run files."""

from __future__ import annotations

import contextlib
import json
import math
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from initmem.errors import Damaged, InitmemError, StoreError
from initmem.files import (
    check_file_system,
    explained,
    is_there,
    jsons,
    make_folder,
    readable,
    reason,
    refuse_link,
    retried,
    sweep,
    write_atomic,
)
from initmem.record import RunRecord
from initmem.store.claims import (
    EXPIRY,
    Checkpoints,
    Claim,
    Claims,
    HeartbeatAges,
    LiveHistory,
    LiveRun,
    read_claim,
)
from initmem.store.encoding import decode_study, encode_study
from initmem.store.faults import FaultLog
from initmem.store.paths import Paths
from initmem.store.records import Records
from initmem.study import Run, Study

FORMAT = 1


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
            refuse_link(folder)
        _check_format(self.paths)
        self._records = Records(self.paths)
        self.live, self.checkpoints = LiveHistory(self.paths), Checkpoints(self.paths)
        self.faults = FaultLog(self.paths, session=self.session)
        self.claims = Claims(self.paths, self._records, self.faults, session=self.session)
        self._heartbeats = HeartbeatAges()

    @classmethod
    def create(cls, path: str | Path, *, session: str | None = None) -> Store:
        """Open the store at a path, making it where there is none; check that it can be written."""
        root = Path(path).absolute()
        paths = Paths(root)
        with explained(root):
            if retried(root.is_file):
                raise StoreError(
                    f"{path}: a file, and no store (initmem restore makes a store of an archive)"
                )
            retried(lambda: root.mkdir(parents=True, exist_ok=True))
            for folder in (paths.runs, paths.studies, paths.pending):
                make_folder(folder)
            if not is_there(paths.format):
                write_atomic(paths.format, json.dumps({"format": FORMAT}).encode() + b"\n")
            check_file_system(root)
        return cls(root, session=session)

    # -- studies ------------------------------------------------------------------------------------------

    def studies(self) -> list[Study]:
        """The studies that were requested, in the order of their file names."""
        return [_read_study(path) for path in jsons(self.paths.studies)]

    def add_study(self, study: Study) -> None:
        """Note a request, in place of the study of the same name and preset."""
        with explained(self.path):
            write_atomic(self.paths.study(study.name, study.preset), encode_study(study))

    # -- records ------------------------------------------------------------------------------------------

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

        A file that has not changed since this `Store` read it is not read again; `verify` reads them all.
        """
        scan = self._records.scan()
        return scan.records(), scan.problems()

    def verify(self) -> list[str]:
        """Check every record against its checksum, changed or not; what is wrong with each bad one."""
        return self._records.scan(verify=True).problems()

    def commit(self, records: Sequence[RunRecord]) -> None:
        """Make the records of a pack visible: all of them now or, after a crash, at the next `recover`."""
        self._records.commit(records)

    def set_aside(self, unwanted: Callable[[RunRecord], bool]) -> int:
        """Move records out of the way, so that their runs are trained again; how many."""
        return self._records.set_aside(unwanted)

    def recover(self) -> list[str]:
        """Finish what a crash interrupted; move aside what fails its checksum, and say what and why.

        A file that cannot be read for another reason (a newer version, an error of the disk, a file of
        another user) may be intact: then this is a `StoreError`, and nothing is moved.
        """
        moved = self._records.move_damaged_aside()
        with explained(self.path):
            for path in jsons(self.paths.studies):
                try:
                    _read_study(path)
                except Damaged as error:
                    target = self.paths.move_aside(path, f"study-{path.stem}")
                    moved.append(f"{error}; moved to {target}")
            moved += self._records.finish_commits()
            for folder in (self.path, self.paths.studies, self.paths.pending):
                sweep(folder)
        self._records.clear_all()
        return moved

    # -- runs in training ---------------------------------------------------------------------------------

    def in_flight(self) -> list[str]:
        """Ids of the runs that are claimed now, by workers alive or dead."""
        return self.claims.ids()

    def training(self) -> list[str]:
        """Ids of the runs that are being trained now: claimed by a worker whose heartbeat goes on."""
        return [run_id for run_id in self.claims.ids() if self._worker(run_id)[1] < EXPIRY]

    def live_run(self, run_id: str) -> LiveRun:
        """How far a claimed run is, and how old the last heartbeat of its worker is."""
        claim, age = self._worker(run_id)
        return LiveRun(claim, age, self.live.rows(run_id), self.faults.attempt(run_id))

    def _worker(self, run_id: str) -> tuple[Claim | None, float]:
        """Who has claimed a run, and how many seconds ago its last heartbeat or epoch was seen.

        Clocks of other machines are not trusted: the age counts from when this `Store` first saw the
        heartbeat, unless the worker was on this machine and has ended.
        """
        lease = None
        with contextlib.suppress(StoreError):
            lease = read_claim(self.paths.claim(run_id))
        claim = lease.claim if lease else None
        if claim is not None and claim.process_has_ended():
            return claim, math.inf
        signs = (lease.heartbeat if lease else None, self.live.heartbeat(run_id))
        return claim, self._heartbeats.age(run_id, signs)

    def _repr_html_(self) -> str:
        from initmem.plots.columns import results_table
        from initmem.plots.tables import html
        from initmem.store.results import store_status

        return html(results_table(store_status(self)))


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
        return decode_study(retried(path.read_bytes))
    except Damaged as error:
        raise Damaged(f"{path}: damaged study ({error})") from None
    except (OSError, InitmemError) as error:
        raise StoreError(f"{path}: unreadable study ({reason(error)})") from None
