"""A short version of benchmarks/coverage.py: rates of cover and of false and missed alarms."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from initmem.measures import statistics

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from coverage import simulate, simulate_pair

STUDIES = 120


@pytest.fixture(autouse=True)
def fewer_draws(monkeypatch) -> None:
    monkeypatch.setattr(statistics, "DRAWS", 500)


@pytest.mark.parametrize("unequal", [False, True])
@pytest.mark.parametrize(("scales", "seeds"), [(2, 5), (5, 3), (25, 10)])
def test_intervals_cover_and_verdicts_hold(scales: int, seeds: int, unequal: bool) -> None:
    rng = np.random.default_rng(0)
    nothing = simulate(scales, seeds, unequal, 0.0, "line", STUDIES, rng)
    planted = simulate(scales, seeds, unequal, 5.0, "line", STUDIES, rng)
    # Within three standard errors of what the long version shows.
    assert nothing["remembers"] <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / STUDIES)
    assert planted["remembers"] >= 0.95 - 3 * np.sqrt(0.05 * 0.95 / STUDIES)
    for row in (nothing, planted):
        assert row["coverage"] >= 0.95 - 3 * np.sqrt(0.05 * 0.95 / STUDIES)


def test_a_careless_interval_would_be_seen(monkeypatch) -> None:
    """The negative control: the plain percentile bootstrap covers far too rarely with three seeds."""

    def careless(values, *, rng, level=0.95):
        index = rng.integers(0, len(values), (500, len(values)))
        drawn = statistics.spread_of(values[index].mean(axis=1))
        low, high = np.quantile(drawn, [0.025, 0.975])
        point = float(statistics.spread_of(values.mean(axis=0)))
        return statistics.Spread(point, low, high, 0.0, 0.0, point, None)

    monkeypatch.setattr(statistics, "spread", careless)
    row = simulate(5, 3, False, 1.0, "line", STUDIES, np.random.default_rng(0))
    assert row["coverage"] < 0.8


@pytest.mark.parametrize("unequal", [False, True])
@pytest.mark.parametrize(("scales", "seeds"), [(2, 3), (5, 3), (5, 10)])
def test_differences_between_recipes_are_sure_where_there_is_one(
    scales: int, seeds: int, unequal: bool
) -> None:
    rng = np.random.default_rng(0)
    slack = 3 * np.sqrt(0.05 * 0.95 / STUDIES)
    for memory in (0.0, 5.0):
        same = simulate_pair(scales, seeds, unequal, (memory, memory), STUDIES, rng)
        assert same["sure"] <= 0.05 + slack
        assert same["coverage"] >= 0.95 - slack
    apart = simulate_pair(scales, seeds, unequal, (30.0, 0.0), STUDIES, rng)
    assert apart["sure"] >= 0.9
    assert apart["coverage"] >= 0.95 - slack
