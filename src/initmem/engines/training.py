"""Train claimed runs whatever happens: resume from checkpoints, and meet every fault by its policy.

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

The first two are met by the worker that comes after (`initmem.engines.worker`).
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from initmem.data.dataset import Dataset
from initmem.data.sources import load
from initmem.engines.engine import EpochEnded, Faulted, Listener, Settings, operations_of
from initmem.engines.provenance import environment, history, with_provenance
from initmem.errors import FullDisk, InitmemError, StoreError
from initmem.recipe import AnyRecipe
from initmem.record import RunRecord, crashed
from initmem.store.faults import Cause, cause_of
from initmem.store.store import Store
from initmem.study import Run
from initmem.train.loop import train_pack
from initmem.train.pack import Checkpoint, Pack
from initmem.train.requirements import Compile, Precision

LOOK_EVERY = 0.05  # seconds between two looks whether to stop or to save: a small step takes a millisecond


# Neither is an Exception: user code may catch those.
class Interrupted(BaseException):
    """The worker was asked to stop; the pack's checkpoint is written."""


class ClaimLost(BaseException):
    """Another worker took the runs over, because this one seemed dead."""


def is_for_engine(error: BaseException) -> bool:
    """Whether what ended training concerns the engine, not the code that raised it: a stop, a lost claim."""
    if isinstance(error, KeyboardInterrupt):
        # A worker process does not hear Ctrl-C: there, user code raised it.
        return signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return isinstance(error, Interrupted | ClaimLost)


def traceback_of(error: BaseException) -> str:
    """The traceback of what ended training, with a word about an exit."""
    said = "".join(traceback.format_exception(error))
    if isinstance(error, SystemExit):
        said += f"SystemExit: {error.code} (the training code called sys.exit or quit)"
    return said


class Job(NamedTuple):
    """Claimed runs, and the pack they are trained in: themselves, or more that have a record already.

    A run whose record was lost is trained in its old pack, so that it comes out the same again.
    """

    claimed: list[Run]
    pack: list[Run]

    @classmethod
    def alone(cls, runs: list[Run]) -> Job:
        """Runs that are trained with each other and nobody else."""
        return cls(runs, runs)


class Training:
    """Trains runs that this process has claimed, and reports events to a listener."""

    def __init__(
        self, store: Store, settings: Settings, *, should_stop: Callable[[], bool], listen: Listener
    ) -> None:
        self.store, self.settings = store, settings
        self.should_stop, self.listen = should_stop, listen

    def records(self, job: Job) -> Iterator[list[RunRecord]]:
        """Yield the records of the claimed runs, all at once or, after a fault, job by job."""
        jobs = [job]
        while jobs:
            job = jobs.pop(0)
            attempt = _Attempt(self, job)
            try:
                records = attempt.train()
            except BaseException as error:  # plugins and pipelines are user code, which may also exit
                if is_for_engine(error) or self._is_mistake(error):
                    raise
                cause = cause_of(error)
                if cause == "full disk":
                    raise FullDisk(f"no room left while training ({error}); all so far is kept") from error
                detail = traceback_of(error)
                self.store.faults.note(job.claimed, cause, detail)
                self.listen(Faulted(cause, tuple(run.id for run in job.claimed)))
                if smaller := self._smaller(job, cause, attempt):
                    jobs = smaller + jobs
                    continue
                records = [self._failed(job.claimed[0], detail)]
            yield records

    def _is_mistake(self, error: BaseException) -> bool:
        """User code may raise what it likes, but a store that fails it fails all."""
        return isinstance(error, InitmemError if self.settings.trainer is None else StoreError)

    def _smaller(self, job: Job, cause: Cause, attempt: _Attempt) -> list[Job]:
        """What to try after a fault, in order; nothing when a run crashed alone."""
        runs = job.claimed
        if cause == "exception" and attempt.stumbled:
            self.store.checkpoints.drop(runs)
            return [job]
        if len(job.pack) > len(runs):
            return [Job.alone(runs)]
        if len(runs) == 1:
            return []
        if cause == "out of memory":
            gc.collect()
            half = (len(runs) + 1) // 2
            return [Job.alone(runs[:half]), Job.alone(runs[half:])]
        return [Job.alone([run]) for run in runs]

    def _failed(self, run: Run, detail: str) -> RunRecord:
        about = environment(self.settings.device) | self.settings.code_of(run.recipe)
        return crashed(run, detail, about | history(self.store, run, [run]))


class _Attempt:
    """One attempt at one job."""

    def __init__(self, training: Training, job: Job) -> None:
        self.training, self.store, self.settings = training, training.store, training.settings
        self.claimed, self.pack = job
        self.resumed = self.moved = False  # continued from checkpoints; finished an epoch
        self.begun: set[Run] = set()  # have shown an epoch, in user code
        self.written = self.looked = time.monotonic()
        self.watchdog = Watchdog(self.settings.timeout)

    @property
    def stumbled(self) -> bool:
        """Whether it continued from checkpoints and got nowhere."""
        return self.resumed and not self.moved

    def train(self) -> list[RunRecord]:
        """Train the pack; return the records of those runs that are claimed."""
        with self.watchdog.watching(self.store, self.claimed):
            records = self._trained()
        claimed = set(self.claimed)
        return [with_provenance(r, self.store, self.pack) for r in records if r.run in claimed]

    def _trained(self) -> list[RunRecord]:
        if self.settings.trainer is not None:
            return self.settings.trainer(self.pack, self._on_row)
        code = self.settings.code_of(self.pack[0].recipe)
        records = train_bundled(
            self.pack,
            device=self.settings.device,
            precision=self.settings.precision,
            compile=self.settings.compile,
            resume=self._checkpoints(),
            on_epoch=self._on_epoch,
            pause=self._should_pause,
            on_pause=self._on_pause,
        )
        return [replace(record, provenance={**record.provenance, **code}) for record in records]

    def _checkpoints(self) -> list[Checkpoint] | None:
        if len(self.pack) > len(self.claimed):
            return None  # some of the pack are done, and have none
        saved = self.store.checkpoints.read(self.claimed)
        self.resumed = saved is not None
        return None if saved is None else [Checkpoint(tensors, meta) for tensors, meta in saved]

    def _on_row(self, run: Run, row: dict[str, float]) -> None:
        """For trainers without checkpoints: asked to stop, they stop after an epoch, and begin anew."""
        if run not in self.claimed:
            return
        if not self.store.claims.owns(run):
            raise ClaimLost
        self.watchdog.calm()
        self.store.live.append(run, row, fresh=run not in self.begun)
        self.begun.add(run)
        if run.recipe.get("epochs"):
            self.training.listen(EpochEnded((run.id,), int(row["epoch"])))
        if self.training.should_stop():
            raise Interrupted

    def _on_epoch(self, pack: Pack) -> None:
        if not all(self.store.claims.owns(run) for run in self.claimed):
            raise ClaimLost
        self.watchdog.calm()
        claimed = set(self.claimed)
        for run, rows in zip(self.pack, pack.history, strict=True):
            if run in claimed:
                self._append(run, rows, fresh=not self.moved)
        self.moved = True
        self.training.listen(EpochEnded(tuple(run.id for run in self.claimed), pack.epoch))
        if self._should_pause() and not pack.finished:
            self._on_pause(pack)

    def _should_pause(self) -> bool:
        """Whether to save the pack before the next batch: asked to stop, or the last checkpoint is old."""
        now = time.monotonic()
        if now - self.looked < LOOK_EVERY:
            return False
        self.looked = now
        return self.training.should_stop() or now - self.written > self.settings.checkpoint_every

    def _on_pause(self, pack: Pack) -> None:
        if not all(self.store.claims.owns(run) for run in self.claimed):
            raise ClaimLost
        self._save(pack)
        if self.training.should_stop():
            raise Interrupted

    def _save(self, pack: Pack) -> None:
        if len(self.pack) == len(self.claimed):
            states = ((saved.tensors, saved.meta) for saved in pack.checkpoint())
            self.store.checkpoints.write(dict(zip(self.claimed, states, strict=True)), pack.updates)
        self.written = time.monotonic()

    def _append(self, run: Run, rows: dict[str, list[float]], *, fresh: bool) -> None:
        """Show the newest epoch; a resumed run shows its earlier ones again first."""
        epochs = len(rows["val_objective"])
        for i in range(epochs) if fresh else range(max(epochs - 1, 0), epochs):
            row = {"epoch": i + 1} | {name: column[i] for name, column in rows.items()}
            self.store.live.append(run, row, fresh=fresh and i == 0)


class Watchdog:
    """Ends this process when no epoch ends for so many seconds; None never does.

    It is a thread of faulthandler's own, which acts even if Python itself is stuck, and writes down where
    every thread stood.
    """

    def __init__(self, seconds: float | None) -> None:
        self.seconds, self._stream = seconds, -1

    @contextlib.contextmanager
    def watching(self, store: Store, runs: Sequence[Run]) -> Iterator[None]:
        """Watch until the block ends."""
        if self.seconds is None:
            yield
            return
        with store.faults.last_words(runs) as stream:
            self._stream = stream.fileno()
            self.calm()
            try:
                yield
            finally:
                faulthandler.cancel_dump_traceback_later()

    def calm(self) -> None:
        """Say that training moves: the time begins anew."""
        if self.seconds is not None:
            faulthandler.dump_traceback_later(self.seconds, exit=True, file=self._stream)


def train_bundled(
    runs: Sequence[Run],
    *,
    device: str = "cpu",
    precision: Precision = "float32",
    compile: Compile = "none",
    resume: Sequence[Checkpoint] | None = None,
    on_epoch: Callable[[Pack], None] | None = None,
    pause: Callable[[], bool] = lambda: False,
    on_pause: Callable[[Pack], None] | None = None,
) -> list[RunRecord]:
    """Train runs of one recipe of a network: bundled, or registered by a plugin."""
    data = dataset(runs[0].recipe)
    with operations_of(device):
        return train_pack(
            runs,
            data,
            device=device,
            precision=precision,
            compile=compile,
            resume=resume,
            on_epoch=on_epoch,
            pause=pause,
            on_pause=on_pause,
        )


@lru_cache(maxsize=2)
def dataset(recipe: AnyRecipe) -> Dataset:
    """Load a recipe's dataset; packs of one recipe tend to follow each other."""
    return load(recipe)
