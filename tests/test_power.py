from __future__ import annotations

import json

import numpy as np
import pytest

import planted
from conftest import fake_record
from initmem.errors import ConfigError
from initmem.measures.advice import pooled_noise, power_rows, rates, seeds_to_find, seeds_to_forget
from initmem.measures.statistics import spreads


def noisy(study, sigma: float):
    rng = np.random.default_rng(0)
    levels = {seed: 0.05 * rng.normal() for seed in study.seeds}
    return [fake_record(r, 0.5 + levels[r.seed] + sigma * rng.normal()) for r in study.all_runs()]


def test_the_seeds_that_are_named_have_the_power_that_is_named() -> None:
    needed = seeds_to_find(5, 3.0)
    fresh = np.random.default_rng(99)
    found = spreads(np.linspace(0, 3, 5) + fresh.standard_normal((1000, needed, 5))).p <= 0.05
    assert found.mean() >= 0.75
    fewer = spreads(np.linspace(0, 3, 5) + fresh.standard_normal((1000, needed - 1, 5))).p <= 0.05
    assert fewer.mean() < 0.85
    enough = seeds_to_forget(5, 3.0)
    assert (spreads(fresh.standard_normal((1000, enough, 5))).high <= 3).mean() >= 0.75
    assert seeds_to_find(5, 0.01) is None
    assert rates(5, 1, 3.0) == (0.0, 0.0)


def test_the_noise_of_a_pilot_is_pooled_over_scales_and_free_of_seed_levels() -> None:
    study = planted.study("s", planted.grid(optimizer=["sgd", "adam"]), seeds=range(40))
    records = noisy(study, 0.01)
    assert pooled_noise([r for r in records if r.run.recipe == study.recipes[0]]) == pytest.approx(
        1, rel=0.15
    )
    rows = power_rows(study, noise=None, pilot=records)
    assert [row["noise_from"] for row in rows] == ["pilot", "pilot"]
    other = planted.study("t", planted.grid(optimizer=["muon"]))
    (row,) = power_rows(other, noise=None, pilot=records)
    assert (row["noise_from"], row["planned"]) == ("pilot, other recipes", 3)
    assert row["seeds_to_find"] < row["seeds_to_forget"]
    with pytest.raises(ConfigError, match="allowed: points, or a store"):
        power_rows(study, noise=None)


def test_plan_prints_the_power(command) -> None:
    code, out, _ = command("plan", "quickstart", "--power", "1.5", "--memory", "6", "--json")
    assert code == 0
    rows = json.loads(out)["rows"]
    assert {row["noise"] for row in rows} == {1.5}
    assert all(row["memory"] == 6 and row["seeds_to_find"] <= row["seeds_to_forget"] for row in rows)
    code, _, complaint = command("plan", "quickstart", "--power", "-1")
    assert code == 2 and "allowed: points above 0, or a store" in complaint
    code, _, complaint = command("plan", "quickstart", "--power", "nowhere")
    assert code == 2 and "no store here" in complaint
