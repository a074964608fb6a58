"""The store: a directory that holds one sub-directory per run. The only writer of run files."""

from __future__ import annotations

import contextlib
import json
import math
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from initmem.errors import StoreError
from initmem.store.checkpoints import Checkpoints
from initmem.store.claims import Claims, Flight, Heartbeats, LiveHistory, look
from initmem.store.faults import FaultLog
from initmem.store.files import check_file_system, explained, read_bounded, sweep, write_atomic, writes
from initmem.store.paths import Paths
from initmem.store.record import RunRecord
from initmem.store.records import Records
from initmem.store.studies import Studies
from initmem.study import Run, Study

FORMAT = 1


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
        found = self._records.scan()
        return list(found.records.values()), found.problems()

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
        from initmem.store.notebook import results_html

        return results_html(self)

    def in_flight(self) -> list[str]:
        """Ids of the runs that are claimed now."""
        return self.claims.ids()

    def flight(self, run_id: str) -> Flight:
        """How far a claimed run is, and how long its worker has given no sign of life.

        Clocks of other machines are not trusted: silence counts from the first look of this `Store`, unless
        the worker was on this machine and has ended.
        """
        seen = None
        with contextlib.suppress(OSError, StoreError):
            seen = look(self.paths.claim(run_id))
        claim = seen.claim if seen else None
        signs = (seen.beat if seen else None, self.live.beat(run_id))
        gone = claim is not None and claim.process_is_gone()
        silence = math.inf if gone else self._heartbeats.silence(run_id, signs)
        return Flight(claim, silence, self.live.rows(run_id), self.faults.attempt(run_id))


def _check_format(paths: Paths) -> None:
    try:
        found = json.loads(read_bounded(paths.format, 4096))["format"]
    except FileNotFoundError:
        raise StoreError(f"{paths.root}: no store here (initmem run makes one)") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError, StoreError) as error:
        raise StoreError(
            f"{paths.root}: not a readable store (store.json: {error}); if it is one, delete store.json, "
            "and initmem run writes it again"
        ) from None
    if found != FORMAT:
        raise StoreError(f"{paths.root}: store of format {found!r} (allowed: {FORMAT})")
