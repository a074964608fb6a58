"""What a study will cost, before it is run: operations are counted, speed is measured with real packs."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from initmem.clocks import clocks, updates_per_epoch
from initmem.data.dataset import Sizes
from initmem.data.sources import sizes
from initmem.engines.engine import cores
from initmem.engines.packs import pack_size, packs
from initmem.recipe import AnyRecipe, Recipe
from initmem.record import COLUMNS, MOST_EPOCHS, MOST_INITIAL, MOST_PREDICTIONS, RunRecord, summarize
from initmem.store.encoding import encode
from initmem.study import Run, Study
from initmem.study_file import bundled, load_study, presets
from initmem.train.requirements import flops_per_image, notes_of

# The share of a matrix product's rate that training reaches: of plain modules, and the largest with layers in
# C, which need fewer operations than are counted; half of it at so many operations per image, layer and pack.
SHARE_OF_MODULES, LARGEST_SHARE, HALF_SPEED = 0.2, 2.0, 2.2e6
FIRST = "quickstart"  # of the studies that are listed
START = 3.0  # seconds until a worker trains: it starts Python and imports PyTorch


@dataclass(frozen=True, slots=True)
class RecipePlan:
    """The cost of one recipe."""

    recipe: str
    runs: int
    pack: int
    updates: int  # per run
    flops: float  # of all its runs
    hours: float  # here, on all workers of a quiet machine
    clock_sgd: float
    clock_l2: float
    clock_adaptive: float
    note: str = ""  # why its runs are trained alone, what the scale leaves as it is


@dataclass(frozen=True, slots=True)
class Plan:
    """The cost of a study."""

    study: str
    preset: str
    runs: int
    recipes: int
    cells: int  # recipes x scales
    updates: int
    flops: float
    disk_bytes: int
    workers: int
    hours_here: float  # on this machine, if nothing else runs
    rows: tuple[RecipePlan, ...]


def plan(study: Study, *, workers: int) -> Plan:
    """Plan a study; real training steps tell the speed of this machine."""
    packed = packs(study, workers=workers)
    kinds = {_kind(pack) for pack in packed}
    times = {(recipe, size): pack_seconds(recipe.network, sizes(recipe), size) for recipe, size in kinds}
    rows = [
        _row(label, recipe, packed, times, workers)
        for label, recipe in zip(study.labels(), study.recipes, strict=True)
    ]
    here = _makespan([times[_kind(pack)] for pack in packed], workers)
    return Plan(
        study=study.name,
        preset=study.preset,
        runs=len(study.all_runs()),
        recipes=len(study.recipes),
        cells=len(study.recipes) * len(study.levels),
        updates=sum(row.updates * row.runs for row in rows),
        flops=study_flops(study),
        disk_bytes=sum(row.runs * record_bytes(r) for row, r in zip(rows, study.recipes, strict=True)),
        workers=workers,
        hours_here=here / 3600,
        rows=tuple(rows),
    )


def _kind(pack: list[Run]) -> tuple[AnyRecipe, int]:
    return pack[0].recipe, len(pack)


def _makespan(times: Sequence[float], workers: int) -> float:
    """Seconds until the last pack is done: each goes to the first free worker; workers may share cores."""
    shared = max(1.0, workers / cores())
    free_at = [0.0] * workers
    for seconds in times:
        heapq.heapreplace(free_at, free_at[0] + seconds * shared)
    return START + max(free_at)


def _row(
    label: str,
    recipe: AnyRecipe,
    packed: Sequence[list[Run]],
    times: dict[tuple[AnyRecipe, int], float],
    workers: int,
) -> RecipePlan:
    """The plan of one recipe, from the packs that its runs are in."""
    shares = [(pack, n) for pack in packed if (n := sum(run.recipe == recipe for run in pack))]
    runs = sum(n for _, n in shares)
    network, of = recipe.network, sizes(recipe)
    at_end = clocks(network, of.n_train).at_end()
    seconds = sum(times[_kind(pack)] * n / len(pack) for pack, n in shares)
    notes = notes_of(network, of)
    if any(run.is_warm for pack, _ in shares for run in pack):
        notes.append("warm runs first train on half of the data, which is not counted")
    return RecipePlan(
        recipe=label,
        runs=runs,
        pack=max(len(pack) for pack, _ in shares),
        updates=network.epochs * updates_per_epoch(network, of.n_train),
        flops=runs * run_flops(network, of),
        hours=seconds / min(workers, cores()) / 3600,
        clock_sgd=at_end["sgd"],
        clock_l2=at_end["l2"],
        clock_adaptive=at_end["adaptive"],
        note="; ".join(notes),
    )


def record_bytes(recipe: AnyRecipe) -> int:
    """The size of one record, from a record of as many epochs and predictions with full-length numbers."""
    rng, epochs = np.random.default_rng(0), recipe.get("epochs") or 1
    history = {name: rng.random(epochs) for name in COLUMNS}
    summary = summarize(history, norm_init=rng.random(), test_accuracy=rng.random(), test_loss=rng.random())
    arrays: dict[str, Any] = {}
    if isinstance(recipe, Recipe):
        of = sizes(recipe)
        for name, most in (("predictions", MOST_PREDICTIONS), ("initial_predictions", MOST_INITIAL)):
            arrays[name] = rng.integers(0, of.classes, min(of.n_test * of.labels, most))
        layers = flops_per_image(recipe, of.shape, of.classes, of.vocabulary).layers
        kept = [rng.random(min(epochs, MOST_EPOCHS)).round(5) for _ in range(2 * layers)]
        arrays |= {f"norm:residual1.{i}": column for i, column in enumerate(kept)}
    return len(encode(RunRecord(Run(recipe, 1.0, 0), "completed", summary, history, {}, arrays=arrays)))


def study_rows(names: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """A row per study and preset, of all bundled studies unless named; the default preset comes first."""
    loaded = [
        (load_study(name, preset), about, i == 0)
        for name in names or sorted(bundled(), key=lambda name: (name != FIRST, name))
        for i, (preset, about) in enumerate(presets(name).items())
    ]
    hours = rough_hours([study for study, _, _ in loaded], cores())
    return [
        {
            "study": study.name,
            "title": study.title,
            "preset": study.preset,
            "default": default,
            "recipes": len(study.recipes),
            "scales": len(study.levels),
            "seeds": len(study.seeds),
            "runs": len(study.all_runs()),
            "flops": study_flops(study),
            "hours_here": here,
            "about": about,
        }
        for (study, about, default), here in zip(loaded, hours, strict=True)
    ]


def rough_hours(studies: Sequence[Study], workers: int) -> list[float]:
    """Hours on this machine from counted operations alone: a rough guide, without any training step."""
    rate = workers * matmul_rate()
    return [
        (START + sum(_work(recipe, len(study.runs(recipe))) for recipe in _networks(study)) / rate) / 3600
        for study in studies
    ]


def _work(recipe: Recipe, runs: int) -> float:
    """Operations of a matrix product that takes as long as these runs; packs take as long when not full."""
    shape = sizes(recipe)
    pack = pack_size(recipe, shape)
    return -(-runs // pack) * pack * run_flops(recipe, shape) / efficiency(recipe)


def efficiency(recipe: Recipe) -> float:
    """The share of a matrix product's rate that training reaches: small layers wait for memory and Python.

    It grows with the operations of a layer. Fitted to the networks of benchmarks/efficiency.py, of which none
    is off by more than a factor of 1.5.
    """
    if recipe.is_module:
        return SHARE_OF_MODULES
    shape = sizes(recipe)
    count = flops_per_image(recipe, shape.shape, shape.classes, shape.vocabulary)
    each = pack_size(recipe, shape) * count.forward / count.layers
    return LARGEST_SHARE * each / (each + HALF_SPEED)


def study_flops(study: Study) -> float:
    """Operations of all runs of a study; what a pipeline computes only its own code knows: 0."""
    return float(sum(run_flops(r, sizes(r)) * len(study.runs(r)) for r in _networks(study)))


def _networks(study: Study) -> list[Recipe]:
    return [recipe.network for recipe in study.recipes if not recipe.is_pipeline]


def matmul_rate(side: int = 768) -> float:
    """Operations per second of a float32 matrix product on one core, the best of a few."""
    from threadpoolctl import threadpool_limits

    a: Any = np.random.default_rng(0).random((side, side), dtype=np.float32)
    with threadpool_limits(1):
        return 2 * side**3 / min(timed(lambda: a @ a) for _ in range(6))


LONGEST_STEP = 2e10  # operations per timed step: a quarter of a second on one core
LONGEST_EPOCH, MOST_UPDATES = 3e10, 20  # operations and updates per timed epoch
EVALUATIONS = 2  # of one batch, timed apart
# The fields of a recipe that the speed depends on.
SPEED = ("model", "options", "width", "mup_base", "norm", "optimizer", "decay_on", "augment", "init_mode")
FEWEST_TRIALS, SECONDS_OF_TRIALS = 3, 0.4


def run_flops(recipe: Recipe, shape: Sizes) -> float:
    """Operations of one run: training, validation after every epoch, one test."""
    count = flops_per_image(recipe, shape.shape, shape.classes, shape.vocabulary)
    seen = recipe.epochs * shape.n_train
    return float(seen * count.training + _evaluated(recipe, shape) * count.forward)


def _evaluated(recipe: Recipe, shape: Sizes) -> int:
    """Examples that a run evaluates: validation, and the train split where asked for, then the test once."""
    per_epoch = shape.n_val + recipe.train_eval * shape.n_train
    return recipe.epochs * per_epoch + shape.n_test


def timed(work: Callable[[], object]) -> float:
    """The processor time of a piece of work in this thread: what a quiet machine would take for it."""
    started = time.thread_time()
    work()
    return time.thread_time() - started


def pack_seconds(recipe: Recipe, shape: Sizes, pack: int) -> float:
    """The time of one worker for a whole pack: all updates, validation after every epoch, one test."""
    from initmem.train.pack import evaluation_batch

    step = flops_per_image(recipe, shape.shape, shape.classes, shape.vocabulary).training * pack
    limit = max(1, int(LONGEST_STEP / step))
    asked = min(recipe.batch_size, shape.n_train)
    batch = min(asked, limit)
    updates = updates_per_epoch(recipe, shape.n_train)
    tried = min(updates, MOST_UPDATES, max(2, int(LONGEST_EPOCH / step / batch)))
    evaluated = min(max(shape.n_val, shape.n_test), evaluation_batch(shape, pack, "cpu"), 3 * limit)
    small = shape._replace(n_train=tried * batch, n_val=1, n_test=evaluated)
    epoch, evaluation = _trial(_of_the_same_speed(recipe, batch), small, pack)
    epochs = recipe.epochs * epoch * updates / tried * asked / batch
    return epochs + evaluation / evaluated * _evaluated(recipe, shape)


@lru_cache
def _trial(recipe: Recipe, shape: Sizes, pack: int) -> tuple[float, float]:
    """Seconds that a pack takes for one epoch, and to evaluate the test split; the quickest of several."""
    import torch

    from initmem.data.dataset import noise
    from initmem.train.loop import evaluate, train_epoch
    from initmem.train.pack import Pack

    torch.set_num_threads(1)
    data = noise(shape, n_train=shape.n_train, n_val=shape.n_val, n_test=shape.n_test)
    trial = Pack([Run(recipe, 1.0, seed) for seed in range(pack)], data)
    train_epoch(trial)  # to warm up
    epochs: list[float] = []
    while len(epochs) < FEWEST_TRIALS or sum(epochs) < SECONDS_OF_TRIALS:
        epochs.append(timed(lambda: train_epoch(trial)))
    return min(epochs), min(timed(lambda: evaluate(trial, trial.test)) for _ in range(EVALUATIONS))


def _of_the_same_speed(recipe: Recipe, batch: int) -> Recipe:
    """One recipe for all that differ from it in nothing that a step takes time for."""
    settings = {name: getattr(recipe, name) for name in SPEED if getattr(recipe, name) is not None}
    switched = {name: 1e-4 if getattr(recipe, name) else 0.0 for name in ("weight_decay", "l2")}
    rest = {"dataset": "synthetic", "learning_rate": 1e-3, "batch_size": batch, "epochs": 2}
    return Recipe.parse(settings | switched | rest)
