"""The time left, against event logs that are made of archives: their packs, at the pace of their recipes.

The machines that trained them were busy now and then. A recipe is replayed at the pace of its fastest run, so
that what is left to estimate is what differs between recipes, and how packs fill the workers.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from initmem.engines.engine import Claimed, EpochEnded, Event, Faulted, Finished, WorkerLost
from initmem.engines.packs import cost
from initmem.engines.progress import Display
from initmem.recipe import AnyRecipe, PipelineRecipe
from initmem.record import RunRecord
from initmem.report.content import Content
from initmem.report.watch import live
from initmem.store.claims import Claim, LiveRun
from initmem.store.results import Collection, open_results
from initmem.study import Run

ARCHIVES = Path(__file__).parents[1] / "docs" / "results"
Log = list[tuple[float, Event]]


def paces(records: Sequence[RunRecord]) -> dict[AnyRecipe, float]:
    """Seconds of one worker per epoch and run."""
    found: dict[AnyRecipe, list[float]] = {}
    for record in records:
        found.setdefault(record.run.recipe, []).append(float(np.mean(record.history["seconds"])))
    return {recipe: min(seconds) for recipe, seconds in found.items()}


def log_of(records: Sequence[RunRecord], workers: int) -> Log:
    """What an engine would report: whoever is free takes the next pack, the most work first."""
    packs: dict[object, list[RunRecord]] = {}
    for record in records:
        origin = record.provenance
        packs.setdefault(origin.get("pack_id") or origin.get("company") or record.id, []).append(record)
    pace, free, log = paces(records), [0.0] * workers, Log()
    for pack in sorted(packs.values(), key=lambda pack: -len(pack) * cost(pack[0].run.recipe)):
        now, ids = heapq.heappop(free), tuple(record.id for record in pack)
        log.append((now, Claimed(ids)))
        for epoch in range(1, max(record.summary.epochs for record in pack) + 1):
            now += sum(pace[record.run.recipe] for record in pack if epoch <= record.summary.epochs)
            log.append((now, EpochEnded(ids, epoch)))
        log.append((now, Finished(tuple((record.id, record.status) for record in pack))))
        heapq.heappush(free, now)
    return sorted(log, key=lambda item: (item[0], isinstance(item[1], Claimed)))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def display(runs: Sequence[Run], clock: Clock) -> Display:
    return Display(runs, runs, Console(file=StringIO()), clock)


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("name", ["quickstart", "main-grid-mini", "transformers-mini"])
def test_after_a_tenth_of_the_time_the_time_left_is_right_within_a_factor(name: str, workers: int) -> None:
    records = open_results(ARCHIVES / f"{name}.initmem").records()
    log, clock = log_of(records, workers), Clock()
    shown, end, checked = display([record.run for record in records], clock), log[-1][0], 0
    for i, (clock.now, event) in enumerate(log):
        shown(event)
        if i % (len(log) // 200) == 0 and 0.1 * end < clock.now < 0.99 * end:
            left, checked = shown.seconds_left(), checked + 1
            assert left is not None
            assert 1 / 1.5 < left / (end - clock.now) < 1.5, clock.now / end
    assert checked > 50
    assert shown.done == len(records)


def test_terminal_and_board_show_the_same_time() -> None:
    results = open_results(ARCHIVES / "quickstart.initmem")
    records, pace = {record.id: record for record in results.records()}, paces(results.records())
    log, clock = log_of(list(records.values()), 2), Clock()
    shown = display([record.run for record in records.values()], clock)
    epochs: dict[str, int] = {}
    packs: dict[str, int] = {}
    done: list[RunRecord] = []
    for i, (clock.now, event) in enumerate(log[:-1]):
        shown(event)
        match event:
            case Claimed(runs):
                packs |= dict.fromkeys(runs, i)
            case EpochEnded(runs, epoch):
                epochs |= dict.fromkeys(runs, epoch)
            case Finished(runs):
                for run_id, _ in runs:
                    del epochs[run_id]
                    record = records[run_id]
                    seconds = pace[record.run.recipe] * record.summary.epochs * len(runs)
                    done.append(replace(record, provenance={"seconds": seconds, "pack": len(runs)}))
        if i % 150 == 149 and not isinstance(event, Finished):
            rows = {
                run_id: [{"seconds": pace[records[run_id].run.recipe]}] * n for run_id, n in epochs.items()
            }
            now = {
                run_id: LiveRun(Claim("", "here", packs[run_id], ""), 0.0, row)
                for run_id, row in rows.items()
            }
            board = live(Content(Collection(done, results.studies())), now)
            assert board["seconds_left"] == pytest.approx(shown.seconds_left(), rel=1e-6)


def user_runs(seeds: int) -> list[Run]:
    return [Run(PipelineRecipe.parse({"pipeline": "mine"}), 1.0, seed) for seed in range(seeds)]


def test_user_code_has_a_time_left_once_a_run_has_shown_its_length() -> None:
    clock, runs = Clock(), user_runs(3)
    shown = display(runs, clock)
    shown(Claimed((runs[0].id,)))
    for clock.now in (2.0, 4.0, 6.0):
        shown(EpochEnded((runs[0].id,), int(clock.now / 2)))
        assert shown.seconds_left() is None
    shown(Finished(((runs[0].id, "completed"),)))
    assert shown.seconds_left() == 12.0  # between two packs, a worker is a worker
    shown(Claimed((runs[1].id,)))
    clock.now = 8.0
    shown(EpochEnded((runs[1].id,), 1))
    assert shown.seconds_left() == 10.0


@pytest.mark.parametrize("lost", [WorkerLost(1, ("x",)), Faulted("out of memory", ("x",))])  # type: ignore[arg-type]
def test_time_in_which_nothing_was_trained_does_not_count(lost: Event) -> None:
    clock, runs = Clock(), user_runs(1)
    recipe = runs[0].recipe.replace(epochs=10)
    runs = [Run(recipe, 1.0, 0)]
    shown = display(runs, clock)
    shown(Claimed((runs[0].id,)))
    clock.now = 1.0
    shown(EpochEnded((runs[0].id,), 1))
    shown(lost._replace(runs=(runs[0].id,)))
    clock.now = 101.0
    shown(Claimed((runs[0].id,)))
    clock.now = 102.0
    shown(EpochEnded((runs[0].id,), 2))
    assert shown.seconds_left() == 8.0
