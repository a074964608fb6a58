"""Trains runs by user code: a function of (init, tracker), in this process or in another one."""

from __future__ import annotations

import functools
import math
import pickle
import random
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from initmem.engines.engine import Trainer
from initmem.engines.worker import is_for_engine, traceback_of
from initmem.errors import ConfigError, StoreError
from initmem.pipeline.init import Init, UntouchedWarning
from initmem.pipeline.source import Fingerprint
from initmem.pipeline.tracker import Row, Tracker
from initmem.record import TESTED, RunRecord, crashed, summarize
from initmem.store.faults import cause_of
from initmem.study import Run

Train = Callable[[Init, Tracker], object]
OnEpoch = Callable[[Run, Row], None]


@dataclass(frozen=True, slots=True)
class PipelineTrainer:
    """Trains runs by a function of user code."""

    train: Train
    fingerprint: Fingerprint

    def __call__(self, runs: list[Run], on_epoch: OnEpoch) -> list[RunRecord]:
        """Train runs, one after the other."""
        about = {"fingerprint": self.fingerprint}
        return [guarded(run, functools.partial(self._one, run, on_epoch), about) for run in runs]

    def _one(self, run: Run, on_epoch: OnEpoch) -> RunRecord:
        started = time.perf_counter()
        init = Init.of(run)
        tracker = Tracker(init, on_epoch=lambda row: on_epoch(run, row))
        with seeded(run.seed_of("order")), warnings.catch_warnings():
            warnings.simplefilter("ignore", UntouchedWarning)  # the notes of the result have it once
            returned = self.train(init, tracker)
        tracker.detach()
        if isinstance(returned, Mapping):
            tracker.finish(**returned)
        return own_record(
            run,
            tracker,
            time.perf_counter() - started,
            fingerprint=self.fingerprint,
            untouched=[name for table in init.tables for name in table.names("other")],
            scale_used=init.used,
        )


@dataclass(frozen=True, slots=True)
class Sent:
    """A trainer on its way to another process, with functions of a notebook or a script.

    It is unpacked where a failure to do so is a crashed run, with its traceback, not a dead worker.
    """

    packed: bytes

    @classmethod
    def pack(cls, trainer: Trainer | None) -> Sent:
        """Pack a trainer; raises what pickling it raises."""
        import cloudpickle

        return cls(cloudpickle.dumps(trainer))

    def __call__(self, runs: list[Run], on_epoch: OnEpoch) -> list[RunRecord]:
        """Train runs."""
        return _unpacked(self.packed)(runs, on_epoch)


@functools.lru_cache(maxsize=1)
def _unpacked(packed: bytes) -> Trainer:
    trainer: Trainer = pickle.loads(packed)
    return trainer


def guarded(run: Run, train: Callable[[], RunRecord], about: Mapping[str, Any]) -> RunRecord:
    """The record of a run, a crashed one if user code raises or exits; `about` joins its provenance.

    What concerns the engine passes through: a stop, a lost claim, a bad store, a full disk, no memory.
    """
    try:
        return train()
    except StoreError:
        raise
    except BaseException as error:
        if is_for_engine(error) or cause_of(error) != "exception":
            raise
        return crashed(run, traceback_of(error), about)


def own_record(run: Run, tracker: Tracker, seconds: float, **about: Any) -> RunRecord:
    """The record of a run of user code, from what its tracker saw; `about` joins its provenance."""
    history, finals = tracker.history, tracker.finals
    if not (history or finals or tracker.diverged):
        raise ConfigError("no epoch was ended and no metric returned (allowed: tracker.end_epoch, a mapping)")
    start = tracker.norm_init if math.isfinite(tracker.norm_init or 0.0) else None
    summary = summarize(history, norm_init=start)
    best = summary.tau_best or 0
    selected = {name: float(history[name][best - 1]) for name in TESTED if name in history} | finals
    tested: dict[str, Any] = {name: selected.get(name) for name in TESTED}
    dropped = {"dropped": tracker.dropped} if tracker.dropped else {}
    return RunRecord(
        run,
        "diverged" if tracker.diverged else "completed",
        replace(summary, **tested),
        history,
        {"device": str(tracker.device or "cpu"), "seconds": round(seconds, 3)} | dropped | about,
        finals={name: value for name, value in finals.items() if name not in TESTED},
    )


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators of Python, NumPy and torch, and restore them afterwards."""
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    random.seed(seed)
    np.random.seed(np.random.SeedSequence(seed).generate_state(8))  # noqa: NPY002
    torch.manual_seed(seed)  # of every device
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.set_rng_state(cpu)
