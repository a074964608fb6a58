"""What a study will cost, before it is run: operations are counted, speed is measured."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from initmem.clocks import clocks, updates_per_epoch
from initmem.data import sizes
from initmem.engines.execute import notes_of
from initmem.engines.packing import packs
from initmem.engines.speed import Speedometer, run_flops
from initmem.errors import ConfigError, allowed
from initmem.recipe import Recipe, network_of
from initmem.store.encoding import encode
from initmem.store.record import COLUMNS, RunRecord, summarize
from initmem.study import Run, Study
from initmem.train.flops import flops_per_image

# Peak dense tensor-core rates in TFLOP/s: TF32 of data-centre parts, FP32 where there is no TF32.
ACCELERATORS = {"h100": 494.7, "h200": 494.7, "a100": 156.0, "l40s": 183.0, "rtx4090": 82.6, "v100": 15.7}
FULL_SPEED = 2.2e7  # forward operations per image from which a CPU core is as fast as in a matrix product
UTILIZATION = 0.2  # small images keep a large accelerator waiting; said with every number


@dataclass(frozen=True, slots=True)
class RecipePlan:
    """The cost of one recipe."""

    recipe: str
    runs: int
    pack: int
    updates: int  # per run
    flops: float  # of all its runs
    hours: float | None  # here, on all workers; None before calibration
    clock_sgd: float
    clock_l2: float
    clock_adaptive: float
    note: str = ""  # why its runs are trained alone, what the scale leaves as it is


@dataclass(frozen=True, slots=True)
class Plan:
    """The cost of a study."""

    study: str
    effort: str
    runs: int
    recipes: int
    cells: int  # recipes x scales
    updates: int
    flops: float
    disk_bytes: int
    workers: int
    hours_here: float | None
    accelerator: str
    utilization: float
    accelerator_hours: float
    rows: tuple[RecipePlan, ...]


def plan(
    study: Study,
    *,
    workers: int,
    calibrated: bool = True,
    accelerator: str = "h100",
    utilization: float = UTILIZATION,
) -> Plan:
    """Plan a study; with `calibrated`, real training steps tell the speed of this machine."""
    recipes = [network_of(recipe) for recipe in study.recipes]
    shapes = [sizes(recipe) for recipe in recipes]
    cut = packs(study, shapes, size=None, workers=workers)
    pack_of = {recipe: max(len(p) for p in cut if p[0].recipe == recipe) for recipe in recipes}
    speed = Speedometer()
    rows = []
    for recipe, shape, label in zip(recipes, shapes, study.labels(), strict=True):
        runs = len(study.runs(recipe))
        flops = runs * run_flops(recipe, shape)
        rate = speed.measure(recipe, shape, pack_of[recipe]) if calibrated else None
        times = clocks(recipe, shape.n_train).at_end()
        rows.append(
            RecipePlan(
                recipe=label,
                runs=runs,
                pack=pack_of[recipe],
                updates=recipe.epochs * updates_per_epoch(recipe, shape.n_train),
                flops=flops,
                hours=None if rate is None else flops / rate / workers / 3600,
                clock_sgd=times["sgd"],
                clock_l2=times["l2"],
                clock_adaptive=times["adaptive"],
                note="; ".join(notes_of(recipe, shape)),
            )
        )
    total = sum(row.flops for row in rows)
    hours = [row.hours for row in rows if row.hours is not None]
    return Plan(
        study=study.name,
        effort=study.effort,
        runs=len(study.all_runs()),
        recipes=len(study.recipes),
        cells=len(study.recipes) * len(study.scales),
        updates=sum(row.updates * row.runs for row in rows),
        flops=total,
        disk_bytes=sum(row.runs * record_bytes(r) for row, r in zip(rows, recipes, strict=True)),
        workers=workers,
        hours_here=sum(hours) if calibrated else None,
        accelerator=accelerator,
        utilization=utilization,
        accelerator_hours=total / accelerator_rate(accelerator, utilization) / 3600,
        rows=tuple(rows),
    )


def accelerator_rate(name: str, utilization: float) -> float:
    """Operations per second of an accelerator at a share of its peak."""
    if name.lower() not in ACCELERATORS:
        raise ConfigError(f"accelerator = {name!r} ({allowed(ACCELERATORS)})")
    return ACCELERATORS[name.lower()] * 1e12 * utilization


def record_bytes(recipe: Recipe) -> int:
    """The size of one record, from a record of as many epochs with full-length numbers."""
    rng = np.random.default_rng(0)
    history = {name: rng.random(recipe.epochs) for name in COLUMNS}
    summary = summarize(history, norm_init=rng.random(), test_accuracy=rng.random(), test_loss=rng.random())
    return len(encode(RunRecord(Run(recipe, 1.0, 0), "completed", summary, history, {})))


@dataclass(frozen=True, slots=True)
class Schedule:
    """A simulated execution of a study on several accelerators."""

    gpus: int
    makespan_hours: float
    busy: float  # share of the accelerators' time that went into runs
    failures: int


def simulate(
    study: Study,
    *,
    gpus: int,
    accelerator: str,
    utilization: float,
    failures_per_day: float = 0.0,
    checkpoint_minutes: float = 10.0,
    seed: int = 0,
) -> Schedule:
    """Give the longest run to the first free accelerator; a failure costs the time since a checkpoint."""
    rate = accelerator_rate(accelerator, utilization)
    durations = sorted(
        (
            run_flops(recipe, sizes(recipe)) / rate / 3600
            for recipe in map(network_of, study.recipes)
            for _ in study.runs(recipe)
        ),
        reverse=True,
    )
    rng = np.random.default_rng(seed)
    free_at = [0.0] * gpus
    failures, useful = 0, sum(durations)
    for duration in durations:
        start = heapq.heappop(free_at)
        spent, failed = _with_failures(duration, failures_per_day / 24, checkpoint_minutes / 60, rng)
        failures += failed
        heapq.heappush(free_at, start + spent)
    makespan = max(free_at)
    return Schedule(gpus, makespan, useful / (gpus * makespan), failures)


def _with_failures(
    duration: float, per_hour: float, checkpoint: float, rng: np.random.Generator
) -> tuple[float, int]:
    """Hours that a run really takes, and how often it failed."""
    if per_hour == 0:
        return duration, 0
    spent, left, failures = 0.0, duration, 0
    while (survived := rng.exponential(1 / per_hour)) < left:
        spent += survived
        left -= survived // checkpoint * checkpoint
        failures += 1
        if failures > 10_000:
            raise ConfigError("failures come faster than checkpoints: no run would ever end")
    return spent + left, failures


def rough_hours(studies: Sequence[Study], workers: int) -> list[float]:
    """Hours on this machine from counted operations alone: a rough guide, without any training step."""
    per_hour = 3600 * workers * matmul_rate()
    return [
        sum(len(study.runs(r)) * run_flops(r, sizes(r)) / _efficiency(r) for r in _networks(study)) / per_hour
        for study in studies
    ]


def _efficiency(recipe: Recipe) -> float:
    """The share of a matrix product's rate that training reaches: small networks wait for memory and Python.

    Measured on two cores: 0.07 for digits at width 4, 0.56 for CIFAR-10 at width 8, about 1 from width 16 on;
    the square root of the operations per image fits all three.
    """
    shape = sizes(recipe)
    count = flops_per_image(recipe, shape.shape, shape.classes, shape.vocabulary)
    return min(1.0, math.sqrt(count.forward / FULL_SPEED))


def study_flops(study: Study) -> float:
    """Operations of all runs of a study; what a pipeline computes only its own code knows: 0."""
    return float(sum(run_flops(r, sizes(r)) * len(study.runs(r)) for r in _networks(study)))


def _networks(study: Study) -> list[Recipe]:
    return [recipe for recipe in study.recipes if isinstance(recipe, Recipe)]


def matmul_rate(side: int = 768) -> float:
    """Operations per second of a float32 matrix product on one core, the best of a few."""
    from threadpoolctl import threadpool_limits

    a: Any = np.random.default_rng(0).random((side, side), dtype=np.float32)
    with threadpool_limits(1):
        a @ a
        times = []
        for _ in range(5):
            started = time.perf_counter()
            a @ a
            times.append(time.perf_counter() - started)
    return 2 * side**3 / min(times)
