"""Run a study: note it in the store, pack what is missing, hand it to an engine, count what came out."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from initmem.data import load, sizes
from initmem.engines.local import LocalEngine
from initmem.engines.packing import cost, packs
from initmem.store import Store
from initmem.study import Study
from initmem.train.requirements import check_input

Listener = Callable[[str, Any], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a study stands after a session."""

    store: Path
    runs: int
    trained: int  # in this session
    completed: int
    diverged: int
    failed: int
    missing: int
    interrupted: bool
    seconds: float

    @property
    def complete(self) -> bool:
        """Whether all asked work is done."""
        return self.missing == 0 and self.failed == 0


@dataclass(frozen=True, slots=True)
class Workload:
    """What a session is about to do, for whoever shows its progress."""

    runs: int
    done: int
    packs: int
    workers: int
    costs: dict[str, float]  # relative cost per run id, of runs that have no record yet
    epochs: dict[str, int]  # epochs per run id


def execute(
    study: Study,
    store: Store,
    engine: LocalEngine,
    *,
    pack: int | None = None,
    retry_failed: bool = False,
    watch: Callable[[Workload], Listener],
) -> Outcome:
    """Train every run of the study that has no record yet."""
    started = time.monotonic()
    store.recover()
    if retry_failed:
        store.set_aside(lambda record: record.status == "failed")
    store.add_study(study)
    shapes = [sizes(recipe) for recipe in study.recipes]
    cut = packs(study, shapes, size=pack, workers=engine.workers)
    costs = {recipe: cost(recipe, shape) for recipe, shape in zip(study.recipes, shapes, strict=True)}
    runs = study.all_runs()
    left = [run for run in runs if not store.has(run)]
    listen = watch(
        Workload(
            runs=len(runs),
            done=len(runs) - len(left),
            packs=len(cut),
            workers=min(engine.workers, len(cut)),
            costs={run.id: costs[run.recipe] for run in left},
            epochs={run.id: run.recipe.epochs for run in left},
        )
    )
    finished = engine.run(store, cut, listen)
    counts = Counter(store.read(run.id).status for run in runs if store.has(run))
    return Outcome(
        store=store.path,
        runs=len(runs),
        trained=sum(store.has(run) for run in left),
        completed=counts["completed"],
        diverged=counts["diverged"],
        failed=counts["failed"],
        missing=len(runs) - counts.total(),
        interrupted=not finished,
        seconds=round(time.monotonic() - started, 3),
    )


def check(study: Study) -> None:
    """Find a user's mistake before anything is written or started."""
    for recipe in study.recipes:
        if recipe.dataset.endswith(".npz"):
            load(recipe)
        check_input(recipe.model, sizes(recipe).shape, recipe.augment)
