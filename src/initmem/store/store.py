"""The store: a directory that holds one sub-directory per run. The only writer of run files.

The contract:
- A record appears whole or not at all, and never changes once it is there.
- A run is claimed by at most one living worker. A claim dies with its process (same host) or when its
  heartbeat stops for `EXPIRY` seconds of the observer's own clock: a jump of the system time kills none.
- The records of a pack become visible together, or the next process completes them: a replica is never
  trained again in other company because a crash fell between two commits.
- The files are the truth: whatever else lies beside them can be deleted.
- What cannot be written is a `StoreError` in one line; a full disk, `FullDisk`, loses nothing committed.

    STORE/store.json                 format of the store
    STORE/studies/NAME.EFFORT.json   what was asked for
    STORE/runs/ID/claim.json         while a worker has it
    STORE/runs/ID/history.jsonl      while it trains: one line per epoch, for those who watch
    STORE/runs/ID/checkpoint-EPOCH.safetensors  to continue from
    STORE/runs/ID/faults.jsonl       what went wrong so far: one line per fault
    STORE/runs/ID/hang.txt           where the worker stood when it had to be ended, with a time limit
    STORE/runs/ID/record.json        when it is done
    STORE/pending/*.json             records of a pack between decision and commit
    STORE/aside/                     records moved out of the way: damaged, or failed and tried again
    STORE/index.json                 derived from the records: all but their histories
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import math
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Concatenate, ParamSpec, TypeVar

from initmem.errors import InitmemError, StoreError
from initmem.store import checkpoints, faults
from initmem.store.claims import Claim, Heartbeats, Sight, look, new_claim
from initmem.store.faults import Cause, Fault
from initmem.store.files import explained, read_bounded, sweep, temporary, write_atomic, write_once
from initmem.store.index import RUN_ID, Index
from initmem.store.record import LARGEST_RECORD, RunRecord, decode, encode
from initmem.study import Run, Study

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 1
EXPIRY = 60.0  # seconds without a heartbeat after which a claim of another host is dead
LARGEST_STUDY = 64 << 20  # bytes
LARGEST_NOTES = 1 << 30  # bytes of what stands beside a run or of a pack's records


@dataclass(frozen=True, slots=True)
class Flight:
    """A run that is being trained, for those who watch."""

    claim: Claim | None  # None: released or committed a moment ago
    silence: float  # seconds without a heartbeat by the observer's clock; infinite: its process has ended
    rows: list[dict[str, float]]  # its epochs so far
    attempt: int = 1  # how many workers have begun it


P = ParamSpec("P")
R = TypeVar("R")


def _writes(method: Callable[Concatenate[Store, P], R]) -> Callable[Concatenate[Store, P], R]:
    """Let a method of the store say in one line what the disk refused."""

    @functools.wraps(method)
    def writing(self: Store, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with explained(self.path):
            return method(self, *args, **kwargs)

    return writing


class Store:
    """A directory of runs. Open an existing one, or make one with `Store.create`."""

    def __init__(self, path: str | Path, *, session: str | None = None) -> None:
        self.path = Path(path)
        self.session = session or uuid.uuid4().hex  # shared by the processes of one call of an engine
        self._index = Index(self.path / "index.json", self.path / "runs")
        self._made: set[str] = set()  # runs whose folder is there
        self._seen: dict[str, tuple[int, float]] = {}  # claims watched: run id -> (beat, since when)
        self._watched = Heartbeats()
        try:
            found = json.loads(read_bounded(self.path / "store.json", 4096))["format"]
        except FileNotFoundError:
            raise StoreError(f"{path}: no store here (initmem run makes one)") from None
        except (OSError, ValueError, KeyError, TypeError, RecursionError, StoreError) as error:
            raise StoreError(
                f"{path}: not a readable store (store.json: {error}); if it is one, delete store.json, "
                "and initmem run writes it again"
            ) from None
        if found != FORMAT:
            raise StoreError(f"{path}: store of format {found!r} (allowed: {FORMAT})")

    @classmethod
    def create(cls, path: str | Path) -> Store:
        """Open the store at a path, making it where there is none; check that it can be written."""
        folder = Path(path)
        if folder.is_file():
            raise StoreError(f"{path}: a file, and no store (initmem restore makes a store of an archive)")
        with explained(folder):
            for name in ("runs", "studies", "pending"):
                (folder / name).mkdir(parents=True, exist_ok=True)
            if not (folder / "store.json").exists():
                write_atomic(folder / "store.json", json.dumps({"format": FORMAT}).encode() + b"\n")
            probe = folder / f".probe-{uuid.uuid4().hex}"
            probe.touch()
            probe.unlink()
        return cls(path)

    # -- studies ----------------------------------------------------------------------------------------

    @_writes
    def add_study(self, study: Study) -> None:
        """Note what was asked for."""
        name = f"{_plain(study.name)}.{_plain(study.effort)}.json"
        write_atomic(self.path / "studies" / name, study.encode())

    def studies(self) -> list[Study]:
        """What was asked of this store, oldest name first."""
        return [self._study(path) for path in self._study_files()]

    def _study_files(self) -> list[Path]:
        return sorted((self.path / "studies").glob("*.json"))

    def _study(self, path: Path) -> Study:
        try:
            return Study.decode(read_bounded(path, LARGEST_STUDY))
        except (OSError, InitmemError) as error:
            raise StoreError(
                f"{path}: unreadable study ({error}); initmem run of any study moves it aside"
            ) from None

    # -- records ----------------------------------------------------------------------------------------

    def has(self, run: Run) -> bool:
        """Whether a run is done."""
        return self._record(run.id).exists()

    def read(self, run_id: str) -> RunRecord:
        """One record; a damaged one is an error."""
        path = self._record(run_id)
        try:
            record = decode(read_bounded(path, LARGEST_RECORD))
        except (StoreError, OSError) as error:
            raise StoreError(f"{path}: {error}") from None
        if record.id != run_id:
            raise StoreError(f"{path}: holds run {record.id}")
        return record

    def records(self) -> list[RunRecord]:
        """All records, in a fixed order. Damaged ones are left out; `damaged` names them."""
        return self.survey()[0]

    def damaged(self) -> list[str]:
        """What is wrong with each record that cannot be read."""
        return self.survey()[1]

    def survey(self) -> tuple[list[RunRecord], list[str]]:
        """All records and what is wrong with the damaged ones, in one look at the store.

        A file that has not changed since it was indexed is not read again; `verify` reads them all.
        """
        records, damaged = self._scan()
        return list(records.values()), list(damaged.values())

    def verify(self) -> list[str]:
        """Check every record against its checksum, changed or not; what is wrong with the damaged ones."""
        return list(self._scan(verify=True)[1].values())

    def _scan(self, *, verify: bool = False) -> tuple[dict[str, RunRecord], dict[str, str]]:
        """Records, and what is wrong with the others, by run id."""
        found = self._index.refresh(verify=verify)
        if found.changed:
            with contextlib.suppress(OSError):  # a store that cannot be written can be read all the same
                write_atomic(self._index.path, self._index.encode())
        return found.records, found.damaged

    @_writes
    def set_aside(self, unwanted: Callable[[RunRecord], bool]) -> int:
        """Move records out of the way, damaged ones always, so that their runs are trained again."""
        records, damaged = self._scan()
        found = [*damaged, *(run_id for run_id, record in records.items() if unwanted(record))]
        for run_id in found:
            self._move_aside(self._record(run_id), run_id)
        return len(found)

    def _move_aside(self, path: Path, name: str) -> None:
        aside = self.path / "aside"
        aside.mkdir(exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # another process may have done it
            path.replace(aside / f"{name}-{uuid.uuid4().hex[:8]}.json")

    @_writes
    def commit(self, records: Sequence[RunRecord]) -> None:
        """Make records visible, all of a pack or, after a crash, all of it at the next `recover`."""
        pending = self.path / "pending" / f"{uuid.uuid4().hex}.json"
        if len(records) > 1:
            write_atomic(pending, b"".join(encode(record) for record in records))
        for record in records:
            self._commit_one(record)
        pending.unlink(missing_ok=True)

    def _commit_one(self, record: RunRecord) -> None:
        folder = self._folder(record.run)
        write_once(folder / "record.json", encode(record))
        _clear(folder)

    @_writes
    def recover(self) -> None:
        """Finish what a crash interrupted, and move damaged records and studies aside."""
        self.set_aside(lambda record: False)
        for path in self._study_files():
            try:
                self._study(path)
            except StoreError:
                self._move_aside(path, f"study-{path.stem}")
        self.finish_commits()
        for folder in (self.path, self.path / "studies", self.path / "pending"):
            sweep(folder)
        for path in (self.path / "runs").glob("[0-9a-f]" * 16 + "/record.json"):
            _clear(path.parent)

    @_writes
    def finish_commits(self) -> None:
        """Complete the packs whose records were decided, but not all of them visible, when a worker died."""
        for pending in (self.path / "pending").glob("*.json"):
            try:
                lines = read_bounded(pending, LARGEST_NOTES).splitlines(keepends=True)
            except FileNotFoundError:
                continue  # its own worker finished it
            whole = True
            for line in lines:
                try:
                    self._commit_one(decode(line))
                except StoreError:
                    whole = False
            if whole:
                pending.unlink(missing_ok=True)
            else:
                self._move_aside(pending, "pending")

    # -- claims -----------------------------------------------------------------------------------------

    @_writes
    def claim(self, runs: Sequence[Run]) -> list[Run]:
        """Claim the runs of a pack that are neither done nor taken; the list may be empty.

        Workers that pack alike try the same first run first: who gets it gets the whole pack.
        """
        open_runs = [run for run in runs if not self.has(run)]
        content = new_claim(session=self.session, pack=len(open_runs))
        mine: list[Run] = []
        heir_of = ""
        try:
            for run in open_runs:
                dead = self._claim_one(run, content, heir_of)
                if dead is None and not mine:
                    return []
                if dead is not None:
                    mine.append(run)
                    heir_of = heir_of or dead
        except OSError:
            self.release(mine)
            raise
        if any(self.attempt(run) > 1 for run in mine):
            self.finish_commits()  # the worker before may have died in the middle of a commit
        done = [run for run in mine if self.has(run)]  # committed between the look and the claim
        self.release(done)
        return [run for run in mine if run not in done]

    def _claim_one(self, run: Run, content: bytes, heir_of: str) -> str | None:
        """Claim one run: None when it is in other hands, else the token of the dead claim it had, if any."""
        path = self._folder(run) / "claim.json"
        written = temporary(path)
        written.write_bytes(content)
        try:
            os.link(written, path)  # exclusive, and whole at once: nobody ever reads half a claim
        except FileExistsError:
            return self._take_over(run, path, content, heir_of)
        finally:
            written.unlink(missing_ok=True)
        return ""

    def _take_over(self, run: Run, path: Path, content: bytes, heir_of: str) -> str | None:
        """Replace a dead claim. The lock keeps two observers from doing it one after the other."""
        if not self._is_dead(run, look(path), heir_of):
            return None
        with self._lock():
            seen = look(path)
            if seen is None or not self._is_dead(run, seen, heir_of):
                return None
            self._note_loss(run, seen)
            write_atomic(path, content)
            return seen.claim.token if seen.claim else ""

    def _is_dead(self, run: Run, seen: Sight | None, heir_of: str) -> bool:
        if seen is None:
            return False  # released or committed a moment ago: not ours to take over
        if seen.claim is None or seen.claim.process_is_gone():
            return True  # a claim is whole from its first moment: one that cannot be read is damaged
        if seen.claim.token == heir_of:
            return True  # one worker had them all: who takes the first of its runs takes the rest
        last, since = self._seen.get(run.id, (-1, 0.0))
        if seen.beat != last:
            self._seen[run.id] = (seen.beat, time.monotonic())
            return False
        return time.monotonic() - since > EXPIRY

    def _note_loss(self, run: Run, seen: Sight) -> None:
        """Write down how the worker before was lost; the watchdog of a time limit leaves its last words."""
        if seen.claim is None:
            return
        hang = self._hang(run)
        words = hang.read_text(errors="replace") if hang.exists() else ""
        cause: Cause = "timeout" if words else "lost worker"
        self._note(run, cause, seen.claim.session, seen.claim.pack, words)
        hang.unlink(missing_ok=True)

    def attempt(self, run: Run) -> int:
        """How many workers have begun this run, the present one included."""
        return self._attempt(run.id)

    def _attempt(self, run_id: str) -> int:
        return 1 + sum(fault.cause in faults.LOSSES for fault in self._faults(run_id))

    @_writes
    def heartbeat(self, runs: Sequence[Run]) -> None:
        """Say that the claims are alive."""
        for run in runs:
            with contextlib.suppress(FileNotFoundError):
                os.utime(self._folder(run) / "claim.json")

    def owns(self, run: Run) -> bool:
        """Whether this process still has the claim."""
        seen = look(self._run_folder(run.id) / "claim.json")
        return seen is not None and seen.claim is not None and seen.claim.is_mine()

    @_writes
    def release(self, runs: Sequence[Run]) -> None:
        """Give claims back, so that another worker can go on."""
        for run in runs:
            if self.owns(run):
                (self._folder(run) / "claim.json").unlink(missing_ok=True)

    def in_flight(self) -> list[str]:
        """Ids of the runs that are claimed now."""
        return sorted(path.parent.name for path in (self.path / "runs").glob("*/claim.json"))

    def flight(self, run_id: str) -> Flight:
        """How far a claimed run is.

        Whether its worker lives is judged as for a claim that another worker wants: no time stamp is
        compared with a clock, because clocks of other machines may be wrong.
        """
        seen, silence = None, 0.0
        with contextlib.suppress(OSError):
            seen = look(self._run_folder(run_id) / "claim.json")
        if seen is not None:
            gone = seen.claim is not None and seen.claim.process_is_gone()
            silence = math.inf if gone else self._watched.silence(run_id, seen.beat)
        rows = self.live_history(run_id)
        return Flight(seen.claim if seen else None, silence, rows, self._attempt(run_id))

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        with (self.path / ".lock").open("w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield

    # -- faults -----------------------------------------------------------------------------------------

    @_writes
    def note_fault(self, runs: Sequence[Run], cause: Cause, detail: str = "") -> None:
        """Write down what happened to runs that were in work together."""
        for run in runs:
            self._note(run, cause, self.session, len(runs), detail)

    def _note(self, run: Run, cause: Cause, session: str, pack: int, detail: str) -> None:
        fault = Fault(cause, session, pack, self.progress(run), detail)
        with (self._folder(run) / "faults.jsonl").open("ab") as stream:
            stream.write(faults.to_line(fault))

    def note_full_disk(self, runs: Sequence[Run]) -> None:
        """Write down that the disk is full, in the room that the rows for those who watch give back."""
        for run in runs:
            with contextlib.suppress(OSError, StoreError):
                (self._folder(run) / "history.jsonl").unlink(missing_ok=True)
                self.note_fault([run], "full disk")

    @contextlib.contextmanager
    def last_words(self, runs: Sequence[Run]) -> Iterator[BinaryIO]:
        """A file, seen from every run, for what a watchdog says before it ends this process."""
        first = self._hang(runs[0])
        with explained(self.path):
            first.unlink(missing_ok=True)
            first.touch()
            for run in runs[1:]:
                self._hang(run).unlink(missing_ok=True)
                os.link(first, self._hang(run))
        with first.open("ab") as stream:
            try:
                yield stream
            finally:
                for run in runs:
                    self._hang(run).unlink(missing_ok=True)

    def progress(self, run: Run) -> int:
        """The epoch of the newest checkpoint of a run; 0 when there is none."""
        return max(self._epochs(run), default=0)

    def faults(self, run: Run) -> list[Fault]:
        """What went wrong with a run that has no record yet."""
        return self._faults(run.id)

    def _faults(self, run_id: str) -> list[Fault]:
        try:
            data = read_bounded(self._run_folder(run_id) / "faults.jsonl", LARGEST_NOTES)
        except FileNotFoundError:
            return []
        return list(faults.from_lines(data))

    # -- while a run trains -----------------------------------------------------------------------------

    @_writes
    def append_history(self, run: Run, row: Mapping[str, float], *, fresh: bool) -> None:
        """Add the row of one epoch; `fresh` starts the file anew."""
        with (self._folder(run) / "history.jsonl").open("wb" if fresh else "ab") as stream:
            stream.write(json.dumps(row, separators=(",", ":")).encode() + b"\n")

    def live_history(self, run_id: str) -> list[dict[str, float]]:
        """The rows of a run in training. A line that is half written is left out until the next look."""
        try:
            data = read_bounded(self._run_folder(run_id) / "history.jsonl", LARGEST_NOTES)
        except OSError:
            return []
        return [row for line in data.splitlines() if (row := _row(line))]

    def live_epoch(self, run_id: str) -> int:
        """How many epochs a run in training has shown."""
        try:
            return read_bounded(self._run_folder(run_id) / "history.jsonl", LARGEST_NOTES).count(b"\n")
        except OSError:
            return 0

    @_writes
    def write_checkpoints(self, saved: Mapping[Run, tuple[Mapping[str, Tensor], Any]], epoch: int) -> None:
        """Write the checkpoints of a pack, then drop the older ones: one epoch is always complete."""
        for run, (tensors, meta) in saved.items():
            write_atomic(self._checkpoint(run, epoch), checkpoints.encode(tensors, meta))
        for run in saved:
            self._drop_checkpoints(run, keep=epoch)

    def read_checkpoints(self, runs: Sequence[Run]) -> list[tuple[dict[str, Tensor], Any]] | None:
        """The newest checkpoints that all these runs have in common, as (tensors, meta) each."""
        for epoch in sorted(set.intersection(*(self._epochs(run) for run in runs)), reverse=True):
            with contextlib.suppress(StoreError, OSError):
                return [checkpoints.decode(self._checkpoint(run, epoch).read_bytes()) for run in runs]
        return None

    @_writes
    def drop_checkpoints(self, runs: Sequence[Run]) -> None:
        """Let runs begin anew."""
        for run in runs:
            self._drop_checkpoints(run, keep=None)

    def _drop_checkpoints(self, run: Run, *, keep: int | None) -> None:
        for epoch in self._epochs(run) - {keep}:
            self._checkpoint(run, epoch).unlink(missing_ok=True)

    def _epochs(self, run: Run) -> set[int]:
        """The epochs of which there are checkpoints."""
        files = self._run_folder(run.id).glob("checkpoint-*.safetensors")
        names = (path.stem.rpartition("-")[2] for path in files)
        return {int(name) for name in names if re.fullmatch("[0-9]{1,12}", name)}

    # -- paths ------------------------------------------------------------------------------------------

    def _folder(self, run: Run) -> Path:
        """The folder of a run, to write in it."""
        folder = self._run_folder(run.id)
        if run.id not in self._made:
            folder.mkdir(exist_ok=True)
            if folder.is_symlink():  # what is written and removed in it would be outside
                raise StoreError(f"{folder}: is a link (allowed: a folder of the store)")
            self._made.add(run.id)
        return folder

    def _run_folder(self, run_id: str) -> Path:
        if not RUN_ID.fullmatch(run_id):
            raise StoreError(f"run id {run_id!r} (allowed: 16 hexadecimal digits)")
        return self.path / "runs" / run_id

    def _hang(self, run: Run) -> Path:
        return self._folder(run) / "hang.txt"

    def _checkpoint(self, run: Run, epoch: int) -> Path:
        return self._folder(run) / f"checkpoint-{epoch}.safetensors"

    def _record(self, run_id: str) -> Path:
        return self._run_folder(run_id) / "record.json"


def _clear(folder: Path) -> None:
    """Remove whatever lies beside a record, but for what a living process is about to give its name."""
    for path in folder.iterdir():
        if path.name != "record.json" and path.suffix != ".tmp" and not path.is_dir():
            path.unlink(missing_ok=True)
    sweep(folder)


def _row(line: bytes) -> dict[str, float]:
    """One line of a history; nothing where it is torn or something else."""
    try:
        return {str(name): float(value) for name, value in json.loads(line).items()}
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return {}


def _plain(name: str) -> str:
    """A study name as a file name: nothing that could leave the directory."""
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in name) or "_"
