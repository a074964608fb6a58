"""The store: a directory that holds one sub-directory per run. The only writer of run files.

The contract:
- A record appears whole or not at all, and never changes once it is there.
- A run is claimed by at most one living worker. A claim dies with its process (same host) or when its
  heartbeat stops for `EXPIRY` seconds of the observer's own clock: a jump of the system time kills none.
- The records of a pack become visible together, or the next process completes them: a replica is never
  trained again in other company because a crash fell between two commits.
- The files are the truth: whatever else lies beside them can be deleted.

    STORE/store.json                 format of the store
    STORE/studies/NAME.EFFORT.json   what was asked for
    STORE/runs/ID/claim.json         while a worker has it
    STORE/runs/ID/history.jsonl      while it trains: one line per epoch, for those who watch
    STORE/runs/ID/checkpoint-EPOCH.safetensors  to continue from
    STORE/runs/ID/record.json        when it is done
    STORE/pending/*.json             records of a pack between decision and commit
    STORE/aside/                     records moved out of the way: damaged, or failed and tried again
    STORE/index.json                 derived from the records: all but their histories
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from initmem.errors import StoreError
from initmem.index import Index
from initmem.record import RunRecord, decode, encode
from initmem.study import Run, Study

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 1
EXPIRY = 60.0  # seconds without a heartbeat after which a claim of another host is dead


@dataclass(frozen=True, slots=True)
class Claim:
    """Who trains a run. The token makes every claim unique, however often a process id comes back."""

    token: str
    host: str
    pid: int
    born: str  # start time of the process, so that a recycled pid is not taken for the old one
    attempt: int

    def is_mine(self) -> bool:
        """Whether this process made the claim."""
        return self.host == socket.gethostname() and self.pid == os.getpid() and self.born == born(self.pid)

    def process_is_gone(self) -> bool:
        """Whether the claim was made on this host by a process that is no more."""
        return self.host == socket.gethostname() and born(self.pid) != self.born


def born(pid: int) -> str:
    """The start time of a process as the kernel counts it; empty when there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "" if not _alive(pid) else "unknown"
    return "" if fields[0] == "Z" else fields[19]


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class Store:
    """A directory of runs. Open an existing one, or make one with `Store.create`."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._index = Index(self.path / "index.json", self.path / "runs")
        self._seen: dict[str, tuple[int, float]] = {}  # claims watched: run id -> (beat, since when)
        try:
            found = json.loads((self.path / "store.json").read_text())["format"]
        except FileNotFoundError:
            raise StoreError(f"{path}: no store here (initmem run makes one)") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{path}: not a readable store ({error})") from None
        if found != FORMAT:
            raise StoreError(f"{path}: store of format {found!r} (allowed: {FORMAT})")

    @classmethod
    def create(cls, path: str | Path) -> Store:
        """Open the store at a path, making it where there is none; check that it can be written."""
        folder = Path(path)
        if folder.is_file():
            raise StoreError(f"{path}: a file, and no store (initmem restore makes a store of an archive)")
        try:
            for name in ("runs", "studies", "pending"):
                (folder / name).mkdir(parents=True, exist_ok=True)
            if not (folder / "store.json").exists():
                write_atomic(folder / "store.json", json.dumps({"format": FORMAT}).encode() + b"\n")
            probe = folder / f".probe-{uuid.uuid4().hex}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise StoreError(f"{path}: cannot be written ({error.strerror})") from None
        return cls(path)

    # -- studies ----------------------------------------------------------------------------------------

    def add_study(self, study: Study) -> None:
        """Note what was asked for."""
        name = f"{_plain(study.name)}.{_plain(study.effort)}.json"
        content = json.dumps(study.to_json(), indent=1).encode()
        write_atomic(self.path / "studies" / name, content + b"\n")

    def studies(self) -> list[Study]:
        """What was asked of this store, oldest name first."""
        files = sorted((self.path / "studies").glob("*.json"))
        try:
            return [Study.from_json(json.loads(file.read_text())) for file in files]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{self.path}: unreadable study ({error})") from None

    # -- records ----------------------------------------------------------------------------------------

    def has(self, run: Run) -> bool:
        """Whether a run is done."""
        return self._record(run.id).exists()

    def read(self, run_id: str) -> RunRecord:
        """One record; a damaged one is an error."""
        path = self._record(run_id)
        try:
            record = decode(path.read_bytes())
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

    def set_aside(self, unwanted: Callable[[RunRecord], bool]) -> int:
        """Move records out of the way, damaged ones always, so that their runs are trained again."""
        records, damaged = self._scan()
        found = [*damaged, *(run_id for run_id, record in records.items() if unwanted(record))]
        for run_id in found:
            aside = self.path / "aside"
            aside.mkdir(exist_ok=True)
            self._record(run_id).replace(aside / f"{run_id}-{uuid.uuid4().hex[:8]}.json")
        return len(found)

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
        if not (folder / "record.json").exists():
            write_atomic(folder / "record.json", encode(record))
        for path in folder.iterdir():
            if path.name != "record.json":
                path.unlink(missing_ok=True)

    def recover(self) -> None:
        """Finish the commits that a crash interrupted, and move damaged records aside."""
        self.set_aside(lambda record: False)
        for pending in (self.path / "pending").glob("*.json"):
            with contextlib.suppress(FileNotFoundError, StoreError):
                lines = pending.read_bytes().splitlines(keepends=True)
                for record in [decode(line) for line in lines]:
                    self._commit_one(record)
                pending.unlink(missing_ok=True)

    # -- claims -----------------------------------------------------------------------------------------

    def claim(self, runs: Sequence[Run]) -> list[Run]:
        """Claim the runs of a pack that are neither done nor taken; the list may be empty.

        Workers that pack alike try the same first run first: who gets it gets the whole pack.
        """
        open_runs = [run for run in runs if not self.has(run)]
        if not open_runs or not self._claim_one(open_runs[0]):
            return []
        others = [run for run in open_runs[1:] if self._claim_one(run)]
        mine = [open_runs[0], *others]
        done = [run for run in mine if self.has(run)]  # committed between the look and the claim
        self.release(done)
        return [run for run in mine if run not in done]

    def _claim_one(self, run: Run) -> bool:
        path = self._folder(run) / "claim.json"
        written = path.with_name(f".claim.{uuid.uuid4().hex}.tmp")
        written.write_bytes(_new_claim(attempt=1))
        try:
            os.link(written, path)  # exclusive, and whole at once: nobody ever reads half a claim
        except FileExistsError:
            return self._take_over(run, path)
        finally:
            written.unlink(missing_ok=True)
        return True

    def _take_over(self, run: Run, path: Path) -> bool:
        """Replace a dead claim. The lock keeps two observers from doing it one after the other."""
        if not self._is_dead(run, path):
            return False
        with self._lock():
            if not self._is_dead(run, path):
                return False
            old = _read_claim(path)
            write_atomic(path, _new_claim(attempt=(old.attempt if old else 0) + 1))
            return True

    def _is_dead(self, run: Run, path: Path) -> bool:
        try:
            beat = path.stat().st_mtime_ns
        except FileNotFoundError:
            return False  # released or committed a moment ago: not ours to take over
        claim = _read_claim(path)
        if claim is not None and claim.process_is_gone():
            return True
        last, since = self._seen.get(run.id, (-1, 0.0))
        if beat != last:
            self._seen[run.id] = (beat, time.monotonic())
            return False
        return time.monotonic() - since > EXPIRY

    def attempt(self, run: Run) -> int:
        """How many workers have begun this run, the present one included."""
        claim = _read_claim(self._folder(run) / "claim.json")
        return claim.attempt if claim else 1

    def heartbeat(self, runs: Sequence[Run]) -> None:
        """Say that the claims are alive."""
        for run in runs:
            with contextlib.suppress(FileNotFoundError):
                os.utime(self._folder(run) / "claim.json")

    def owns(self, run: Run) -> bool:
        """Whether this process still has the claim."""
        claim = _read_claim(self._folder(run) / "claim.json")
        return claim is not None and claim.is_mine()

    def release(self, runs: Sequence[Run]) -> None:
        """Give claims back, so that another worker can go on."""
        for run in runs:
            if self.owns(run):
                (self._folder(run) / "claim.json").unlink(missing_ok=True)

    def in_flight(self) -> list[str]:
        """Ids of the runs that are claimed now."""
        return sorted(path.parent.name for path in (self.path / "runs").glob("*/claim.json"))

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        with (self.path / ".lock").open("w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield

    # -- while a run trains -----------------------------------------------------------------------------

    def append_history(self, run: Run, row: Mapping[str, float], *, fresh: bool) -> None:
        """Add the row of one epoch; `fresh` starts the file anew."""
        with (self._folder(run) / "history.jsonl").open("wb" if fresh else "ab") as stream:
            stream.write(json.dumps(row, separators=(",", ":")).encode() + b"\n")

    def write_checkpoints(self, saved: Mapping[Run, tuple[Mapping[str, Tensor], Any]], epoch: int) -> None:
        """Write the checkpoints of a pack, then drop the older ones: one epoch is always complete."""
        from safetensors.torch import save

        for run, (tensors, meta) in saved.items():
            data = save(dict(tensors), metadata={"initmem": json.dumps(meta)})
            write_atomic(self._checkpoint(run, epoch), data)
        for run in saved:
            for path in self._folder(run).glob("checkpoint-*.safetensors"):
                if path != self._checkpoint(run, epoch):
                    path.unlink(missing_ok=True)

    def read_checkpoints(self, runs: Sequence[Run]) -> list[tuple[dict[str, Tensor], Any]] | None:
        """The newest checkpoints that all these runs have in common, as (tensors, meta) each."""
        epochs = [
            {int(path.stem.rpartition("-")[2]) for path in self._folder(run).glob("checkpoint-*.safetensors")}
            for run in runs
        ]
        for epoch in sorted(set.intersection(*epochs), reverse=True):
            found = [_read_checkpoint(self._checkpoint(run, epoch)) for run in runs]
            if all(item is not None for item in found):
                return [item for item in found if item is not None]
        return None

    # -- paths ------------------------------------------------------------------------------------------

    def _folder(self, run: Run) -> Path:
        folder = self.path / "runs" / run.id
        folder.mkdir(exist_ok=True)
        return folder

    def _checkpoint(self, run: Run, epoch: int) -> Path:
        return self._folder(run) / f"checkpoint-{epoch}.safetensors"

    def _record(self, run_id: str) -> Path:
        return self.path / "runs" / run_id / "record.json"


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that it is there whole or not at all, also after a power cut."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _new_claim(attempt: int) -> bytes:
    pid = os.getpid()
    claim = Claim(uuid.uuid4().hex, socket.gethostname(), pid, born(pid), attempt)
    return json.dumps(asdict(claim)).encode()


def _read_claim(path: Path) -> Claim | None:
    """The claim at a path; None when it is gone or damaged."""
    try:
        return Claim(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def _read_checkpoint(path: Path) -> tuple[dict[str, Tensor], Any] | None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            meta = json.loads(file.metadata()["initmem"])
            return {name: file.get_tensor(name) for name in file.keys()}, meta  # noqa: SIM118
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        return None


def _plain(name: str) -> str:
    """A study name as a file name: nothing that could leave the directory."""
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in name) or "_"
