"""What a study will cost, before it is run: operations are counted, speed is measured with real packs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from initmem.clocks import clocks, updates_per_epoch
from initmem.data.dataset import Sizes
from initmem.data.sources import sizes
from initmem.engines.engine import cores
from initmem.engines.packs import makespan, pack_size, packs
from initmem.recipe import Recipe
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


def plan(study: Study, *, workers: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The cost of every recipe, and of the study; real training steps tell the speed of this machine."""
    networks = [recipe.network for recipe in study.recipes]
    shapes = {recipe: sizes(recipe) for recipe in networks}
    packed = []
    for pack in packs(study, workers=workers):
        first = pack[0].recipe.network
        packed.append((pack, pack_seconds(first, shapes[first], len(pack))))
    rows = [
        _row(label, recipe, shapes[recipe], packed, workers)
        for label, recipe in zip(study.labels(), networks, strict=True)
    ]
    here = _makespan([seconds for _, seconds in packed], workers)
    return rows, {
        "study": study.name,
        "preset": study.preset,
        "runs": len(study.all_runs()),
        "recipes": len(study.recipes),
        "cells": len(study.recipes) * len(study.levels),  # recipes x scales
        "updates": sum(row["updates"] * row["runs"] for row in rows),
        "flops": study_flops(study),
        "disk_bytes": sum(row["runs"] * record_bytes(one) for row, one in zip(rows, networks, strict=True)),
        "workers": workers,
        "hours_here": here / 3600,  # if nothing else runs
    }


def _makespan(times: Sequence[float], workers: int) -> float:
    """Seconds until the last pack is done; workers may share cores."""
    shared = max(1.0, workers / cores())
    return START + makespan([seconds * shared for seconds in times], [0.0] * workers)


def _row(
    label: str, recipe: Recipe, of: Sizes, packed: Sequence[tuple[list[Run], float]], workers: int
) -> dict[str, Any]:
    """The cost of one recipe, from the packs that its runs are in and the seconds that each takes."""
    shares = [(pack, each, n) for pack, each in packed if (n := sum(run.recipe == recipe for run in pack))]
    runs = sum(n for _, _, n in shares)
    at_end = clocks(recipe, of.n_train).at_end()
    seconds = sum(each * n / len(pack) for pack, each, n in shares)
    notes = notes_of(recipe, of)
    if any(run.is_warm for pack, _, _ in shares for run in pack):
        notes.append("warm runs first train on half of the data, which is not counted")
    return {
        "recipe": label,
        "runs": runs,
        "pack": max(len(pack) for pack, _, _ in shares),
        "updates": recipe.epochs * updates_per_epoch(recipe, of.n_train),  # per run
        "flops": runs * run_flops(recipe, of),  # of all its runs
        "hours": seconds / min(workers, cores()) / 3600,  # on all workers of a quiet machine
        **{f"clock_{name}": at_end[name] for name in ("sgd", "l2", "adaptive")},
        "note": "; ".join(notes),  # why its runs are trained alone, what the scale leaves as it is
    }


def record_bytes(recipe: Recipe) -> int:
    """The size of one record, from a record of as many epochs and predictions with full-length numbers."""
    rng, epochs, of = np.random.default_rng(0), recipe.epochs, sizes(recipe)
    history = {name: rng.random(epochs) for name in COLUMNS}
    summary = summarize(history, norm_init=rng.random(), test_accuracy=rng.random(), test_loss=rng.random())
    arrays: dict[str, Any] = {}
    for name, most in (("predictions", MOST_PREDICTIONS), ("initial_predictions", MOST_INITIAL)):
        arrays[name] = rng.integers(0, of.classes, min(of.n_test * of.labels, most))
    for i in range(2 * flops_per_image(recipe, of).layers):
        arrays[f"norm:residual1.{i}"] = rng.random(min(epochs, MOST_EPOCHS)).round(5)
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
    count = flops_per_image(recipe, shape)
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
    count = flops_per_image(recipe, shape)
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

    step = flops_per_image(recipe, shape).training * pack
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
