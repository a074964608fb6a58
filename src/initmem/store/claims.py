"""Runs in training: claims, the epochs so far, and checkpoints.

A claim tells which worker trains a run. It is one small file per run, whole from its first moment.

A claim is a lease. Its worker renews it by a heartbeat, the modification time of the file. It ends when the
worker's process has ended (on the same machine), or when an observer has seen no new heartbeat for `EXPIRY`
seconds of the observer's own clock: no jump of the system time ends a claim.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from initmem import files
from initmem.errors import StoreError
from initmem.files import explained, has_ended, is_there, machine_id, opened, readable, retried, this_process
from initmem.store.faults import FaultLog
from initmem.store.paths import Paths
from initmem.study import Run

if TYPE_CHECKING:
    from torch import Tensor

EXPIRY = 60.0  # seconds without a heartbeat after which a claim of another machine has expired
CHECKPOINT_SCHEMA = 2


@dataclass(frozen=True, slots=True)
class Claim:
    """Who trains a run; the same for all runs of a pack."""

    token: str  # unique, however often a process id is reused
    host: str
    pid: int
    born: str  # start time of the process, so that another one with the same id is not taken for it
    session: str = ""  # the call of an engine that the process works for
    pack: int = 1  # how many runs the worker claimed together

    def is_mine(self) -> bool:
        """Whether this process made the claim."""
        return self.host == machine_id() and (self.pid, self.born) == this_process()

    def process_has_ended(self) -> bool:
        """Whether the claim was made on this machine by a process that has ended."""
        return self.host == machine_id() and has_ended(self.pid, self.born)


_CLAIM = TypeAdapter(Claim)  # fields of a newer version are ignored


class Lease(NamedTuple):
    """A claim file as it was read."""

    claim: Claim | None  # None: the file is damaged
    heartbeat: int  # its modification time, by whatever clock


class Claims:
    """The claims of a store, as one session makes and sees them."""

    def __init__(
        self, paths: Paths, faults: FaultLog, finish_commits: Callable[[], object], *, session: str
    ) -> None:
        self.paths, self.session = paths, session
        self._faults, self._finish_commits = faults, finish_commits
        self._seen: dict[object, tuple[object, float]] = {}  # signs of life, and when each was first seen

    def take(self, runs: Sequence[Run]) -> list[Run]:
        """Claim the runs of a pack that have no record yet: all, or none while another worker has one.

        Workers with the same packs try the same first run first: whoever gets it gets the whole pack.
        """
        open_runs = [run for run in runs if not is_there(self.paths.record(run.id))]
        content = new_claim(session=self.session, pack=len(open_runs))
        mine: list[Run] = []
        dead = ""  # token of the dead worker whose pack is being taken over
        try:
            with explained(self.paths.root):
                for run in open_runs:
                    token = self._take_one(run, content, dead)
                    if token is None:  # a pack is trained whole: what another worker has is worth the wait
                        self.release(mine)
                        return []
                    mine.append(run)
                    dead = dead or token
        except StoreError:
            self.release(mine)
            raise
        if any(self._faults.attempt(run.id) > 1 for run in mine):
            self._finish_commits()  # the previous worker may have died in the middle of a commit
        done = [run for run in mine if is_there(self.paths.record(run.id))]  # since the check above
        self.release(done)
        return [run for run in mine if run not in done]

    @contextlib.contextmanager
    def kept_alive(self, runs: Sequence[Run]) -> Iterator[None]:
        """Renew claims from a thread of its own: an epoch may take longer than a claim lives."""
        done = threading.Event()

        def beat() -> None:
            while not done.wait(EXPIRY / 6):
                for run in runs:
                    with contextlib.suppress(OSError):  # the worker itself meets a bad disk soon enough
                        os.utime(self.paths.claim(run.id))

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def owns(self, run: Run) -> bool:
        """Whether this process still holds the claim."""
        lease = read_claim(self.paths.claim(run.id))
        return lease is not None and lease.claim is not None and lease.claim.is_mine()

    def release(self, runs: Sequence[Run]) -> None:
        """Give claims back, so that another worker can continue."""
        with explained(self.paths.root):
            for run in runs:
                if self.owns(run):
                    self.paths.claim(run.id).unlink(missing_ok=True)

    def watched(self, run_id: str) -> tuple[Claim | None, float]:
        """Who has claimed a run, and how many seconds ago its last heartbeat or epoch was seen.

        Clocks of other machines are not trusted: the age counts from when this `Claims` first saw the
        heartbeat, unless the worker was on this machine and has ended.
        """
        lease: Lease | None = None
        last_epoch: int | None = None
        with contextlib.suppress(StoreError):
            lease = read_claim(self.paths.claim(run_id))
        with contextlib.suppress(OSError):
            last_epoch = self.paths.history(run_id).stat().st_mtime_ns
        claim = lease.claim if lease else None
        if claim is not None and claim.process_has_ended():
            return claim, math.inf
        signs = (lease.heartbeat if lease else None, last_epoch)
        return claim, self._age(("watched", run_id), signs)

    def _take_one(self, run: Run, content: bytes, dead: str) -> str | None:
        """Claim one run: None if another worker has it, else the token of its expired claim, or ""."""
        self.paths.make_run(run.id)
        path = self.paths.claim(run.id)
        written = files.temporary(path)
        with opened(written, os.O_EXCL) as stream:
            stream.write(content)
        try:
            os.link(written, path)  # exclusive, and whole at once: nobody ever reads half a claim
        except FileExistsError:
            return self._take_over(run, path, content, dead)
        finally:
            written.unlink(missing_ok=True)
        return ""

    def _take_over(self, run: Run, path: Path, content: bytes, dead: str) -> str | None:
        """Replace an expired claim. The lock keeps two observers from doing it one after the other."""
        if not self._has_expired(run, read_claim(path), dead):
            return None
        with opened(self.paths.lock, os.O_APPEND) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            lease = read_claim(path)
            if lease is None or not self._has_expired(run, lease, dead):
                return None
            if lease.claim is not None:
                self._faults.note_loss(run, lease.claim.session, lease.claim.pack)
            files.write_atomic(path, content)
            return lease.claim.token if lease.claim else ""

    def _has_expired(self, run: Run, lease: Lease | None, dead: str) -> bool:
        if lease is None:
            return False  # released or committed a moment ago: nothing to take over
        # One worker had them all: whoever takes over the first of its runs takes the rest.
        if lease.claim is not None and (lease.claim.process_has_ended() or lease.claim.token == dead):
            return True
        return self._age(("wanted", run.id), lease.heartbeat) > EXPIRY

    def _age(self, key: object, sign: object) -> float:
        """Seconds since a sign of life was seen to change, by the clock of this process."""
        now = time.monotonic()
        last, since = self._seen.get(key, (None, now))
        if sign != last:
            self._seen[key] = (sign, now)
            return 0.0
        return now - since


def new_claim(*, session: str, pack: int) -> bytes:
    """The content of a claim by this process."""
    return json.dumps(asdict(Claim(uuid.uuid4().hex, machine_id(), *this_process(), session, pack))).encode()


def read_claim(path: Path) -> Lease | None:
    """Read a claim; None if there is none.

    The heartbeat is read from the opened file: a network file system may answer a plain stat of the name
    from its cache.
    """

    def read() -> tuple[bytes, int]:
        with path.open("rb") as stream:
            return stream.read(), os.fstat(stream.fileno()).st_mtime_ns

    try:
        with readable(path):
            data, heartbeat = retried(read)
    except FileNotFoundError:
        return None
    try:
        return Lease(_CLAIM.validate_json(data, strict=True), heartbeat)
    except ValidationError:
        return Lease(None, heartbeat)


@dataclass(frozen=True, slots=True)
class LiveRun:
    """A run in training, for those who watch."""

    claim: Claim | None  # None: released or committed a moment ago
    heartbeat_age: float  # seconds since the last heartbeat or epoch
    rows: list[dict[str, float]]  # its epochs so far
    attempt: int = 1  # how many workers have started it


class LiveHistory:
    """The epochs of runs in training. They are shown, never read back into training."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths

    def append(self, run: Run, rows: Sequence[Mapping[str, float]], *, fresh: bool) -> None:
        """Add a row per epoch; `fresh` starts the file again."""
        lines = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
        with explained(self.paths.root):
            if fresh:
                self.paths.make_run(run.id)
            with opened(self.paths.history(run.id), os.O_TRUNC if fresh else os.O_APPEND) as stream:
                stream.write(lines.encode())

    def rows(self, run_id: str) -> list[dict[str, float]]:
        """The rows of a run in training. A line that is half written is left out until the next time."""
        rows = []
        for line in self._read(run_id).splitlines():
            with contextlib.suppress(ValueError, TypeError, AttributeError):
                rows.append({str(name): float(value) for name, value in json.loads(line).items()})
        return rows

    def epochs(self, run_id: str) -> int:
        """How many epochs a run in training has shown."""
        return self._read(run_id).count(b"\n")

    def _read(self, run_id: str) -> bytes:
        try:
            return self.paths.history(run_id).read_bytes()
        except OSError:
            return b""


class Checkpoints:
    """The checkpoints of runs in training, each as (tensors, meta): plain values next to tensors.

    They are safetensors with a digest, so that a flipped bit never becomes a trajectory.

    A checkpoint that is damaged, or that belongs to another run or update than its name says, is not used.
    """

    def __init__(self, paths: Paths) -> None:
        self.paths = paths

    def newest(self, run_id: str) -> int:
        """How many updates the newest checkpoint of a run holds; 0 if there is none."""
        return max(self.paths.checkpoints(run_id), default=0)

    def write(self, saved: Mapping[Run, tuple[Mapping[str, Tensor], Any]], update: int) -> None:
        """Write the checkpoints of a pack, then drop the older ones: one set is always complete."""
        with explained(self.paths.root):
            for run, (tensors, meta) in saved.items():
                self.paths.make_run(run.id)
                data = encode_checkpoint(run.id, update, tensors, meta)
                files.write_atomic(self.paths.checkpoint(run.id, update), data)
        self.drop(list(saved), keep=update)

    def read(self, runs: Sequence[Run]) -> list[tuple[dict[str, Tensor], Any]] | None:
        """The newest checkpoints that all these runs have in common; None if there are none.

        What the disk refuses to read may be intact: it is an error, and no training is thrown away.
        """
        common = set.intersection(*(self.paths.checkpoints(run.id) for run in runs))
        for update in sorted(common, reverse=True):
            files_of = [self.paths.checkpoint(run.id, update) for run in runs]
            try:
                saved = [decode_checkpoint(retried(path.read_bytes)) for path in files_of]
                if [named[:2] for named in saved] == [(run.id, update) for run in runs]:
                    return [(tensors, meta) for _, _, tensors, meta in saved]
            except (StoreError, FileNotFoundError):
                continue
            except OSError as error:
                raise StoreError(f"{error.filename or self.paths.root}: {files.reason(error)}") from None
        return None

    def drop(self, runs: Sequence[Run], *, keep: int | None = None) -> None:
        """Remove all checkpoints except one: without any, runs start again from the beginning."""
        with explained(self.paths.root):
            for run in runs:
                for update in self.paths.checkpoints(run.id) - {keep}:
                    self.paths.checkpoint(run.id, update).unlink(missing_ok=True)


def encode_checkpoint(run_id: str, update: int, tensors: Mapping[str, Tensor], meta: Any) -> bytes:
    """Serialize the state of a run after so many updates."""
    from safetensors.torch import save

    here = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps({"schema": CHECKPOINT_SCHEMA, "run": run_id, "update": update, "meta": meta})
    return save(here, metadata={"initmem": text, "sha256": _digest(here, text)})


def decode_checkpoint(data: bytes) -> tuple[str, int, dict[str, Tensor], Any]:
    """Read a checkpoint back; anything that is not exactly what was written is an error."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors = load(data)
        # Only from a file does safetensors return its metadata. It has checked the header by now.
        notes = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
        if notes["sha256"] != _digest(tensors, notes["initmem"]):
            raise StoreError("damaged checkpoint (checksum does not match)")
        about = json.loads(notes["initmem"])
        if about["schema"] != CHECKPOINT_SCHEMA:
            raise StoreError(f"checkpoint of schema {about['schema']!r} (allowed: {CHECKPOINT_SCHEMA})")
        return about["run"], about["update"], tensors, about["meta"]
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"not a checkpoint ({type(error).__name__}: {error})") from None


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    """A digest of the names, types, shapes and values of tensors, and of the text next to them."""
    import torch

    summary = [[name, str(t.dtype), list(t.shape)] for name, t in sorted(tensors.items())]
    hashed = hashlib.sha256(json.dumps([summary, text]).encode())
    for _, tensor in sorted(tensors.items()):
        hashed.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return hashed.hexdigest()
