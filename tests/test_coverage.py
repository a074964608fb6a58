"""The short version of benchmarks/coverage.py, with negative controls that must be noticed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import pytest

from initmem.measures.statistics import Spread

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import coverage
from coverage import (
    EXCEPTION,
    FAMILIES,
    failure_rows,
    interim_rows,
    simulate,
    simulate_needed,
    simulate_pair,
    simulate_tables,
    size_rows,
)

STUDIES = 400
SLACK = 4 * np.sqrt(0.05 * 0.95 / STUDIES)  # four standard errors of a rate of 5%: there are 200 of them


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != EXCEPTION])
def test_intervals_cover_and_tests_keep_their_level(name: str) -> None:
    rng = np.random.default_rng(0)
    for scales, seeds in ((2, 3), (2, 10), (5, 3), (5, 10), (25, 5)):
        for memory, shape in ((0.0, "line"), (2.0, "line"), (5.0, "clusters")):
            row = simulate(FAMILIES[name], scales, seeds, memory, shape, STUDIES, rng)
            assert row["coverage"] >= 0.95 - SLACK
            assert row["contradictions"] == 0
            if memory == 0:
                assert row["significant"] <= 0.05 + SLACK


def test_large_memories_are_found_and_the_debiased_one_is_close() -> None:
    rng = np.random.default_rng(1)
    for scales, seeds in ((5, 5), (25, 5), (2, 5)):
        row = simulate(FAMILIES["normal"], scales, seeds, 5.0, "line", STUDIES, rng)
        assert row["significant"] >= 0.97
        assert abs(row["bias"]) < 1


def test_the_lower_limit_does_not_get_worse_with_more_seeds() -> None:
    rng = np.random.default_rng(2)
    for seeds in (10, 30, 100):
        row = simulate(FAMILIES["normal"], 25, seeds, 3.0, "clusters", 200, rng)
        assert row["coverage"] >= 0.92


def test_the_known_exception_is_still_one() -> None:
    """Skewed noise that grows tenfold over two scales: Student's own test fails there, as the docs say."""
    row = simulate(FAMILIES[EXCEPTION], 2, 10, 0.0, "line", 2000, np.random.default_rng(3))
    assert 0.85 < row["coverage"] < 0.94


def careless(values: np.ndarray, **_: float) -> Spread:
    """The percentile bootstrap of a maximum."""
    rng = np.random.default_rng(0)
    n = values.shape[1]
    drawn = np.stack([np.ptp(values[:, rng.integers(0, n, n)].mean(axis=1), axis=-1) for _ in range(200)])
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    point = np.ptp(values.mean(axis=1), axis=-1)
    return Spread(point, low, high, point, np.ones(len(point)), point)


def test_a_careless_interval_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coverage, "spreads", careless)
    row = simulate(FAMILIES["normal"], 5, 3, 1.0, "line", STUDIES, np.random.default_rng(0))
    assert row["coverage"] < 0.8
    assert row["contradictions"] > 0.9 * STUDIES


@pytest.mark.parametrize(("scales", "seeds"), [(2, 3), (5, 3), (5, 10)])
def test_differences_between_recipes(scales: int, seeds: int) -> None:
    rng = np.random.default_rng(0)
    for name in ("normal", "growing threefold"):
        for memory in (0.0, 5.0):
            same = simulate_pair(FAMILIES[name], scales, seeds, (memory, memory), STUDIES, rng)
            assert same["significant"] <= 0.05 + SLACK
            assert same["coverage"] >= 0.95 - SLACK
    apart = simulate_pair(FAMILIES["normal"], scales, seeds, (0.0, 30.0), STUDIES, rng)
    assert apart["significant"] >= 0.9
    assert apart["coverage"] >= 0.95 - SLACK


def test_planned_analyses_keep_the_level_and_unplanned_ones_do_not() -> None:
    slack = 3 * np.sqrt(0.05 * 0.95 / 150)
    for row in interim_rows(argparse.Namespace(studies=150), np.random.default_rng(0)):
        assert row["remembers"] <= 0.05 + slack
        assert row["forgets"] <= 0.025 + slack
        assert row["remembers_without_plan"] > 0.12


@pytest.mark.parametrize(
    "mixture", [{"none": 20}, {"none": 15, "within": 5}, {"none": 6, "edge": 6, "strong": 2}]
)
def test_few_of_the_verdicts_of_a_table_are_false(mixture: dict[str, int]) -> None:
    for scales in (2, 5):
        row = simulate_tables(mixture, scales, 5, 100, np.random.default_rng(0))
        assert row["false_share"] <= 0.05 + 0.04
        assert row["verdicts"] <= row["unadjusted_verdicts"]
        if mixture == {"none": 20}:
            assert row["unadjusted_false_share"] > 0.2  # the negative control


def test_a_memory_below_the_limit_is_hardly_ever_called_large() -> None:
    rows = list(size_rows(argparse.Namespace(studies=STUDIES), np.random.default_rng(0)))
    assert max(row["large"] for row in rows) <= 0.025 + 3 * np.sqrt(0.025 * 0.975 / STUDIES)
    assert max(row["large_by_estimate"] for row in rows) > 0.25  # the negative control


def test_the_seeds_that_should_settle_it_do_so_in_80_percent() -> None:
    rng = np.random.default_rng(0)
    rows = [simulate_needed(scales, 5, memory, 1.5, 25, rng) for scales in (2, 5) for memory in (0.0, 2.0)]
    assert 0.7 <= np.mean([row["settled"] for row in rows]) <= 0.95


def test_failures_at_one_scale_are_found_with_enough_seeds() -> None:
    rows = {
        (r["seeds"], r["rate"]): r
        for r in failure_rows(argparse.Namespace(studies=200), np.random.default_rng(0))
    }
    assert all(rows[n, 0.0]["rate_depends_on_scale"] == 0 for n in (3, 5, 10, 20))
    assert rows[10, 0.5]["rate_depends_on_scale"] > 0.8
    assert rows[20, 0.2]["forgets"] < 0.05
    assert all(row["forgets"] <= row["no_failure_seen"] for row in rows.values())
