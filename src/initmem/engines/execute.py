"""Run a study: note it in the store, pack what is missing, hand it to an engine, count the records.

The same study packs the same way every time, so that a resumed run finds itself in the same pack.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from initmem.data.dataset import Sizes
from initmem.data.sources import sizes
from initmem.engines.engine import Engine, Event, Finished, Listener, MovedAside
from initmem.errors import InitmemError, count
from initmem.measures.design import analysis_of, default_metric, schedule
from initmem.measures.memory import memory
from initmem.recipe import ALONE, AnyRecipe, PipelineRecipe, Recipe, network_of
from initmem.record import cause_line, same_cause
from initmem.store.store import Store
from initmem.study import Run, Study

# Up to this many multiplications per layer and update, a replica alone leaves the processor waiting for
# the next call; measured on two EPYC cores, ResNet-9, 8x8 against 32x32 images.
WORTH_PACKING = 80_000
LARGEST_PACK = 16
# Operations of one update of a plain module up to which eight of them are trained faster together; measured
# on the same cores with vit and gpt: twice as fast at 1e7, a third at 1e8, slower at 2e9.
MODULE_WORTH_PACKING = 2e8
LANES = 8  # replicas side by side in a vector: a pack that fills them wastes none
ALIKE = 3  # runs that have to fail alike, with none that does not


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
        return f"of {count(self.runs, 'run')}: {said}"

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
    keep_going: bool = True,
    watch: Callable[[Workload], Listener],
) -> Outcome:
    """Train every run of the study that has no record yet.

    Unless told to keep going, it stops when the first runs all fail alike.
    """
    started = time.monotonic()
    moved_aside = store.recover()
    if retry_failed:
        store.set_aside(lambda record: record.status == "failed")
    study = with_known_seeds(study, store)
    store.add_study(study)
    runs = study.all_runs()
    left = [run for run in runs if not store.has(run)]
    packed, costs = _packed(study, left, engine, size=pack)
    listen = watch(
        Workload(
            runs=len(runs),
            done=len(runs) - len(left),
            packs=len(packed),
            workers=min(engine.workers, len(packed)),
            costs={run.id: costs[run.recipe] for run in left},
            epochs={run.id: run.recipe.get("epochs") or 1 for run in left},
        )
    )
    if moved_aside:
        listen(MovedAside(tuple(moved_aside)))
    if not keep_going:
        listen = EarlyStop(listen, store, len(left))
    finished = engine.run(store, packed, listen)
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


def _packed(
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
    return packs(study, shapes, size=size, workers=engine.workers), costs


def pack_size(recipe: Recipe, sizes: Sizes) -> int:
    """How many replicas of a recipe to train as one network, from their shapes alone.

    The same on every machine and at every load, so that a resumed study packs its runs as it did before.
    """
    if recipe.is_module:
        update = 3 * _forward_flops(recipe, sizes) * min(recipe.batch_size, sizes.n_train)
        return LANES if update <= MODULE_WORTH_PACKING else 1
    work = sizes.height * sizes.width * recipe.width * min(recipe.batch_size, sizes.n_train)
    pack = max(1, min(LARGEST_PACK, WORTH_PACKING // work))
    return pack // LANES * LANES or pack


def packs(
    study: Study,
    sizes: Sequence[Sizes],
    *,
    size: int | None,
    workers: int,
) -> list[list[Run]]:
    """Divide the runs into packs of even size, the most work first.

    A pack holds runs of one recipe. Recipes that do not fill a pack each share one with others that differ
    from them in rates and penalties alone, where the optimizer allows it.
    """
    groups = _groups(study, sizes, size)
    weighed: list[tuple[float, list[Run]]] = []
    for runs, limit, work in groups:
        count = math.ceil(len(runs) / limit)
        if size is None:  # no core should stand idle for want of a pack
            count = min(len(runs), max(count, math.ceil(workers / len(groups))))
        bounds = [round(i * len(runs) / count) for i in range(count + 1)]
        for start, stop in pairwise(bounds):
            weighed.append((work * (stop - start), runs[start:stop]))
    weighed.sort(key=lambda item: -item[0])
    return [runs for _, runs in weighed]


def _groups(study: Study, sizes: Sequence[Sizes], size: int | None) -> list[tuple[list[Run], int, float]]:
    """Runs that may share packs, the largest pack that they fit in, and the cost of one of them."""
    groups: list[tuple[list[Run], int, float]] = []
    open_group: dict[Recipe, list[Run]] = {}  # with room for another recipe
    for recipe, shape in zip(map(network_of, study.recipes), sizes, strict=True):
        runs = study.runs(recipe)
        limit = 1 if recipe.optimizer in ALONE else size or pack_size(recipe, shape)
        if limit > 1 and (recipe.is_module or recipe.has_own_optimizer):
            limit = limit if can_be_packed(recipe, shape) else 1
        earlier = open_group.get(recipe.pack_key)
        if earlier is not None and len(earlier) + len(runs) <= limit:
            earlier += runs
            continue
        runs = list(runs)
        groups.append((runs, limit, cost(recipe, shape)))
        open_group[recipe.pack_key] = runs
    return groups


def _forward_flops(recipe: Recipe, sizes: Sizes) -> int:
    from initmem.train.requirements import flops_per_image

    return flops_per_image(recipe, sizes.shape, sizes.classes, sizes.vocabulary).forward


def can_be_packed(recipe: Recipe, sizes: Sizes) -> bool:
    """Whether the replicas of a recipe follow in a pack the trajectories they follow alone."""
    from initmem.train.packable import obstacle

    return not obstacle(recipe, sizes)


def pipeline_packs(study: Study, *, size: int) -> list[list[Run]]:
    """Packs of user code: of one run, unless its trainer takes several at once."""
    groups = [study.runs(recipe) for recipe in study.recipes]
    return [runs[i : i + size] for runs in groups for i in range(0, len(runs), size)]


def cost(recipe: Recipe, sizes: Sizes) -> float:
    """The relative cost of one run, for sharing out work and telling the time left."""
    if recipe.is_module:
        return float(recipe.epochs * sizes.n_train * _forward_flops(recipe, sizes))
    return float(recipe.epochs * sizes.n_train * sizes.height * sizes.width * recipe.width**2)


def execute_until(
    study: Study,
    store: Store,
    engine: Engine,
    *,
    width: float,
    max_seeds: int,
    watch: Callable[[Workload], Listener],
    pack: int | None = None,
    keep_going: bool = True,
) -> Outcome:
    """Run a study, then add seeds, recipe by recipe, while the memory's interval is wider than asked.

    The results are analyzed only at the numbers of seeds of a schedule that is fixed at the start and kept
    in the store with the study. Alpha is spent over these analyses, so that stopping early does not inflate
    the error rate.
    """
    study = with_known_seeds(study, store)
    study = replace(study, schedule=study.schedule or schedule(len(study.seeds), max_seeds))
    study = _up_to(study, study.recipes, study.schedule[0])
    trained = 0
    moved_aside: tuple[str, ...] = ()
    while True:
        outcome = execute(study, store, engine, pack=pack, keep_going=keep_going, watch=watch)
        trained, moved_aside = trained + outcome.trained, moved_aside + outcome.moved_aside
        wider = [] if outcome.interrupted else _too_wide(study, store, width)
        grown = study
        for recipe in wider:
            beyond = max_seeds if max_seeds > study.schedule[-1] else 0
            later = [n for n in (*study.schedule, beyond) if len(study.seeds_of(recipe)) < n <= max_seeds]
            grown = _up_to(grown, [recipe], min(later, default=0))
        if grown == study:
            return replace(outcome, trained=trained, moved_aside=moved_aside)
        study = grown


def _up_to(study: Study, recipes: Sequence[AnyRecipe], seeds: int) -> Study:
    """The study with seeds added to some recipes that have fewer."""
    for recipe in recipes:
        if (missing := seeds - len(study.seeds_of(recipe))) > 0:
            study = study.with_more_seeds(recipe, missing)
    return study


def _too_wide(study: Study, store: Store, width: float) -> list[AnyRecipe]:
    """The recipes whose memory is not known as exactly as asked."""
    known = {record.id: record for record in store.records()}
    wide = []
    for recipe in study.recipes:
        records = [known[run.id] for run in study.runs(recipe) if run.id in known]
        row = memory(records, default_metric(records), analysis=analysis_of(study, recipe))
        if row.low is None or row.high is None or row.high - row.low > width:
            wide.append(recipe)
    return wide


def with_known_seeds(study: Study, store: Store) -> Study:
    """Keep what the store knows of the same study: seeds that were added, the schedule, unplanned analyses.

    Seeds that are asked for beyond those of a study whose results were complete were added after an analysis.
    """
    for known in store.studies():
        if (known.name, known.effort) != (study.name, study.effort):
            continue
        extra = dict(known.more_seeds) | dict(study.more_seeds)
        fresh = {
            key: tuple(seed for seed in seeds if seed not in study.seeds) for key, seeds in extra.items()
        }
        analyzed = known.analyzed
        if set(study.seeds) - set(known.seeds) and all(store.has(run) for run in known.all_runs()):
            analyzed = (*analyzed, len(known.seeds))
        return replace(
            study,
            more_seeds=tuple((key, seeds) for key, seeds in fresh.items() if seeds),
            schedule=study.schedule or known.schedule,
            analyzed=analyzed,
        )
    return study


class StoppedEarly(InitmemError):
    """The first runs of a study failed alike; what was trained is kept."""


class EarlyStop:
    """A listener between an engine and whoever watches. An error in it stops the engine."""

    def __init__(self, listen: Listener, store: Store, runs: int) -> None:
        self._listen, self._store, self._runs = listen, store, runs
        self._causes: list[str] = []
        self._armed = runs > ALIKE

    def __call__(self, event: Event) -> None:
        """Pass an event on, and look at the runs that have a record now."""
        self._listen(event)
        if not isinstance(event, Finished) or not self._armed:
            return
        for run_id, status in event.runs:
            self._armed = self._armed and status == "failed"
            if self._armed:
                self._causes.append(cause_line(self._store.read(run_id)))
        self._armed = self._armed and len({same_cause(cause) for cause in self._causes}) <= 1
        if self._armed and len(self._causes) >= ALIKE:
            raise StoppedEarly(
                f"stopped: the first {len(self._causes)} of {self._runs} runs all failed with "
                f"{self._causes[0]} (their tracebacks are in {self._store.path}; once the code is fixed, the "
                "same call tries them again; retry_failed=True or --retry-failed does so in any case, "
                "keep_going=True or --keep-going trains the rest)"
            )
