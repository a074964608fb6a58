"""A worker: pulls packs from the store until none is left. The same in every engine."""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from initmem.data import Dataset, load
from initmem.recipe import Recipe
from initmem.record import RunRecord, failed
from initmem.store import EXPIRY, Store
from initmem.study import Run
from initmem.theory.records import train_linear
from initmem.train.loop import hardware, train_pack
from initmem.train.pack import Checkpoint, Pack

Report = Callable[[str, Any], None]


# What trains runs in place of the bundled loop: it takes runs of one recipe and a function to call after
# every epoch with (run, row of its history), which may raise to stop it.
Trainer = Callable[[list[Run], Callable[[Run, dict[str, float]], None]], list[RunRecord]]


# Neither is an Exception: a user's own training code may catch those.
class Interrupted(BaseException):
    """The worker was asked to stop; the pack's checkpoint is written."""


class ClaimLost(BaseException):
    """Another worker took the runs over, because this one seemed dead."""


class Worker:
    """Trains the packs it can claim. `report(kind, content)` tells whoever watches."""

    def __init__(
        self,
        store: Store,
        *,
        device: str,
        should_stop: Callable[[], bool],
        report: Report,
        checkpoint_every: float,
        trainer: Trainer | None = None,
    ) -> None:
        self.store, self.device, self.trainer = store, device, trainer
        self.should_stop, self.report = should_stop, report
        self.checkpoint_every = checkpoint_every

    def work(self, packs: Sequence[list[Run]]) -> None:
        """Return when every run of every pack has a record, or when asked to stop."""
        left = list(packs)
        while left:
            for pack in left:
                if self.should_stop():
                    return
                runs = self.store.claim(pack)
                if runs:
                    self._train_claimed(runs)
            left = [pack for pack in left if not all(self.store.has(run) for run in pack)]
            if left:  # the rest is in other hands: wait, they may drop it
                time.sleep(1.0)

    def _train_claimed(self, runs: list[Run]) -> None:
        self.report("claimed", [run.id for run in runs])
        with heartbeat(self.store, runs):
            try:
                records = self._train(runs)
            except (Interrupted, ClaimLost):
                self.store.release(runs)
                self.report("released", [run.id for run in runs])
                return
            self.store.commit(records)
        self.report("done", [(record.id, record.status) for record in records])

    def _train(self, runs: list[Run]) -> list[RunRecord]:
        """Train a pack; if it raises, train its runs one by one, so that each answers for itself."""
        attempt = self.store.attempt(runs[0])
        try:
            records = self._trained(runs)
            return [_with(record, attempts=attempt) for record in records]
        except (Interrupted, ClaimLost):
            raise
        except Exception:
            if len(runs) > 1:
                return [record for run in runs for record in self._train([run])]
            return [failed(runs[0], traceback.format_exc(), {"attempts": attempt, "pack": 1})]

    def _trained(self, runs: list[Run]) -> list[RunRecord]:
        """Train by what the recipe's network asks for."""
        if self.trainer is not None:
            return self.trainer(runs, self._row_watcher())
        if runs[0].recipe.model == "linear":  # seconds of work at the most: no checkpoint is worth it
            processor = hardware(torch.device("cpu"))
            return [_with(record, hardware=processor) for record in train_linear(runs)]
        return train_pack(
            runs,
            dataset(runs[0].recipe),
            device=self.device,
            resume=self._checkpoints(runs),
            on_epoch=self._watcher(runs),
        )

    def _checkpoints(self, runs: list[Run]) -> list[Checkpoint] | None:
        found = self.store.read_checkpoints(runs)
        return None if found is None else [Checkpoint(tensors, meta) for tensors, meta in found]

    def _watcher(self, runs: list[Run]) -> Callable[[Pack], None]:
        written = time.monotonic()
        first = True

        def on_epoch(pack: Pack) -> None:
            nonlocal written, first
            if not all(self.store.owns(run) for run in runs):
                raise ClaimLost
            for run, rows in zip(runs, pack.history, strict=True):
                self._append(run, rows, fresh=first)
            first = False
            self.report("epoch", ([run.id for run in runs], pack.epoch))
            stop = self.should_stop() and not pack.finished
            if stop or time.monotonic() - written > self.checkpoint_every:
                saved = dict(zip(runs, ((c.tensors, c.meta) for c in pack.checkpoint()), strict=True))
                self.store.write_checkpoints(saved, pack.epoch)
                written = time.monotonic()
            if stop:
                raise Interrupted

        return on_epoch

    def _row_watcher(self) -> Callable[[Run, dict[str, float]], None]:
        """For trainers that keep no checkpoints: asked to stop, they stop after an epoch, and begin anew."""
        begun: set[Run] = set()

        def on_epoch(run: Run, row: dict[str, float]) -> None:
            if not self.store.owns(run):
                raise ClaimLost
            self.store.append_history(run, row, fresh=run not in begun)
            begun.add(run)
            if run.recipe.known()["epochs"]:
                self.report("epoch", ([run.id], int(row["epoch"])))
            if self.should_stop():
                raise Interrupted

        return on_epoch

    def _append(self, run: Run, rows: dict[str, list[float]], *, fresh: bool) -> None:
        """Show the newest epoch; a continued run shows its earlier ones again first."""
        epochs = len(rows["val_loss"])
        for i in range(epochs) if fresh else range(max(epochs - 1, 0), epochs):
            row = {"epoch": i + 1} | {name: column[i] for name, column in rows.items()}
            self.store.append_history(run, row, fresh=fresh and i == 0)


@lru_cache(maxsize=2)
def dataset(recipe: Recipe) -> Dataset:
    """Load a recipe's dataset; packs of one recipe tend to follow each other."""
    return load(recipe)


@contextmanager
def heartbeat(store: Store, runs: Sequence[Run]) -> Iterator[None]:
    """Keep claims alive from a thread of their own: an epoch may take longer than a claim lives."""
    done = threading.Event()

    def beat() -> None:
        while not done.wait(EXPIRY / 6):
            store.heartbeat(runs)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def die_with_parent(parent: int) -> None:
    """End this process as soon as the one that started it is gone, however that happened."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _with(record: RunRecord, **more: Any) -> RunRecord:
    return replace(record, provenance={**record.provenance, **more})
