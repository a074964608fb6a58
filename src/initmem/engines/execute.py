"""Run a study: note it in the store, pack what is missing, hand it to an engine, count what came out."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from initmem.data import Sizes, sizes
from initmem.data import check as check_data
from initmem.engines.events import Listener
from initmem.engines.packing import cost, pack_size, packs, pipeline_packs
from initmem.engines.settings import Engine
from initmem.engines.speed import PackSizes
from initmem.measures.memory import memory
from initmem.recipe import AnyRecipe, PipelineRecipe, Recipe, network_of
from initmem.store.store import Store
from initmem.study import Run, Study
from initmem.train.requirements import check_input


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
    moved_aside: tuple[str, ...] = ()  # damaged files of the store, and why

    def summary(self) -> str:
        """Counts in words."""
        counts = {name: getattr(self, name) for name in ("completed", "diverged", "failed", "missing")}
        said = ", ".join(f"{n} {name}" for name, n in counts.items() if n or name == "completed")
        return f"of {self.runs} runs: {said}"

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
    engine: Engine,
    *,
    pack: int | None = None,
    retry_failed: bool = False,
    watch: Callable[[Workload], Listener],
) -> Outcome:
    """Train every run of the study that has no record yet."""
    started = time.monotonic()
    moved_aside = store.recover()
    if retry_failed:
        store.set_aside(lambda record: record.status == "failed")
    study = with_known_seeds(study, store)
    store.add_study(study)
    runs = study.all_runs()
    left = [run for run in runs if not store.has(run)]
    cut, costs = _cut(study, left, engine, size=pack)
    listen = watch(
        Workload(
            runs=len(runs),
            done=len(runs) - len(left),
            packs=len(cut),
            workers=min(engine.workers, len(cut)),
            costs={run.id: costs[run.recipe] for run in left},
            epochs={run.id: run.recipe.get("epochs") or 1 for run in left},
        )
    )
    finished = engine.run(store, cut, listen)
    states = {record.id: record.status for record in store.records()}
    counts = Counter(states[run.id] for run in runs if run.id in states)
    return Outcome(
        store=store.path,
        runs=len(runs),
        trained=sum(run.id in states for run in left),
        completed=counts["completed"],
        diverged=counts["diverged"],
        failed=counts["failed"],
        missing=len(runs) - counts.total(),
        interrupted=not finished,
        seconds=round(time.monotonic() - started, 3),
        moved_aside=tuple(moved_aside),
    )


def _cut(
    study: Study, left: Sequence[Run], engine: Engine, *, size: int | None
) -> tuple[list[list[Run]], dict[AnyRecipe, float]]:
    """The packs of a study, and the relative cost of a run of each recipe."""
    if any(isinstance(recipe, PipelineRecipe) for recipe in study.recipes):
        return pipeline_packs(study, size=size or 1), dict.fromkeys(study.recipes, 1.0)
    recipes = [network_of(recipe) for recipe in study.recipes]
    shapes = [sizes(recipe) for recipe in recipes]
    costs: dict[AnyRecipe, float] = {
        recipe: cost(recipe, shape) for recipe, shape in zip(recipes, shapes, strict=True)
    }
    unfinished, measured = {run.recipe for run in left}, PackSizes(engine.settings.device)

    def choose(recipe: Recipe, shape: Sizes) -> int:
        return measured.choose(recipe, shape) if recipe in unfinished else pack_size(recipe, shape)

    return packs(study, shapes, size=size, workers=engine.workers, choose=choose), costs


def execute_until(
    study: Study,
    store: Store,
    engine: Engine,
    *,
    width: float,
    max_seeds: int,
    watch: Callable[[Workload], Listener],
    pack: int | None = None,
) -> Outcome:
    """Run a study, then add seeds, recipe by recipe, where the memory's interval is wider than asked.

    Stops when every interval is narrow enough or has `max_seeds` seeds behind it.
    """
    trained = 0
    moved_aside: tuple[str, ...] = ()
    while True:
        outcome = execute(study, store, engine, pack=pack, watch=watch)
        trained, moved_aside = trained + outcome.trained, moved_aside + outcome.moved_aside
        study = with_known_seeds(study, store)
        wider = {} if outcome.interrupted else _seeds_to_add(study, store, width, max_seeds)
        if not wider:
            return replace(outcome, trained=trained, moved_aside=moved_aside)
        for recipe, count in wider.items():
            study = study.with_more_seeds(recipe, count)


def _seeds_to_add(study: Study, store: Store, width: float, max_seeds: int) -> dict[AnyRecipe, int]:
    """How many seeds more each recipe needs; the width falls about as one over the root of their number."""
    found = {}
    known = {record.id: record for record in store.records()}
    for recipe in study.recipes:
        records = [known[run.id] for run in study.runs(recipe) if run.id in known]
        row = memory(records)
        now = len({record.run.seed for record in records})
        if row.low is not None and row.high is not None and row.high - row.low <= width:
            continue
        share = 2.0 if row.low is None or row.high is None else ((row.high - row.low) / width) ** 2
        # At most double at a time: with few seeds the width itself is a rough guess.
        wanted = min(math.ceil(now * min(share, 2.0)), max_seeds)
        if wanted > now:
            found[recipe] = wanted - now
    return found


def with_known_seeds(study: Study, store: Store) -> Study:
    """Keep the seeds that an earlier session added to some recipes of the same study."""
    for known in store.studies():
        if (known.name, known.effort) == (study.name, study.effort):
            extra = dict(known.more_seeds) | dict(study.more_seeds)
            fresh = {
                key: tuple(seed for seed in seeds if seed not in study.seeds) for key, seeds in extra.items()
            }
            return replace(study, more_seeds=tuple(fresh.items()))
    return study


def check(study: Study) -> None:
    """Find a user's mistake before anything is written or started."""
    for recipe in map(network_of, study.recipes):
        check_data(recipe)
        shape = sizes(recipe)
        check_input(recipe.model, shape.shape, recipe.augment)
        _check_scaled(recipe, shape)


def _check_scaled(recipe: Recipe, shape: Sizes) -> None:
    """Whether the layers that a recipe names are there; a network without memory is built to see."""
    if recipe.scaled == "kernels" and not recipe.layer_scales:
        return
    import torch

    from initmem.train.init import layout
    from initmem.train.models import build
    from initmem.train.scaled import factors

    with torch.device("meta"):
        network = build(
            recipe.model,
            replicas=1,
            shape=shape.shape,
            classes=shape.classes,
            width=recipe.width,
            norm=recipe.norm,
        )
    factors(recipe, 1.0, layout(network))
