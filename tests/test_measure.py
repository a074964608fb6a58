"""`initmem.measure` and the command give the same rows, from the same archives, for every measure."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import initmem
from conftest import fake_record
from initmem.errors import ConfigError
from initmem.measures.design import levels
from initmem.measures.measure import MEASURES
from initmem.recipe import Recipe
from initmem.store.results import open_results
from initmem.store.store import Store
from initmem.study import Run, Study

RESULTS = Path(__file__).parents[1] / "docs" / "results"
SGD, ADAM = Recipe(dataset="digits"), Recipe(dataset="digits", optimizer="adam")


@pytest.mark.parametrize("name", ["chaos-mini", "undertrained"])
def test_api_and_command_line_agree_on_every_measure(name: str, command) -> None:
    archive = RESULTS / f"{name}.initmem"
    opened = open_results(archive)
    for what in ("memory", *MEASURES):
        code, printed, _ = command("measure", archive, "--what", what, "--json")
        assert code == 0
        rows = json.loads(printed)["rows"]
        assert initmem.measure(opened, what) == rows, what
        if what == "memory":
            assert [row.to_json()["verdict"] for row in initmem.memory_table(archive)] == [
                row["verdict"] for row in rows
            ]


@pytest.fixture
def planned(tmp_path: Path) -> Store:
    """Two recipes at the second of three planned analyses: a weak memory, and none."""
    store = Store.create(tmp_path / "store")
    study = Study("s", "", "full", "", (SGD, ADAM), (0.1, 1.0, 2.5), tuple(range(10)), schedule=(5, 10, 20))
    store.add_study(study)
    for run in study.all_runs():
        noise = np.random.default_rng([run.seed, int(10 * run.scale), run.recipe == SGD]).normal()
        store.commit([fake_record(run, 0.8 + 0.01 * noise + (0.006 * run.scale if run.recipe == SGD else 0))])
    return store


def test_the_levels_of_a_plan_reach_every_door(planned: Store, command) -> None:
    level = levels((5, 10, 20))[1]
    rows = initmem.measure(planned)
    assert [row["alpha"] for row in rows] == [level] * 2
    _, printed, _ = command("measure", planned.path, "--json")
    assert json.loads(printed)["rows"] == rows
    table = initmem.memory_table(planned)
    assert [(row.low, row.high, row.verdict) for row in table] == [
        (row["low"], row["high"], row["verdict"]) for row in rows
    ]
    without = {row.recipe: row.high for row in initmem.memory_table(planned.records())}  # knows of no plan
    assert all(without[row.recipe] < row.high for row in table)
    (difference,) = initmem.measure(planned, "difference")
    (alone,) = initmem.measure(planned.records(), "difference")
    assert difference["high"] - difference["low"] > alone["high"] - alone["low"]


def test_sources_are_stores_archives_paths_lists_of_these_and_records(planned: Store) -> None:
    rows = initmem.measure(planned)
    for source in (str(planned.path), planned.path, [planned], [planned.path, planned]):
        assert initmem.measure(source) == rows
    assert {row["recipe"] for row in initmem.measure(planned.records())} == {row["recipe"] for row in rows}


def test_options_are_those_of_the_command(planned: Store) -> None:
    (sgd, _) = initmem.measure(planned, scales=[0.1, 2.5], tolerance=50.0, adjust="none")
    assert (sgd["n_scales"], sgd["verdict"]) == (2, "forgets")
    assert "(unadjusted)" in sgd["verdict_text"]
    with pytest.raises(ConfigError, match=r"scales = \[7\] \(allowed: 0.1, 1.0, 2.5"):
        initmem.measure(planned, scales=[0.1, 7])
    with pytest.raises(ConfigError, match="tolerance does nothing with what = 'beta'"):
        initmem.measure(planned, "beta", tolerance=1.0)
    with pytest.raises(ConfigError, match=r"what = 'memorie' .did you mean memory"):
        initmem.measure(planned, "memorie")


def test_runs_of_one_recipe_at_chance_are_untrained() -> None:
    runs = [Run(SGD, scale, seed) for scale in (0.1, 1.0) for seed in range(5)]
    (row,) = initmem.measure([fake_record(run, 0.1) for run in runs])
    assert (row["verdict"], row["untrained"]) == ("untrained", 10)
    assert any("10 of 10 runs are untrained (at chance or diverged)" in note for note in row["notes"])
    (some,) = initmem.measure([fake_record(run, 0.1 if run.seed else 0.9) for run in runs])
    assert some["verdict"] != "untrained"
