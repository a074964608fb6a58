"""Advice: clocks next to what was seen, and the least change that reaches a recipe that forgot."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import planted
from initmem.clocks import clocks, horizon_sums
from initmem.measures.advice import Observation, changes, family_clock, nearest, observations, reached
from initmem.measures.memory import memory_table
from initmem.paper.reference import observations as published
from initmem.recipe import Recipe
from initmem.record import RunRecord

N = 40_000
# Settings of the paper with their memory in points.
PAPER = [
    ({}, 26.5),
    ({"batch_size": 16}, 22.8),
    ({"batch_size": 16, "optimizer": "momentum"}, 10.9),
    ({"batch_size": 16, "optimizer": "adam"}, 1.6),
    ({"optimizer": "adam"}, 4.3),
    ({"optimizer": "adamw"}, 4.7),
    ({"learning_rate": 1e-2}, 23.8),
    ({"learning_rate": 1e-1}, 8.1),
    ({"learning_rate": 1e-2, "l2": 1e-3}, 17.4),
    ({"learning_rate": 1e-2, "l2": 5e-3}, 1.0),
    ({"learning_rate": 1e-2, "l2": 1e-2, "batch_size": 16}, 0.3),
    ({"schedule": "constant", "epochs": 5000}, 26.0),
    (
        {"optimizer": "momentum", "learning_rate": 0.1, "l2": 5e-4, "epochs": 200, "augment": "flip-crop"},
        0.0,
    ),
]


@pytest.mark.parametrize("fields", [{}, {"schedule": "constant"}, {"epochs": 1, "batch_size": 50_000}])
def test_totals_are_the_clocks_at_the_last_epoch(fields) -> None:
    recipe = Recipe.parse(fields)
    sums, end = horizon_sums(recipe, N), clocks(recipe, N).at_end()
    assert sums.eta == pytest.approx(end["adaptive"], rel=1e-9)
    assert sums.eta2 / recipe.batch_size == pytest.approx(end["sgd"], rel=1e-9)


@pytest.mark.parametrize(("fields", "memory"), PAPER)
def test_what_the_paper_saw_of_a_recipe_is_nearest_to_it(fields, memory: float) -> None:
    recipe = Recipe.parse(fields)
    first = nearest(recipe, N, published())[0]
    assert (first.source, first.memory) == ("paper", memory)
    assert first.clock == pytest.approx(family_clock(recipe, N)[1])
    assert first.forgot == (memory <= 2)
    assert (reached(recipe, N, published()) is not None) == (memory <= 2)


@pytest.mark.parametrize("fields", [{}, {"optimizer": "adam"}, {"learning_rate": 1e-2, "l2": 1e-3}])
def test_a_change_is_the_least_that_reaches_a_recipe_that_forgot(fields) -> None:
    recipe = Recipe.parse(fields)
    found = changes(recipe, N, published())
    assert found
    for one in found:
        # By the published values alone: what forgot, and nothing of its family at a larger clock remembers.
        assert one.seen.memory <= 2
        assert one.seen.clock <= one.clock == pytest.approx(one.seen.clock, rel=0.2)
        above = [o.memory for o in published() if o.family == one.seen.family and o.clock > one.seen.clock]
        assert not [memory for memory in above if memory > 3.5]
        # A step of two significant digits back towards the old value would not do.
        step = -1 if one.field == "batch_size" else 1
        less = one.value + 1 if one.field == "batch_size" else 0.9 * one.value
        if one.field in ("epochs", "batch_size"):
            less = int(less)
        if (less - getattr(recipe, one.field)) * step > 0:
            assert reached(recipe.replace(**{one.field: less}), N, published()) is None


def test_no_change_for_what_is_at_such_a_clock_already() -> None:
    assert changes(Recipe(learning_rate=1e-2, l2=1e-2), N, published()) == []
    assert changes(Recipe(), N, []) == []  # nothing was seen to forget


def test_a_recipe_that_remembers_at_a_larger_clock_overrules_one_that_forgot() -> None:
    recipe = Recipe(optimizer="adam")
    _, clock = family_clock(recipe, N)
    forgot = Observation("a", "early", recipe, "adaptive", clock / 2, 1.0, "1 pp", "forgets", True)
    assert reached(recipe, N, [forgot]) == forgot
    later = forgot._replace(label="later", clock=0.9 * clock, memory=9.0, verdict="remembers", forgot=False)
    assert reached(recipe, N, [forgot, later]) is None
    undetermined = later._replace(forgot=None)
    assert reached(recipe, N, [forgot, undetermined]) == forgot
    assert reached(recipe, N, [forgot._replace(family="l2")]) is None


def with_clock(record: RunRecord, factor: float) -> RunRecord:
    """A record whose clocks end where its recipe and a factor say."""
    ticks = {f"clock_{name}": factor * np.arange(1.0, 7.0) for name in ("sgd", "momentum", "adaptive")}
    return replace(record, history={**record.history, **ticks})


def test_records_are_seen_with_their_memory_verdict_and_last_clock() -> None:
    study = planted.study("two", planted.grid(optimizer=["sgd", "adam"], batch_size=[16, 128]))
    records = [with_clock(one, 1.0 / one.run.recipe.batch_size) for one in planted.records(study)]
    seen = observations(records, "mine")
    assert {(one.label, one.memory, one.verdict) for one in seen} == {
        (row.recipe, row.memory, row.verdict) for row in memory_table(records)
    }
    ends = {(one.family, round(one.clock, 9)) for one in seen}
    assert ends == {(family, round(6 / size, 9)) for family in ("sgd", "adaptive") for size in (16, 128)}
    asked = planted.recipe(optimizer="adam", batch_size=16)
    assert {one.family for one in nearest(asked, 100, seen)} == {"adaptive"}
    assert observations([], "none") == []
    assert observations([replace(one, history={}) for one in records], "no clocks") == []
