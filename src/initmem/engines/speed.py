"""How fast this machine trains: short measurements with real steps of real packs."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from initmem.clocks import updates_per_epoch
from initmem.data.dataset import Dataset, Sizes
from initmem.recipe import Recipe
from initmem.study import Run
from initmem.train.flops import SHARPNESS_PASSES, SHARPNESS_SUBSET, flops_per_image

LONGEST_STEP = 2e10  # operations per timed step: a quarter of a second on one core
UPDATES = 3  # per timed epoch
EVALUATIONS = 2  # of one batch, timed apart
SPEED = (
    "model",
    "options",
    "width",
    "norm",
    "optimizer",
    "decay_on",
    "augment",
    "init_mode",
)  # what it depends on
FEWEST_TRIALS, SECONDS_OF_TRIALS = 3, 0.4
QUIET = 1.25  # up to this ratio of elapsed time to processor time, the load of others does not matter


def run_flops(recipe: Recipe, shape: Sizes) -> float:
    """Operations of one run: training, validation after every epoch, one test, and the sharpness."""
    count = flops_per_image(recipe, shape.shape, shape.classes, shape.vocabulary)
    seen = recipe.epochs * shape.n_train
    if recipe.sharpness_every:
        measurements = 1 + recipe.epochs // recipe.sharpness_every
        seen += measurements * SHARPNESS_PASSES * min(shape.n_train, SHARPNESS_SUBSET)
    return float(seen * count.training + _evaluated(recipe, shape) * count.forward)


def _evaluated(recipe: Recipe, shape: Sizes) -> int:
    """Examples that a run evaluates: validation, and the train split where asked for, then the test once."""
    per_epoch = shape.n_val + recipe.train_eval * shape.n_train
    return recipe.epochs * per_epoch + shape.n_test


class Elapsed(NamedTuple):
    """Seconds on a quiet machine, and on this one under its present load."""

    quiet: float
    busy: float

    @classmethod
    def of(cls, cpu: float, wall: float, seconds: float) -> Elapsed:
        """Processor time is what a quiet machine would take; the load of others shows in the elapsed time."""
        slowdown = wall / max(cpu, 1e-9)
        return cls(seconds, seconds * (slowdown if slowdown > QUIET else 1.0))

    def times(self, factor: float) -> Elapsed:
        """For so many times the work."""
        return Elapsed(self.quiet * factor, self.busy * factor)


def timed(work: Callable[[], object]) -> Elapsed:
    """Time a piece of work in this thread."""
    wall, cpu = time.perf_counter(), time.thread_time()
    work()
    cpu = time.thread_time() - cpu
    return Elapsed.of(cpu, time.perf_counter() - wall, cpu)


class Timed(NamedTuple):
    """What a pack takes for one update, for evaluating one example, and for the rest of an epoch."""

    update: Elapsed
    example: Elapsed
    epoch: Elapsed


class Speedometer:
    """The time that one worker takes for a pack, from real steps of real packs; each kind is timed once."""

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        self._known: dict[tuple[object, ...], Timed] = {}

    def measure(self, recipe: Recipe, shape: Sizes, pack: int) -> Elapsed:
        """The time of a whole pack: all updates, validation after every epoch, one test."""
        from initmem.train.batches import evaluation_batch
        from initmem.train.packable import noise

        count = flops_per_image(recipe, shape.shape, shape.classes, shape.vocabulary)
        limit = max(1, int(LONGEST_STEP / count.training / pack))
        asked = min(recipe.batch_size, shape.n_train)
        batch = min(asked, limit)
        evaluated = min(max(shape.n_val, shape.n_test), evaluation_batch(shape, pack, "cpu"), 3 * limit)
        same = _of_the_same_speed(recipe, batch)
        key = (same, shape.shape, shape.classes, shape.vocabulary, shape.labels, evaluated, pack)
        if key not in self._known:
            data = noise(shape, n_train=UPDATES * batch, n_val=1, n_test=evaluated)
            self._known[key] = self._time(same, data, pack)
        known = self._known[key]
        parts = (
            known.update.times(recipe.epochs * updates_per_epoch(recipe, shape.n_train) * asked / batch),
            known.example.times(_evaluated(recipe, shape)),
            known.epoch.times(recipe.epochs),
        )
        quiet, busy = zip(*parts, strict=True)
        return Elapsed(sum(quiet), sum(busy))

    def _time(self, recipe: Recipe, data: Dataset, pack: int) -> Timed:
        """The quickest of several trials counts."""
        import torch

        from initmem.train.loop import evaluate, train_epoch
        from initmem.train.pack import Pack

        torch.set_num_threads(1)
        trial = Pack([Run(recipe, 1.0, seed) for seed in range(pack)], data, device=self.device)
        train_epoch(trial)  # to warm up
        updates: list[float] = []
        epochs: list[float] = []
        started, begun_at = time.perf_counter(), time.thread_time()
        while len(epochs) < FEWEST_TRIALS or sum(epochs) < SECONDS_OF_TRIALS:
            stamps: list[float] = []

            def stamp(stamps: list[float] = stamps) -> bool:
                stamps.append(time.thread_time())
                return False

            begun = time.thread_time()
            train_epoch(trial, stamp)
            epochs.append(time.thread_time() - begun)
            updates += [after - before for before, after in pairwise(stamps)]
        evaluation = min(timed(lambda: evaluate(trial, trial.test)).quiet for _ in range(EVALUATIONS))
        cpu, wall = time.thread_time() - begun_at, time.perf_counter() - started
        update = min(updates)
        rest = max(min(epochs) - UPDATES * update, 0.0)
        each = (update, evaluation / len(data.test), rest)
        return Timed(*(Elapsed.of(cpu, wall, seconds) for seconds in each))


def _of_the_same_speed(recipe: Recipe, batch: int) -> Recipe:
    """One recipe for all that differ from it in nothing that a step takes time for."""
    settings = {name: getattr(recipe, name) for name in SPEED if getattr(recipe, name) is not None}
    switched = {name: 1e-4 if getattr(recipe, name) else 0.0 for name in ("weight_decay", "l2")}
    return Recipe.parse(
        {
            **settings,
            **switched,
            "dataset": "synthetic",
            "learning_rate": 1e-3,
            "batch_size": batch,
            "epochs": 2,
        }
    )
