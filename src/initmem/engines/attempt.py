"""One attempt at training a pack: resume from checkpoints, show every epoch, save, stop when asked to."""

from __future__ import annotations

import contextlib
import faulthandler
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

from initmem.data.dataset import Dataset
from initmem.data.sources import load
from initmem.engines.engine import EpochEnded, Listener, Settings
from initmem.engines.provenance import with_provenance
from initmem.recipe import AnyRecipe
from initmem.record import RunRecord
from initmem.store.faults import Fault
from initmem.store.store import Store
from initmem.study import Run
from initmem.train.loop import train_pack
from initmem.train.pack import Checkpoint, Pack

LOOK_EVERY = 0.05  # seconds between two looks whether to stop or to save: a small step takes a millisecond


# Neither is an Exception: user code may catch those.
class Interrupted(BaseException):
    """The worker was asked to stop; the pack's checkpoint is written."""


class ClaimLost(BaseException):
    """Another worker took the runs over, because this one seemed dead."""


class Attempt:
    """One attempt at the runs of a pack that this process has claimed: all of them, or some.

    The others have a record already: a run whose record was lost is trained in its old pack, so that it comes
    out the same again.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        claimed: list[Run],
        pack: list[Run],
        *,
        should_stop: Callable[[], bool],
        listen: Listener,
    ) -> None:
        self.store, self.settings = store, settings
        self.claimed, self.pack = claimed, pack
        self.should_stop, self.listen = should_stop, listen
        self.resumed = self.advanced = False  # continued from checkpoints; finished an epoch
        self._shown: set[Run] = set()  # runs of user code that have shown an epoch
        self._saved_at = self._looked_at = time.monotonic()
        self._watchdog = Watchdog(settings.timeout)

    def train(self) -> list[RunRecord]:
        """Train the pack; return the records of those runs that are claimed."""
        with self._watchdog.watching(self.store, self.claimed):
            records = self._trained()
        return [self._with_provenance(record) for record in records if record.run in self.claimed]

    def _trained(self) -> list[RunRecord]:
        if self.settings.trainer is not None:
            return self.settings.trainer(self.pack, self._on_row)
        return train_pack(
            self.pack,
            dataset(self.pack[0].recipe),
            device=self.settings.device,
            precision=self.settings.precision,
            resume=self._checkpoints(),
            on_epoch=self._on_epoch,
            pause=self._should_pause,
            on_pause=self._on_pause,
        )

    def _with_provenance(self, record: RunRecord) -> RunRecord:
        """A divergence, and an exception that the trainer itself caught, are not noted in the store yet."""
        new = {"diverged": [Fault("divergence")], "crashed": [Fault("exception")]}.get(record.status, [])
        return with_provenance(record, self.store, self.settings, self.pack, *new)

    def _checkpoints(self) -> list[Checkpoint] | None:
        if len(self.pack) > len(self.claimed):
            return None  # some of the pack are done, and have none
        saved = self.store.checkpoints.read(self.claimed)
        self.resumed = saved is not None
        return None if saved is None else [Checkpoint(tensors, meta) for tensors, meta in saved]

    def _on_row(self, run: Run, row: dict[str, float]) -> None:
        """After an epoch of user code, which has no checkpoints: asked to stop, its run starts again."""
        if run not in self.claimed:
            return
        self._check_claims([run])
        self.store.live.append(run, row, fresh=run not in self._shown)
        self._shown.add(run)
        if run.recipe.get("epochs"):
            self.listen(EpochEnded((run.id,), int(row["epoch"])))
        if self.should_stop():
            raise Interrupted

    def _on_epoch(self, pack: Pack) -> None:
        self._check_claims(self.claimed)
        for run, history in zip(self.pack, pack.history, strict=True):
            if run in self.claimed:
                self._show(run, history)
        self.advanced = True
        self.listen(EpochEnded(tuple(run.id for run in self.claimed), pack.epoch))
        if self._should_pause() and not pack.finished:
            self._on_pause(pack)

    def _should_pause(self) -> bool:
        """Whether to save the pack before the next batch: asked to stop, or the last checkpoint is old."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_EVERY:
            return False
        self._looked_at = now
        return self.should_stop() or now - self._saved_at > self.settings.checkpoint_every

    def _on_pause(self, pack: Pack) -> None:
        if not all(self.store.claims.owns(run) for run in self.claimed):
            raise ClaimLost
        if len(self.pack) == len(self.claimed):
            states = ((saved.tensors, saved.meta) for saved in pack.checkpoint())
            self.store.checkpoints.write(dict(zip(self.claimed, states, strict=True)), pack.updates)
        self._saved_at = time.monotonic()
        if self.should_stop():
            raise Interrupted

    def _check_claims(self, runs: Sequence[Run]) -> None:
        """After an epoch: the runs are still ours, and the time limit starts again."""
        if not all(self.store.claims.owns(run) for run in runs):
            raise ClaimLost
        self._watchdog.restart()

    def _show(self, run: Run, history: dict[str, list[float]]) -> None:
        """Show the newest epoch; a resumed run shows its earlier ones again first."""
        epochs = len(history["val_objective"])
        first = max(epochs - 1, 0) if self.advanced else 0
        for i in range(first, epochs):
            row = {"epoch": i + 1} | {name: column[i] for name, column in history.items()}
            self.store.live.append(run, row, fresh=not self.advanced and i == 0)


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
            self.restart()
            try:
                yield
            finally:
                faulthandler.cancel_dump_traceback_later()

    def restart(self) -> None:
        """Training moves: the time starts again."""
        if self.seconds is not None:
            faulthandler.dump_traceback_later(self.seconds, exit=True, file=self._stream)


@lru_cache(maxsize=2)
def dataset(recipe: AnyRecipe) -> Dataset:
    """Load a recipe's dataset; packs of one recipe tend to follow each other."""
    return load(recipe)
