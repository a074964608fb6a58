"""A session trains what a store lacks of a study. `initmem run` and `initmem.run` are calls of `run_study`:

check      the data, the networks, and whether the code has changed since runs were trained
pack       runs that are trained together as one network (`initmem.engines.packs`)
execute    the packs on an engine, which returns when every run has a record
add seeds  while an interval is wider than requested, at planned numbers of seeds
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from initmem.engines.engine import Engine, Event, Finished, Listener, Note, ignore
from initmem.engines.packs import packs
from initmem.engines.progress import Watch
from initmem.engines.provenance import refuse_stale
from initmem.errors import InitmemError, count
from initmem.measures.design import analysis_of, default_metric, schedule
from initmem.measures.memory import memory
from initmem.recipe import AnyRecipe
from initmem.record import RunRecord
from initmem.store.faults import cause_line, crashed_alike
from initmem.store.store import Store
from initmem.study import Study
from initmem.train.requirements import check

ALIKE = 3  # runs that have to crash alike, with none that does not


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a study stands after a session."""

    store: Path
    runs: int
    trained: int  # in this session
    completed: int
    diverged: int
    crashed: int
    missing: int
    interrupted: bool
    seconds: float
    moved_aside: tuple[str, ...] = ()  # damaged files of the store, and why

    def summary(self) -> str:
        """Counts in words."""
        counts = {name: getattr(self, name) for name in ("completed", "diverged", "crashed", "missing")}
        words = ", ".join(f"{n} {name}" for name, n in counts.items() if n or name == "completed")
        return f"of {count(self.runs, 'run')}: {words}"

    @property
    def complete(self) -> bool:
        """Whether every run has a record, and none has crashed."""
        return self.missing == 0 and self.crashed == 0


def run_study(
    study: Study,
    store: str | Path,
    engine: Engine,
    *,
    pack: int | None = None,
    until: float | None = None,
    max_seeds: int = 30,
    retry_crashed: bool = False,
    keep_old: bool = False,
    keep_going: bool = False,
    on_start: Callable[[], None] = lambda: None,
    watch: Watch = lambda runs, left: ignore,
) -> Outcome:
    """Train every run of the study that has no record in the store yet.

    Args:
        study: what to train.
        store: the directory of the records; made where there is none.
        engine: where and how to train; its settings hold the user's code, if any.
        pack: runs trained together at most; chosen by shape unless given.
        until: add seeds until the interval of every memory is at most this wide, in points.
        max_seeds: the most seeds per recipe, if seeds are added.
        retry_crashed: train crashed runs again.
        keep_old: keep runs that were trained before the code of the user changed; otherwise an error.
        keep_going: do not stop when the first runs all crash alike.
        on_start: called once everything is checked, before anything is trained.
        watch: called with the runs and those to train; the listener it returns gets the engine's events.
    """
    settings = engine.settings
    if settings.trainer is None:
        check(study)
    opened = Store.create(store)
    if settings.code:
        refuse_stale(opened, study, settings, keep_old=keep_old)
    on_start()
    started = time.monotonic()
    moved_aside = tuple(opened.recover())
    if retry_crashed:
        opened.set_aside(lambda record: record.status == "crashed")
    earlier = {record.id for record in opened.records()}

    def train(study: Study, *announced: Note) -> bool:
        """Train every run of the study that has no record yet; False when interrupted."""
        opened.add_study(study)
        runs = study.all_runs()
        left = [run for run in runs if not opened.has(run)]
        listen = watch(runs, left)
        for event in announced:
            listen(event)
        if not keep_going:
            listen = stops_early(listen, opened, len(left))
        return engine.run(opened, packs(study, size=pack, workers=engine.workers), listen)

    same = [one for one in opened.studies() if (one.name, one.preset) == (study.name, study.preset)]
    for stored in same:
        study = with_stored_seeds(study, stored, opened)
    study = planned(study, until, max_seeds)
    notes = [f"moved aside: {line}" for line in moved_aside] + dropped(study, same, earlier)
    finished = train(study, *map(Note, notes))
    while finished and until is not None:
        larger = with_later_seeds(study, too_wide(study, opened, until), max_seeds)
        if larger == study:
            break
        study = larger
        finished = train(study)
    runs = study.all_runs()
    states = {record.id: record.status for record in opened.records()}
    counts = Counter(states[run.id] for run in runs if run.id in states)
    return Outcome(
        store=opened.path,
        runs=len(runs),
        trained=sum(run.id in states and run.id not in earlier for run in runs),
        completed=counts["completed"],
        diverged=counts["diverged"],
        crashed=counts["crashed"],
        missing=len(runs) - counts.total(),
        interrupted=not finished,
        seconds=round(time.monotonic() - started, 3),
        moved_aside=moved_aside,
    )


def planned(study: Study, until: float | None, max_seeds: int) -> Study:
    """The study with a schedule of analyses, and the seeds of the first, if its intervals have a target."""
    if until is None:
        return study
    study = replace(study, schedule=study.schedule or schedule(len(study.seeds), max_seeds))
    return with_seeds(study, study.recipes, study.schedule[0])


def with_stored_seeds(study: Study, stored: Study, store: Store) -> Study:
    """The study with what the store holds of the same one: added seeds, the schedule, unplanned analyses.

    Seeds beyond those of a study whose results were complete were added after an analysis.
    """
    added = dict(stored.more_seeds) | dict(study.more_seeds)
    beyond = {key: tuple(s for s in seeds if s not in study.seeds) for key, seeds in added.items()}
    analyzed = stored.analyzed
    if set(study.seeds) - set(stored.seeds) and all(store.has(run) for run in stored.all_runs()):
        analyzed = (*analyzed, len(stored.seeds))
    return replace(
        study,
        more_seeds=tuple((key, seeds) for key, seeds in beyond.items() if seeds),
        schedule=study.schedule or stored.schedule,
        analyzed=analyzed,
    )


def dropped(study: Study, same: Sequence[Study], done: Collection[str]) -> list[str]:
    """A line if the study replaces one of its name and preset that asked for other runs, and has records."""
    asked = {run.id for stored in same for run in stored.all_runs()} & set(done)
    if not (left := asked - {run.id for run in study.all_runs()}):
        return []
    which = f"{count(len(left), 'run')} of an earlier study {study.name!r}"
    return [f"{which} that this one does not ask for: kept, and part of measures and reports"]


def with_later_seeds(study: Study, recipes: Sequence[AnyRecipe], max_seeds: int) -> Study:
    """The study with the seeds of the next planned analysis for some recipes.

    A limit beyond the plan adds one analysis at the limit.
    """
    planned = [*study.schedule, max_seeds] if max_seeds > study.schedule[-1] else study.schedule
    for recipe in recipes:
        later = [n for n in planned if len(study.seeds_of(recipe)) < n <= max_seeds]
        study = with_seeds(study, [recipe], min(later, default=0))
    return study


def with_seeds(study: Study, recipes: Sequence[AnyRecipe], seeds: int) -> Study:
    """The study with seeds added to those recipes that have fewer."""
    for recipe in recipes:
        if (missing := seeds - len(study.seeds_of(recipe))) > 0:
            study = study.with_more_seeds(recipe, missing)
    return study


def too_wide(study: Study, store: Store, width: float) -> list[AnyRecipe]:
    """The recipes whose memory has a wider interval than requested, or none."""
    records = {record.id: record for record in store.records()}
    wide = []
    for recipe in study.recipes:
        own = [records[run.id] for run in study.runs(recipe) if run.id in records]
        row = memory(own, default_metric(own), analysis=analysis_of(study, recipe))
        if row.low is None or row.high is None or row.high - row.low > width:
            wide.append(recipe)
    return wide


def stops_early(listen: Listener, store: Store, runs: int) -> Listener:
    """A listener before another one: it stops the engine when the first runs of a session all crash alike."""
    first: list[RunRecord] = []

    def heard(event: Event) -> None:
        listen(event)
        if not isinstance(event, Finished) or len(first) >= ALIKE or runs <= ALIKE:
            return
        first.extend(store.read(run_id) for run_id, _ in event.runs)
        if len(first) >= ALIKE and [len(alike) for alike in crashed_alike(first)] == [len(first)]:
            raise InitmemError(
                f"stopped: the first {len(first)} of {runs} runs all crashed with {cause_line(first[0])} "
                f"(their tracebacks are in {store.path}; once the code is fixed, the same call tries them "
                "again; retry_crashed=True or --retry-crashed does so in any case, keep_going=True or "
                "--keep-going trains the rest)"
            )

    return heard
