"""Several looks at one study: the schedule of --until, what each look spends, and seeds added by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import initmem
from conftest import fake_record
from initmem.engines.engine import Settings
from initmem.engines.execute import execute_until
from initmem.measures.design import Look, levels, look_of, looks_of, schedule
from initmem.recipe import Recipe
from initmem.store.store import Store, decode_study, encode_study
from initmem.study import Study

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
    execute_until(study, store, Planted(), width=width, max_seeds=most, pack=1, watch=lambda work: None)


def test_a_schedule_doubles_from_five_seeds_to_the_most() -> None:
    assert schedule(3, 30) == (5, 10, 20, 30)
    assert schedule(5, 12) == (5, 12)
    assert schedule(8, 30) == (8, 16, 30)
    assert schedule(3, 4) == (4,)
    assert schedule(10, 5) == (10,)
    for planned in ((5, 10, 20, 30), (5,), (8, 16, 30)):
        assert sum(levels(planned)) == pytest.approx(0.05)
        assert min(levels(planned)) > 0


def test_until_looks_at_planned_numbers_of_seeds_only(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    study = Study("s", "", "full", "", (NOISY, QUIET), (0.1, 1.0, 2.5), (0, 1, 2))
    until(study, store, 2.0, 20)
    (kept,) = store.studies()
    assert kept.schedule == (5, 10, 20)
    assert [len(kept.seeds_of(recipe)) for recipe in study.recipes] == [20, 5]
    last, first = look_of(kept, NOISY), look_of(kept, QUIET)
    assert (last.number, first.number) == (3, 1)
    assert last.spent == pytest.approx(0.05)
    assert first.alpha == pytest.approx(levels((5, 10, 20))[0])
    assert decode_study(encode_study(kept)) == kept
    until(study, store, 2.0, 20)  # the schedule is what it was, and nothing more is trained
    assert store.studies() == [kept]
    until(study, store, 2.0, 25)  # more than was planned
    beyond = look_of(store.studies()[0], NOISY)
    assert (beyond.number, beyond.alpha) == (4, 0.025)
    assert beyond.spent == pytest.approx(0.075)


def test_seeds_added_by_hand_are_looks(tmp_path: Path) -> None:
    def train(init, tracker):
        return {"test_accuracy": 0.8 + 0.01 * np.random.default_rng(init.seed).normal() + 0.001 * init.scale}

    def look(seeds) -> initmem.Memory:
        result = initmem.run(train, [0.5, 1.0], seeds, tmp_path, name="t", engine="inline", progress=False)
        return result.memory()

    assert (look(range(3)).look, look(range(3)).alpha) == (1, 0.05)
    second = look(range(5))
    assert (second.look, second.alpha, second.alpha_spent) == (2, 0.025, pytest.approx(0.075))
    assert any("look 2" in note for note in second.notes)
    assert look(range(4)).look == 2  # no new seed, no new look
    third = look(range(8))
    assert (third.look, third.alpha) == (3, 0.0125)
    (kept,) = Store(tmp_path).studies()
    assert looks_of([kept, replace(kept, looked=())])[kept.recipes[0]] == Look(
        3, 0.0125, pytest.approx(0.0875)
    )


def test_a_recipe_that_left_its_study_keeps_the_looks_at_it(tmp_path: Path, command) -> None:
    """Runs under one name with another recipe each time: the store keeps the last of these studies."""

    def train(init, tracker):
        rng = np.random.default_rng([init.seed, round(10 * init.scale)])
        return {"test_accuracy": 0.8 + 0.01 * rng.normal() + 0.001 * init.scale}

    for seeds in (range(3), range(5)):
        for rate in (0.1, 0.2):
            recipe = {"learning_rate": rate}
            result = initmem.run(
                train, [0.5, 1.0], seeds, tmp_path, name="t", recipe=recipe, engine="inline", progress=False
            )
            assert result.memory().look == 1 + (len(seeds) == 5)
    code, printed, _ = command("measure", tmp_path, "--json")
    assert code == 0
    assert [(row["look"], row["alpha"]) for row in json.loads(printed)["rows"]] == [(2, 0.025)] * 2
    _, printed, _ = command("measure", tmp_path)
    assert "tested at 2.5%, interval at 97.5%; 7.5% spent over all looks" in " ".join(printed.split())
