"""A worker claims packs of runs, trains them, and commits their records, whatever happens.

    lost worker    another worker tries again, from the second loss on in halved packs; a run that is lost
                   three times alone is recorded as crashed
    timeout        the same, and twice alone is enough
    out of memory  the pack is trained in halves; a run that does not fit alone is recorded as crashed
    exception      a checkpoint that does not fit is dropped, else the pack's runs are trained one by one, so
                   that each answers for itself; the one that raises or exits alone is recorded as crashed
    divergence     a result, recorded
    full disk      everything stops; nothing that was committed is lost
    user mistake   any `InitmemError`: everything stops with its one line (from user code, only a
                   `StoreError` does)

Workers are the same in every engine. They share nothing but the store.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import torch

from initmem import register
from initmem.engines.attempt import Attempt, ClaimLost, Interrupted
from initmem.engines.engine import Claimed, Faulted, Finished, Listener, Released, Settings, ignore
from initmem.engines.provenance import failure, pack_id
from initmem.errors import FullDisk, InitmemError, StoreError
from initmem.record import RunRecord
from initmem.store.claims import EXPIRY
from initmem.store.faults import LOSSES, Cause, cause_of, next_pack
from initmem.store.store import Store
from initmem.study import Run

PAUSE = 1.0  # seconds between two looks at packs that other workers have claimed


class Job(NamedTuple):
    """Claimed runs, and the pack they are trained in: themselves, or more that have a record already."""

    claimed: list[Run]
    pack: list[Run]


class Worker:
    """Trains the packs it can claim, and reports events to a listener."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        *,
        should_stop: Callable[[], bool] = lambda: False,
        listen: Listener = ignore,
    ) -> None:
        self.store, self.settings = store, settings
        self.should_stop, self.listen = should_stop, listen
        register.load(settings.plugins)

    def work(self, packs: Sequence[list[Run]]) -> None:
        """Return when every run of every pack has a record, or when asked to stop."""
        left = list(packs)
        while left:
            for pack in left:
                if self.should_stop():
                    return
                if claimed := self._claim(pack):
                    self._train(Job(claimed, whole_pack(self.store, pack, claimed)))
            left = [pack for pack in left if not all(self.store.has(run) for run in pack)]
            if left:  # other workers have the rest: wait, they may drop it
                time.sleep(PAUSE)

    def _claim(self, pack: list[Run]) -> list[Run]:
        """Claim the open runs of a pack; fewer of them, or none, if workers were lost with them before."""
        store = self.store
        runs = store.claims.take(pack)
        room = {run: self._room(run, len(runs)) for run in runs}
        if lost := [run for run in runs if room[run] == 0]:
            self._commit([self._given_up(run) for run in lost])
            store.claims.release(runs)
            return []
        if runs and (size := min(room.values())) < len(runs):
            store.claims.release(runs)
            return store.claims.take(runs[:size])
        return runs

    def _room(self, run: Run, pack: int) -> int:
        """In packs of how many a run may be tried after its losses; 0 gives it up."""
        faults, newest = self.store.faults.of(run.id), self.store.checkpoints.newest(run.id)
        return next_pack(faults, session=self.store.session, update=newest, pack=pack)

    def _given_up(self, run: Run) -> RunRecord:
        losses = [fault for fault in self.store.faults.of(run.id) if fault.cause in LOSSES]
        error = f"{losses[-1].cause}: the worker was lost {len(losses)} times\n{losses[-1].detail}"
        record = failure(run, error.strip(), self.store, self.settings)
        # This worker does not try it again.
        return replace(record, provenance={**record.provenance, "attempts": len(losses)})

    def _train(self, job: Job) -> None:
        """Train claimed runs while their claims are kept alive; give back what is left of them."""
        ids = tuple(run.id for run in job.claimed)
        self.listen(Claimed(ids))
        with heartbeat(self.store, job.claimed):
            try:
                self._train_and_commit(job)
            except (Interrupted, ClaimLost):
                self.store.claims.release(job.claimed)
                self.listen(Released(ids))
            except FullDisk:
                self.store.faults.note_full_disk(job.claimed)
                self.store.claims.release(job.claimed)
                raise
            except BaseException:
                with contextlib.suppress(StoreError):  # the first error tells more
                    self.store.claims.release(job.claimed)
                raise

    def _train_and_commit(self, job: Job) -> None:
        """Commit the records of a job, all at once or, after a fault, of one smaller job after the other."""
        jobs = [job]
        while jobs:
            job = jobs.pop(0)
            attempt = Attempt(
                self.store, self.settings, *job, should_stop=self.should_stop, listen=self.listen
            )
            try:
                records = attempt.train()
            except BaseException as error:  # plugins and pipelines are user code, which may also exit
                if is_for_engine(error) or self._is_mistake(error):
                    raise
                cause, detail = self._note(job, error)
                if smaller := self._smaller(job, cause, attempt):
                    jobs = smaller + jobs
                    continue
                records = [failure(job.claimed[0], detail, self.store, self.settings)]
            self._commit(records)

    def _is_mistake(self, error: BaseException) -> bool:
        """User code may raise what it likes, but a store that fails it fails all."""
        return isinstance(error, InitmemError if self.settings.trainer is None else StoreError)

    def _note(self, job: Job, error: BaseException) -> tuple[Cause, str]:
        """Write down a fault of claimed runs; return its cause and its traceback."""
        cause, detail = cause_of(error), traceback_of(error)
        if cause == "full disk":
            raise FullDisk(f"no room left while training ({error}); all so far is kept") from error
        self.store.faults.note(job.claimed, cause, detail)
        self.listen(Faulted(cause, tuple(run.id for run in job.claimed)))
        return cause, detail

    def _smaller(self, job: Job, cause: Cause, attempt: Attempt) -> list[Job]:
        """What to try after a fault, in order; nothing when a run crashed alone."""
        runs = job.claimed
        if cause == "exception" and attempt.resumed and not attempt.advanced:
            self.store.checkpoints.drop(runs)
            return [job]
        if len(job.pack) > len(runs):
            return [Job(runs, runs)]
        if len(runs) == 1:
            return []
        parts = [[run] for run in runs]
        if cause == "out of memory":
            gc.collect()
            half = (len(runs) + 1) // 2
            parts = [runs[:half], runs[half:]]
        return [Job(part, part) for part in parts]

    def _commit(self, records: list[RunRecord]) -> None:
        self.store.commit(records)
        self.listen(Finished(tuple((record.id, record.status) for record in records)))


def whole_pack(store: Store, pack: list[Run], claimed: list[Run]) -> list[Run]:
    """With which runs to train those that were claimed of a pack.

    When the others were trained in this very pack, a record was lost: in the same pack it comes out the same.
    """
    others, name = set(pack) - set(claimed), pack_id(pack)
    try:
        in_this_pack = [
            store.has(run) and store.read(run.id).provenance.get("pack_id") == name for run in others
        ]
    except StoreError:
        return claimed
    return pack if others and all(in_this_pack) else claimed


def is_for_engine(error: BaseException) -> bool:
    """Whether what ended training concerns the engine, not the code that raised it: a stop, a lost claim."""
    if isinstance(error, KeyboardInterrupt):
        # A worker process ignores Ctrl-C: there, user code raised it.
        return signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return isinstance(error, Interrupted | ClaimLost)


def traceback_of(error: BaseException) -> str:
    """The traceback of what ended training; an exit is named."""
    text = "".join(traceback.format_exception(error))
    if isinstance(error, SystemExit):
        text += f"SystemExit: {error.code} (the training code called sys.exit or quit)"
    return text


@contextmanager
def heartbeat(store: Store, runs: Sequence[Run]) -> Iterator[None]:
    """Keep claims alive from a thread of their own: an epoch may take longer than a claim lives."""
    done = threading.Event()

    def beat() -> None:
        while not done.wait(EXPIRY / 6):
            with contextlib.suppress(StoreError):  # the worker itself meets a bad disk soon enough
                store.claims.heartbeat(list(runs))  # the caller may add to them and take away

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def make_ready() -> None:
    """Set this process up to train beside others: one thread, few garbage collections, freed memory kept.

    Every step frees and takes the same large blocks. Given back to the system they come back page by page,
    each filled with zeros: 5 to 8% of a step. Only the GNU C library has the option.
    """
    torch.set_num_threads(1)
    gc.freeze()  # the modules stay: looking through them again and again is 3% of a small step
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(-4, 0)  # M_MMAP_MAX: no block is the system's own
        library.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
