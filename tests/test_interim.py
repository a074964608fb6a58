"""Interim analyses of one study: the schedule of --until, the levels, and seeds added without a plan."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

import initmem
from conftest import fake_record
from initmem.engines.engine import Settings
from initmem.measures.design import alpha_spent, analyses_of, analysis_of, levels, schedule
from initmem.recipe import Recipe
from initmem.session import run_study
from initmem.store.encoding import decode_study, encode_study
from initmem.store.store import Store
from initmem.study import Study

run = functools.partial(initmem.run, name="t", engine="inline", workdir="shared", progress=False)
NOISY, QUIET = Recipe(dataset="digits"), Recipe(dataset="digits", optimizer="adam")


class Planted:
    """An engine that trains nothing: test accuracies with a noise of 3 points, or of 0.1."""

    workers, settings = 1, Settings()

    def run(self, store: Store, packs, listen) -> bool:
        for run in (run for pack in packs for run in pack if not store.has(run)):
            noise = np.random.default_rng([run.seed, int(10 * run.scale)]).normal()
            size = 0.03 if run.recipe == NOISY else 0.001
            store.commit([fake_record(run, 0.8 + size * noise)])
        return True


def until(study: Study, store: Store, width: float, most: int) -> None:
    run_study(study, store.path, Planted(), until=width, max_seeds=most, pack=1)


def test_a_schedule_doubles_from_five_seeds_to_the_most() -> None:
    assert schedule(3, 30) == (5, 10, 20, 30)
    assert schedule(5, 12) == (5, 12)
    assert schedule(8, 30) == (8, 16, 30)
    assert schedule(3, 4) == (4,)
    assert schedule(10, 5) == (10,)


def test_levels_are_the_published_ones() -> None:
    """Five equal steps: the limits of Lan and DeMets' Pocock-type function (Reboussin et al. 2000)."""
    limits = norm.isf(np.array(levels((1, 2, 3, 4, 5))) / 2)
    assert limits == pytest.approx([2.4380, 2.4268, 2.4102, 2.3966, 2.3860], abs=2e-4)
    assert levels((7,)) == (0.05,)


@pytest.mark.parametrize("planned", [(5, 10, 20, 30), (8, 16, 30), (5, 12)])
def test_alpha_is_spent_as_planned(planned: tuple[int, ...]) -> None:
    draws = np.random.default_rng(0).standard_normal((100_000, planned[-1])).cumsum(axis=1)
    z = np.abs(draws[:, np.array(planned) - 1]) / np.sqrt(planned)
    rejected = np.maximum.accumulate(z >= norm.isf(np.array(levels(planned)) / 2), axis=1).mean(axis=0)
    assert rejected == pytest.approx([alpha_spent(n / planned[-1]) for n in planned], abs=0.003)
    assert (z >= norm.isf(0.025)).any(axis=1).mean() > 0.075  # at 5% each: far more


def test_until_analyzes_at_planned_numbers_of_seeds_only(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    study = Study("s", "", "full", "", (NOISY, QUIET), (0.1, 1.0, 2.5), (0, 1, 2))
    until(study, store, 2.0, 20)
    (kept,) = store.studies()
    assert kept.schedule == (5, 10, 20)
    assert [len(kept.seeds_of(recipe)) for recipe in study.recipes] == [20, 5]
    last, first = analysis_of(kept, NOISY), analysis_of(kept, QUIET)
    assert (last.number, first.number) == (3, 1)
    assert last.spent == pytest.approx(0.05)
    assert first.alpha == pytest.approx(levels((5, 10, 20))[0])
    assert decode_study(encode_study(kept)) == kept
    until(study, store, 2.0, 20)  # the schedule is what it was, and nothing more is trained
    assert store.studies() == [kept]
    until(study, store, 2.0, 25)  # more than was planned
    beyond = analysis_of(store.studies()[0], NOISY)
    assert (beyond.number, beyond.alpha, beyond.unplanned) == (3, levels((5, 10, 20))[2], (20,))


def test_seeds_added_without_a_plan_are_noted_and_have_no_level(tmp_path: Path) -> None:
    def train(init, tracker):
        return {"test_accuracy": 0.8 + 0.01 * np.random.default_rng(init.seed).normal() + 0.001 * init.scale}

    def measured(seeds) -> initmem.Memory:
        result = run(train, [0.5, 1.0], seeds, tmp_path)
        return result.memory()

    def unplanned(row: initmem.Memory) -> list[str]:
        assert (row.analysis, row.alpha, row.alpha_spent) == (1, 0.05, 0.05)
        return [note for note in row.notes if "without a plan" in note]

    assert not unplanned(measured(range(3)))
    assert unplanned(measured(range(5))) == [
        "seeds were added after a first analysis (3, then 5) without a plan: the error rate of the verdict "
        "is above 5%"
    ]
    assert "(3, then 4)" in unplanned(measured(range(4)))[0]  # nothing was added
    assert "(3, then 4, then 8)" in unplanned(measured(range(8)))[0]
    (kept,) = Store(tmp_path).studies()
    known = analyses_of([kept, replace(kept, analyzed=())])[kept.recipes[0]]
    assert known.unplanned == (3, 4)


def test_a_recipe_that_left_its_study_keeps_its_analyses(tmp_path: Path, command) -> None:
    """Runs under one name with another recipe each time: the store keeps the last of these studies."""

    def train(init, tracker):
        rng = np.random.default_rng([init.seed, round(10 * init.scale)])
        return {"test_accuracy": 0.8 + 0.01 * rng.normal() + 0.001 * init.scale}

    for seeds in (range(3), range(5)):
        for rate in (0.1, 0.2):
            recipe = {"learning_rate": rate}
            result = run(train, [0.5, 1.0], seeds, tmp_path, recipe=recipe)
            noted = any("without a plan" in note for note in result.memory().notes)
            assert noted == (len(seeds) == 5)
    code, printed, _ = command("measure", tmp_path, "--json")
    assert code == 0
    assert all(any("(3, then 5)" in note for note in row["notes"]) for row in json.loads(printed)["rows"])
    _, printed, _ = command("measure", tmp_path)
    assert "seeds were added after a first analysis (3, then 5)" in " ".join(printed.split())
