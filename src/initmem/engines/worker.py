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

import gc
import math
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache

from initmem import register
from initmem.data.sources import load
from initmem.engines.engine import (
    Claimed,
    EpochEnded,
    Faulted,
    Finished,
    Listener,
    Released,
    Settings,
    ignore,
)
from initmem.engines.provenance import crash_record, lost_workdir, with_provenance
from initmem.errors import FullDisk, InitmemError, StoreError
from initmem.record import RunRecord
from initmem.store.faults import LOSSES, Cause, cause_of, next_pack
from initmem.store.store import Store
from initmem.study import Run
from initmem.train.loop import train_pack
from initmem.train.pack import Checkpoint, Pack

SHORTEST_PAUSE, PAUSE = 0.05, 1.0  # seconds between two looks at packs that other workers have claimed
LOOK_EVERY = 0.05  # seconds between two looks whether to stop or to save: a small step takes a millisecond
SHOW_EVERY = 0.25  # seconds between two writes of the epochs of a pack, for those who watch

dataset = lru_cache(maxsize=2)(load)  # packs of one recipe tend to follow each other


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
        left, pause = list(packs), SHORTEST_PAUSE
        while left:
            for pack in left:
                if self.should_stop():
                    return
                if claimed := self._claim(pack):
                    self._train(claimed)
                    pause = SHORTEST_PAUSE
            left = [pack for pack in left if not all(self.store.has(run) for run in pack)]
            if left:  # other workers have the rest: wait, they may drop it
                time.sleep(min(pause, PAUSE))
                pause *= 2

    def _claim(self, pack: list[Run]) -> list[Run]:
        """Claim the open runs of a pack; fewer of them, or none, if workers were lost with them before."""
        store = self.store
        runs = store.claims.take(pack)
        room = {}  # in packs of how many each may be tried after its losses; 0 gives it up
        for run in runs:
            faults, newest = store.faults.of(run.id), store.checkpoints.newest(run.id)
            room[run] = next_pack(faults, session=store.session, update=newest, pack=len(runs))
        if lost := [run for run in runs if room[run] == 0]:
            self._commit([self._given_up(run) for run in lost])
            store.claims.release(runs)
            return []
        if runs and (size := min(room.values())) < len(runs):
            store.claims.release(runs)
            return store.claims.take(runs[:size])
        return runs

    def _given_up(self, run: Run) -> RunRecord:
        losses = [fault for fault in self.store.faults.of(run.id) if fault.cause in LOSSES]
        what = f"the worker was lost {len(losses)} times"
        if losses[-1].cause == "timeout":
            seconds = f"{self.settings.timeout:g} s" if self.settings.timeout else "the time limit"
            what = f"{run.recipe.get('pipeline') or 'training'} ended no epoch within {seconds} ({what})"
        error = f"{losses[-1].detail}\n{losses[-1].cause}: {what}"  # its last line is the cause
        record = crash_record(run, error.strip(), self.store, self.settings, lost_workdir(run.id))
        # This worker does not try it again.
        return replace(record, provenance={**record.provenance, "attempts": len(losses)})

    def _train(self, pack: list[Run]) -> None:
        """Train claimed runs while their claims are kept alive; give back what is left of them."""
        ids = tuple(run.id for run in pack)
        self.listen(Claimed(ids))
        with self.store.claims.kept_alive(pack):
            try:
                self._train_and_commit(pack)
            except (Interrupted, ClaimLost):
                self.listen(Released(ids))
            finally:
                with suppress(StoreError):  # the first error tells more
                    self.store.claims.release(pack)

    def _train_and_commit(self, pack: list[Run]) -> None:
        """Commit the records of a pack, all at once or, after a fault, of one part of it after the other."""
        left = [pack]
        while left:
            attempt = Attempt(self, left.pop(0))
            try:
                records = attempt.train()
            except BaseException as error:  # plugins and pipelines are user code, which may also exit
                if is_for_engine(error, InitmemError if self.settings.trainer is None else StoreError):
                    raise
                cause, detail = self._note(attempt.pack, error)
                if parts := self._parts(attempt, cause):
                    self.listen(Faulted(cause, tuple(run.id for run in attempt.pack)))
                    left = parts + left
                    continue
                about = getattr(error, "provenance", {})  # what the trainer noted on its way out
                records = [crash_record(attempt.pack[0], detail, self.store, self.settings, about)]
            self._commit(records)

    def _note(self, runs: list[Run], error: BaseException) -> tuple[Cause, str]:
        """Write down a fault of claimed runs; return its cause and its traceback."""
        cause, detail = cause_of(error), "".join(traceback.format_exception(error))
        if cause == "full disk":
            raise FullDisk(f"no room left while training ({error}); all so far is kept") from error
        if isinstance(error, SystemExit):
            detail += f"SystemExit: {error.code} (the training code called sys.exit or quit)"
        self.store.faults.note(runs, cause, detail)
        return cause, detail

    def _parts(self, attempt: Attempt, cause: Cause) -> list[list[Run]]:
        """The packs to try after a fault, in order; none when a run crashed alone."""
        pack = attempt.pack
        if cause == "exception" and attempt.resumed and not attempt.advanced:
            self.store.checkpoints.drop(pack)
            return [pack]
        if len(pack) == 1:
            return []
        if cause == "out of memory":
            gc.collect()
            half = (len(pack) + 1) // 2
            return [pack[:half], pack[half:]]
        return [[run] for run in pack]

    def _commit(self, records: list[RunRecord]) -> None:
        self.store.commit(records)
        self.listen(Finished(tuple((record.id, record.status) for record in records)))


# Neither is an Exception: user code may catch those.
class Interrupted(BaseException):
    """The worker was asked to stop; the pack's checkpoint is written."""


class ClaimLost(BaseException):
    """Another worker took the runs over, because this one seemed dead."""


def is_for_engine(error: BaseException, mistake: type[InitmemError] = StoreError) -> bool:
    """A stop, a lost claim, or a mistake. User code may raise what it likes, except for a bad store."""
    if isinstance(error, KeyboardInterrupt):
        # A worker process ignores Ctrl-C: there, user code raised it.
        return signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return isinstance(error, (Interrupted, ClaimLost, mistake))


class Attempt:
    """One attempt at a pack that a worker has claimed."""

    def __init__(self, worker: Worker, pack: list[Run]) -> None:
        self.store, self.settings = worker.store, worker.settings
        self.should_stop, self.listen = worker.should_stop, worker.listen
        self.pack = pack
        self.resumed = self.advanced = False  # continued from checkpoints; finished an epoch
        self._shown: set[Run] = set()  # runs of user code that have shown an epoch
        self._epochs_shown = 0  # of the pack
        self._shown_at = -math.inf
        self._saved_at = self._looked_at = time.monotonic()
        self._restart_limit: Callable[[], None] = lambda: None

    def train(self) -> list[RunRecord]:
        """Train the pack; return its records."""
        with self.store.faults.time_limit(self.settings.timeout, self.pack) as self._restart_limit:
            if self.settings.trainer is not None:
                records = self.settings.trainer(self.pack, self._on_row)
            else:
                data, saved = dataset(self.pack[0].recipe), self.store.checkpoints.read(self.pack)
                self.resumed = saved is not None
                records = train_pack(
                    self.pack,
                    data,
                    device=self.settings.device,
                    resume=None if saved is None else [Checkpoint(*one) for one in saved],
                    on_epoch=self._on_epoch,
                    pause=self._should_pause,
                    on_pause=self._on_pause,
                    on_parent=self._on_parent,
                )
        return [with_provenance(record, self.store, self.settings, self.pack) for record in records]

    def _on_row(self, run: Run, row: dict[str, float]) -> None:
        """After an epoch of user code, which has no checkpoints: asked to stop, its run starts again."""
        self._check_claims([run])
        self._restart_limit()
        self.store.live.append(run, [row], fresh=run not in self._shown)
        self._shown.add(run)
        if run.recipe.get("epochs"):
            self.listen(EpochEnded((run.id,), int(row["epoch"])))
        self._stop_if_asked()

    def _on_epoch(self, pack: Pack) -> None:
        self._restart_limit()
        self.advanced = True
        if time.monotonic() - self._shown_at >= SHOW_EVERY or pack.finished:
            self._check_claims(self.pack)
            self._show(pack)
        self.listen(EpochEnded(tuple(run.id for run in self.pack), pack.epoch))
        if self._should_pause() and not pack.finished:
            self._on_pause(pack)

    def _show(self, pack: Pack) -> None:
        """Write the new epochs for those who watch; a resumed run shows its earlier ones again."""
        for run, history in zip(self.pack, pack.history, strict=True):
            new = range(self._epochs_shown, len(history["val_objective"]))
            rows = [{"epoch": i + 1} | {name: column[i] for name, column in history.items()} for i in new]
            self.store.live.append(run, rows, fresh=self._epochs_shown == 0)
        self._epochs_shown, self._shown_at = pack.epoch, time.monotonic()

    def _should_pause(self) -> bool:
        """Whether to save the pack before the next batch: asked to stop, or the last checkpoint is old."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_EVERY:
            return False
        self._looked_at = now
        return self.should_stop() or now - self._saved_at > self.settings.checkpoint_every

    def _on_pause(self, pack: Pack) -> None:
        self._check_claims(self.pack)
        self.store.checkpoints.write(dict(zip(self.pack, pack.checkpoint(), strict=True)), pack.updates)
        self._saved_at = time.monotonic()
        self._stop_if_asked()

    def _on_parent(self, parents: Pack) -> None:
        """After an epoch or a pause of the runs that others begin from: asked to stop, they start again."""
        self._check_claims(self.pack)
        self._restart_limit()
        self._saved_at = time.monotonic()
        self._stop_if_asked()

    def _check_claims(self, runs: Sequence[Run]) -> None:
        if not all(self.store.claims.owns(run) for run in runs):
            raise ClaimLost

    def _stop_if_asked(self) -> None:
        if self.should_stop():
            raise Interrupted
