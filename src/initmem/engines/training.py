"""Train runs that are claimed, whatever happens: go on from checkpoints, and meet every fault by its policy.

    lost worker    another worker tries again, from the second loss on in halved packs; a run that is lost
                   three times alone is recorded as failed
    timeout        the same, and twice alone is enough
    out of memory  the pack is trained in halves; a run for which there is no room alone is recorded as failed
    exception      a checkpoint that does not fit is dropped, else the pack's runs are trained one by one, so
                   that each answers for itself; the one that raises alone is recorded as failed
    divergence     a result, recorded
    full disk      everything stops; nothing that was committed is lost
    a mistake      of the user, any `InitmemError`: everything stops with its one line (in training code of
                   a user's own, a `StoreError` alone)

The first two are the business of the worker that comes after (`initmem.engines.worker`).
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from initmem.engines.bundled import train_bundled
from initmem.engines.settings import Settings
from initmem.errors import FullDisk, InitmemError, StoreError
from initmem.recipe import content_id
from initmem.store.faults import Cause, Fault, cause_of, counted
from initmem.store.record import RunRecord, failed
from initmem.store.store import Store
from initmem.study import Run
from initmem.train.pack import Checkpoint, Pack

Report = Callable[[str, Any], None]


# Neither is an Exception: a user's own training code may catch those.
class Interrupted(BaseException):
    """The worker was asked to stop; the pack's checkpoint is written."""


class ClaimLost(BaseException):
    """Another worker took the runs over, because this one seemed dead."""


class Training:
    """Trains runs that this process has claimed. `report(kind, content)` tells whoever watches."""

    def __init__(
        self, store: Store, settings: Settings, *, should_stop: Callable[[], bool], report: Report
    ) -> None:
        self.store, self.settings = store, settings
        self.should_stop, self.report = should_stop, report

    def records(self, runs: Sequence[Run], team: Sequence[Run]) -> Iterator[list[RunRecord]]:
        """Yield the records of claimed runs, all at once or, after a fault, part by part.

        They are trained in the company of the `team`, of which they are a part.
        """
        parts = [(list(runs), list(team))]
        while parts:
            part, team = parts.pop(0)
            attempt = _Try(self, part, team)
            try:
                found = attempt.train()
            except Exception as error:
                if self._is_mistake(error):
                    raise
                said, cause = traceback.format_exc(), cause_of(error)
                if cause == "full disk":
                    raise FullDisk(f"no room left while training ({error}); all so far is kept") from error
                self.store.note_fault(part, cause, said)
                self.report("fault", (cause, [run.id for run in part]))
                found = None
            if found is not None:
                yield found
            elif smaller := self._smaller(part, team, cause, attempt):
                parts = smaller + parts
            else:
                yield [failed(part[0], said, self.provenance(part[0], part))]

    def _is_mistake(self, error: Exception) -> bool:
        """Training code of a user's own may raise what it likes, but a store that fails it fails all."""
        return isinstance(error, InitmemError if self.settings.trainer is None else StoreError)

    def _smaller(
        self, part: list[Run], team: list[Run], cause: Cause, attempt: _Try
    ) -> list[tuple[list[Run], list[Run]]]:
        """What to try after a fault, as (runs, their company) in order; nothing when it was a run alone."""
        if cause == "exception" and attempt.stumbled:
            self.store.drop_checkpoints(part)
            return [(part, team)]
        if len(team) > len(part):
            return [(part, part)]
        if len(part) == 1:
            return []
        if cause == "out of memory":
            gc.collect()
            half = (len(part) + 1) // 2
            pieces = [part[:half], part[half:]]
        else:
            pieces = [[run] for run in part]
        return [(piece, piece) for piece in pieces]

    def provenance(self, run: Run, team: Sequence[Run], *more: Fault) -> dict[str, Any]:
        """What the store knows of how a run came to its record."""
        faults = [*self.store.faults(run), *more]
        return {
            "pack": len(team),
            "company": company(team),
            "attempts": self.store.attempt(run),
            "faults": counted(faults),
        }


class _Try:
    """One try at one pack."""

    def __init__(self, training: Training, runs: list[Run], team: list[Run]) -> None:
        self.training, self.store, self.settings = training, training.store, training.settings
        self.runs, self.team = runs, team
        self.resumed = self.moved = False  # went on from checkpoints; finished an epoch
        self.begun: set[Run] = set()  # have shown an epoch, in training of a user's own
        self.written = time.monotonic()

    @property
    def stumbled(self) -> bool:
        """Whether it went on from checkpoints and got nowhere."""
        return self.resumed and not self.moved

    def train(self) -> list[RunRecord]:
        """Train the team; return the records of those that are claimed."""
        with _watchdog(self.store, self.runs, self.settings.timeout) as self.still_alive:
            if self.settings.trainer is not None:
                found = self.settings.trainer(self.team, self._on_row)
            else:
                found = train_bundled(
                    self.team,
                    device=self.settings.device,
                    precision=self.settings.precision,
                    resume=self._checkpoints(),
                    on_epoch=self._on_epoch,
                )
        wanted = set(self.runs)
        return [self._noted(record) for record in found if record.run in wanted]

    def _noted(self, record: RunRecord) -> RunRecord:
        faults = {"diverged": [Fault("divergence")], "failed": [Fault("exception")]}.get(record.status, [])
        return record.noted(**self.training.provenance(record.run, self.team, *faults))

    def _checkpoints(self) -> list[Checkpoint] | None:
        if len(self.team) > len(self.runs):
            return None  # some of the team are done, and have none
        found = self.store.read_checkpoints(self.runs)
        self.resumed = found is not None
        return None if found is None else [Checkpoint(tensors, meta) for tensors, meta in found]

    def _on_row(self, run: Run, row: dict[str, float]) -> None:
        """For trainers that keep no checkpoints: asked to stop, they stop after an epoch, and begin anew."""
        if run not in self.runs:
            return
        if not self.store.owns(run):
            raise ClaimLost
        self.still_alive()
        self.store.append_history(run, row, fresh=run not in self.begun)
        self.begun.add(run)
        if run.recipe.get("epochs"):
            self.training.report("epoch", ([run.id], int(row["epoch"])))
        if self.training.should_stop():
            raise Interrupted

    def _on_epoch(self, pack: Pack) -> None:
        if not all(self.store.owns(run) for run in self.runs):
            raise ClaimLost
        self.still_alive()
        claimed = set(self.runs)
        for run, rows in zip(self.team, pack.history, strict=True):
            if run in claimed:
                self._append(run, rows, fresh=not self.moved)
        self.moved = True
        self.training.report("epoch", ([run.id for run in self.runs], pack.epoch))
        stop = self.training.should_stop() and not pack.finished
        if stop or time.monotonic() - self.written > self.settings.checkpoint_every:
            self._save(pack)
        if stop:
            raise Interrupted

    def _save(self, pack: Pack) -> None:
        if len(self.team) == len(self.runs):
            saved = dict(zip(self.runs, ((c.tensors, c.meta) for c in pack.checkpoint()), strict=True))
            self.store.write_checkpoints(saved, pack.epoch)
        self.written = time.monotonic()

    def _append(self, run: Run, rows: dict[str, list[float]], *, fresh: bool) -> None:
        """Show the newest epoch; a continued run shows its earlier ones again first."""
        epochs = len(rows["val_loss"])
        for i in range(epochs) if fresh else range(max(epochs - 1, 0), epochs):
            row = {"epoch": i + 1} | {name: column[i] for name, column in rows.items()}
            self.store.append_history(run, row, fresh=fresh and i == 0)


def company(team: Sequence[Run]) -> str:
    """An id for runs that were trained together, in this order."""
    return content_id({"runs": [run.id for run in team]})


@contextlib.contextmanager
def _watchdog(store: Store, runs: Sequence[Run], seconds: float | None) -> Iterator[Callable[[], None]]:
    """End this process when no epoch ends for so long: give a function to call after each.

    The dog is a thread of faulthandler's own, which bites even if Python itself is stuck, and writes down
    where every thread stood.
    """
    if seconds is None:
        yield lambda: None
        return
    with store.last_words(runs) as stream:

        def still_alive() -> None:
            faulthandler.dump_traceback_later(seconds, exit=True, file=stream)

        still_alive()
        try:
            yield still_alive
        finally:
            faulthandler.cancel_dump_traceback_later()
