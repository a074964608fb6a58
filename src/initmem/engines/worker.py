"""A worker: pulls packs from the store until none is left. The same in every engine."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from initmem import register
from initmem.engines.engine import Claimed, Finished, Listener, Released, Settings, ignore
from initmem.engines.provenance import environment, pack_id
from initmem.engines.training import ClaimLost, Interrupted, Job, Training
from initmem.errors import FullDisk, StoreError
from initmem.record import RunRecord, crashed
from initmem.store.claims import EXPIRY
from initmem.store.faults import LOSSES, counted, next_pack
from initmem.store.store import Store
from initmem.study import Run

PAUSE = 1.0  # seconds between two looks at packs that others have


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
        register.load(settings.plugins)
        self.should_stop, self.listen = should_stop, listen
        self.training = Training(store, settings, should_stop=should_stop, listen=listen)

    def work(self, packs: Sequence[list[Run]]) -> None:
        """Return when every run of every pack has a record, or when asked to stop."""
        left = list(packs)
        while left:
            for pack in left:
                if self.should_stop():
                    return
                runs = self._claim(pack)
                if runs:
                    self._train(Job(runs, whole_pack(self.store, pack, runs)))
            left = [pack for pack in left if not all(self.store.has(run) for run in pack)]
            if left:  # the rest is in other hands: wait, they may drop it
                time.sleep(PAUSE)

    def _claim(self, pack: list[Run]) -> list[Run]:
        """Claim what is open of a pack, or less of it when workers were lost with it before."""
        runs = self.store.claims.take(pack)
        room = [self._room(run, len(runs)) for run in runs]
        if not all(room):
            self._commit([self._given_up(run) for run, size in zip(runs, room, strict=True) if size == 0])
            self.store.claims.release(runs)
            return []
        if runs and min(room) < len(runs):
            self.store.claims.release(runs)
            return self.store.claims.take(runs[: min(room)])
        return runs

    def _room(self, run: Run, pack: int) -> int:
        store, newest = self.store, self.store.checkpoints.newest(run.id)
        return next_pack(store.faults.of(run.id), session=store.session, update=newest, pack=pack)

    def _given_up(self, run: Run) -> RunRecord:
        faults = self.store.faults.of(run.id)
        losses = [fault for fault in faults if fault.cause in LOSSES]
        last = losses[-1]
        said = f"{last.cause}: the worker was lost {len(losses)} times\n{last.detail}"
        counts = {"attempts": self.store.faults.attempt(run.id) - 1, "faults": counted(faults), "pack": 1}
        about = environment(self.settings.device) | self.settings.code_of(run.recipe)
        return crashed(run, said.strip(), about | counts)

    def _train(self, job: Job) -> None:
        runs = job.claimed
        self.listen(Claimed(tuple(run.id for run in runs)))
        with heartbeat(self.store, runs):
            try:
                for records in self.training.records(job):
                    self._commit(records)
            except (Interrupted, ClaimLost):
                self.store.claims.release(runs)
                self.listen(Released(tuple(run.id for run in runs)))
            except FullDisk:
                self.store.faults.note_full_disk(runs)
                self.store.claims.release(runs)
                raise
            except BaseException:
                with contextlib.suppress(StoreError):  # what is already on its way says more
                    self.store.claims.release(runs)
                raise

    def _commit(self, records: list[RunRecord]) -> None:
        self.store.commit(records)
        self.listen(Finished(tuple((record.id, record.status) for record in records)))


def whole_pack(store: Store, pack: list[Run], runs: list[Run]) -> list[Run]:
    """With which runs to train those that were claimed of a pack.

    When the others were trained in this very pack, a record was lost: in the same pack it comes out the same.
    """
    others = set(pack) - set(runs)
    return pack if others and all(_was_in(store, run, pack_id(pack)) for run in others) else runs


def _was_in(store: Store, run: Run, name: str) -> bool:
    with contextlib.suppress(StoreError):
        return store.has(run) and store.read(run.id).provenance.get("pack_id") == name
    return False


@contextmanager
def heartbeat(store: Store, runs: Sequence[Run]) -> Iterator[None]:
    """Keep claims alive from a thread of their own: an epoch may take longer than a claim lives."""
    done = threading.Event()

    def beat() -> None:
        while not done.wait(EXPIRY / 6):
            with contextlib.suppress(StoreError):  # the worker itself meets a bad disk soon enough
                store.claims.heartbeat(list(runs))  # whoever asked may add to them and take away

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
    each filled with zeros: 5 to 8% of a step. Only the GNU C library can be told.
    """
    torch.set_num_threads(1)
    gc.freeze()  # the modules stay: looking through them again and again is 3% of a small step
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(-4, 0)  # M_MMAP_MAX: no block is the system's own
        library.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


def die_with_parent(parent: int) -> None:
    """End this process as soon as the one that started it is gone, however that happened."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
