"""Run a study: note it in the store, pack what is missing, hand it to an engine, count the records."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from initmem.data import Sizes, sizes
from initmem.data import check as check_data
from initmem.engines.engine import Engine, Event, Finished, Listener
from initmem.engines.packing import cost, packs, pipeline_packs
from initmem.errors import InitmemError, count
from initmem.measures.looks import look_of, schedule
from initmem.measures.memory import memory
from initmem.measures.metrics import default_metric
from initmem.recipe import AnyRecipe, PipelineRecipe, Recipe, network_of
from initmem.store.record import cause_line, same_cause
from initmem.store.store import Store
from initmem.study import Run, Study
from initmem.train.requirements import check_input

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
    if not keep_going:
        listen = EarlyStop(listen, store, len(left))
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
    return packs(study, shapes, size=size, workers=engine.workers), costs


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

    The results are looked at only at the numbers of seeds of a schedule that is fixed at the start and kept
    in the store with the study. Its looks share the level of the test, so that stopping early does not
    inflate it.
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
            looks = [n for n in (*study.schedule, beyond) if len(study.seeds_of(recipe)) < n <= max_seeds]
            grown = _up_to(grown, [recipe], min(looks, default=0))
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
        row = memory(records, default_metric(records), look=look_of(study, recipe))
        if row.low is None or row.high is None or row.high - row.low > width:
            wide.append(recipe)
    return wide


def with_known_seeds(study: Study, store: Store) -> Study:
    """Keep what the store knows of the same study: seeds that were added, planned looks, and looks made.

    Seeds that are asked for beyond those of a study whose results were there to be seen are one more look.
    """
    for known in store.studies():
        if (known.name, known.effort) != (study.name, study.effort):
            continue
        extra = dict(known.more_seeds) | dict(study.more_seeds)
        fresh = {
            key: tuple(seed for seed in seeds if seed not in study.seeds) for key, seeds in extra.items()
        }
        looked = known.looked
        if set(study.seeds) - set(known.seeds) and all(store.has(run) for run in known.all_runs()):
            looked = (*looked, len(known.seeds))
        return replace(
            study,
            more_seeds=tuple((key, seeds) for key, seeds in fresh.items() if seeds),
            schedule=study.schedule or known.schedule,
            looked=looked,
        )
    return study


def check(study: Study) -> None:
    """Find a user's mistake before anything is written or started."""
    for recipe in map(network_of, study.recipes):
        check_data(recipe)
        shape = sizes(recipe)
        check_input(recipe.model, shape.shape, recipe.augment, shape.vocabulary)
        if recipe.is_module:
            from initmem.train.modules import check_module

            check_module(recipe, shape)
        else:
            _check_scaled(recipe, shape)
        if recipe.has_own_optimizer:
            from initmem.train.packable import check_optimizer

            check_optimizer(recipe, shape)


def notes_of(recipe: Recipe, shape: Sizes) -> list[str]:
    """What a user should know before code of a plugin, or a plain module, is trained."""
    if not recipe.is_module and not recipe.has_own_optimizer:
        return []
    from initmem.train.packable import notes

    return notes(recipe, shape)


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
                f"{self._causes[0]} (their tracebacks are in {self._store.path}; when the cause is fixed, "
                "the same call tries them again; keep_going=True or --keep-going trains the rest anyway)"
            )
