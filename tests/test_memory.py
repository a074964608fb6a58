from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from conftest import fake_record
from initmem.errors import ConfigError
from initmem.measures.memory import judge, memory, memory_table
from initmem.measures.statistics import (
    Spread,
    noise,
    permutation_p,
    scale_test,
    seeds_needed,
    shrink,
    spread,
    upper_bound,
)
from initmem.recipe import Recipe
from initmem.study import Run

RECIPE = Recipe(dataset="digits")
SCALES = (0.1, 0.5, 1.0, 1.8, 2.5)


def records(values: np.ndarray, recipe: Recipe = RECIPE):
    """Records whose test accuracies are values / 100, shape (seed, scale)."""
    return [
        fake_record(Run(recipe, scale, seed), values[seed, i] / 100)
        for seed in range(values.shape[0])
        for i, scale in enumerate(SCALES[: values.shape[1]])
    ]


def test_the_point_is_the_spread_of_the_means() -> None:
    values = np.random.default_rng(0).normal(80, 5, (6, 5))
    found = memory(records(values))
    by_hand = [sum(values[s][g] for s in range(6)) / 6 for g in range(5)]
    assert found.memory == pytest.approx(max(by_hand) - min(by_hand), rel=1e-12)
    assert (found.n_scales, found.n_seeds, found.unit) == (5, 6, "pp")


def test_a_planted_effect_is_found_and_its_absence_is_not() -> None:
    rng = np.random.default_rng(1)
    noisy = rng.normal(0, 1, (5, 5))
    planted = memory(records(80 + noisy + np.linspace(10, 0, 5)))
    assert planted.verdict == "remembers"
    assert planted.low < 10 < planted.high
    assert planted.p < 0.01
    nothing = memory(records(80 + noisy))
    assert nothing.verdict != "remembers"
    assert nothing.p > 0.05
    assert nothing.low == 0
    quiet = memory(records(80 + 0.1 * noisy))
    assert quiet.verdict == "forgets"


def test_the_null_spread_is_what_theory_says() -> None:
    """max - min of five standard normals has mean 2.326 (of 25: 3.931, of 2: 1.128)."""
    rng = np.random.default_rng(2)
    for scales, expected in ((2, 1.128), (5, 2.326), (25, 3.931)):
        values = rng.standard_normal((400, scales))
        floor = spread(values, rng=rng).floor
        assert floor == pytest.approx(expected / np.sqrt(400), rel=0.1)


def test_for_two_scales_the_limits_are_students() -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(0, 1, (6, 2)) + np.array([0, 20])
    test = stats.ttest_rel(values[:, 1], values[:, 0])
    interval = test.confidence_interval(0.95)
    assert upper_bound(values, tail=0.025) == pytest.approx(interval.high, rel=1e-9)
    assert spread(values, rng=rng).low == pytest.approx(interval.low, rel=0.02)


def test_for_two_scales_p_is_welchs() -> None:
    rng = np.random.default_rng(4)
    values = rng.normal(0, 1, (5, 2)) * [1, 3] + [0, 1]
    expected = stats.ttest_ind(values[:, 0], values[:, 1], equal_var=False).pvalue
    assert scale_test(values) == pytest.approx(expected, rel=1e-9)
    assert scale_test(np.ones((3, 2))) == 1.0
    assert scale_test(np.tile([1.0, 2.0, 3.0], (3, 1))) == 0.0


@pytest.mark.parametrize("noise_ratio", [1.0, 4.0])
def test_p_keeps_its_level_when_noise_grows_with_scale(noise_ratio: float) -> None:
    rng = np.random.default_rng(9)
    sizes = np.linspace(1, noise_ratio, 25)
    tables = [rng.normal(0, 1, (5, 25)) * sizes + rng.normal(0, 2, (5, 1)) for _ in range(300)]
    called = np.mean([scale_test(values) <= 0.05 for values in tables])
    assert called <= 0.075  # 5% and two standard errors of 300 trials
    permuted = np.mean([permutation_p(v, np.ptp(v.mean(0)), rng=rng) <= 0.05 for v in tables[:150]])
    # The negative control: permuting labels holds its level for equal noise only.
    assert permuted <= 0.09 if noise_ratio == 1 else permuted > 0.09


def test_permuting_labels_is_exact_in_a_case_that_can_be_counted() -> None:
    """Three seeds, two scales, all differences alike: 2 of 8 arrangements are as extreme."""
    values = np.array([[0.0, 1.0], [0.0, 1.1], [0.0, 1.2]])
    found = permutation_p(values, np.ptp(values.mean(0)), rng=np.random.default_rng(0))
    assert found == pytest.approx(0.25, abs=0.03)


def test_seeds_needed_is_what_a_larger_study_takes() -> None:
    wide = Spread(1.0, 0.0, 4.0, 0.5, 0.3, 0.9, 0.3)
    needed = seeds_needed(wide, 5, 2.0)
    assert needed is not None
    assert 10 < needed < 60
    unit = stats.t.ppf(0.975, 4) / np.sqrt(5)
    half = (4.0 - 0.9) / unit * stats.t.ppf(0.975, needed - 1) / np.sqrt(needed)
    assert 0.9 - half > 0 or 0.9 + half <= 2.0
    assert seeds_needed(Spread(1.0, None, None, None, None, None, None), 1, 2.0) is None


def test_seeds_are_resampled_and_scales_are_not() -> None:
    """A level shared by all scales of a seed is no uncertainty of the spread."""
    rng = np.random.default_rng(5)
    levels = rng.normal(0, 50, (6, 1))
    values = levels + np.linspace(0, 10, 5) + rng.normal(0, 0.1, (6, 5))
    found = spread(values, rng=rng)
    assert found.high - found.low < 1
    unpaired = rng.permuted(values, axis=0)
    assert spread(unpaired, rng=rng).high - spread(unpaired, rng=rng).low > 20


def test_noise_has_the_covariance_of_the_mean() -> None:
    rng = np.random.default_rng(6)
    values = rng.normal(0, 1, (8, 3)) @ np.array([[1, 0.5, 0], [0, 1, 0], [0, 0, 3]])
    drawn = noise(values, rng=rng, known_variance=True)
    assert np.allclose(np.cov(drawn.T), np.cov(values.T) / 8, atol=0.15)


def test_shrinkage_takes_noise_away_and_leaves_effects() -> None:
    rng = np.random.default_rng(7)
    noisy = rng.normal(0, 1, (5, 5))
    assert np.ptp(shrink(noisy)) < 0.8 * np.ptp(noisy.mean(0))
    strong = noisy + np.linspace(0, 100, 5)
    assert np.allclose(shrink(strong), strong.mean(0), rtol=0.05, atol=0.1)


def test_only_complete_seeds_count() -> None:
    values = np.random.default_rng(8).normal(80, 1, (4, 5))
    found = records(values)
    missing = [r for r in found if not (r.run.seed == 2 and r.run.scale == 1.0)]
    measured = memory(missing)
    assert measured.n_seeds == 3
    expected = np.delete(values, 2, axis=0).mean(0)
    assert measured.memory == pytest.approx(np.ptp(expected))


def test_one_seed_gives_a_point_and_no_verdict() -> None:
    found = memory(records(np.array([[90.0, 80.0, 70.0]])))
    assert found.memory == pytest.approx(20)
    assert (found.low, found.p, found.verdict) == (None, None, "undetermined")
    nothing = memory([r for r in records(np.full((2, 2), 80.0)) if r.run.scale != SCALES[r.run.seed]])
    assert (nothing.memory, nothing.n_seeds, nothing.verdict) == (None, 0, "undetermined")


def test_no_noise_at_all_is_no_trouble() -> None:
    assert memory(records(np.full((3, 5), 80.0))).verdict == "forgets"
    assert memory(records(np.tile([90.0, 80.0, 70.0], (3, 1)))).verdict == "remembers"


@pytest.mark.parametrize(
    ("p", "high", "verdict"),
    [(0.001, 30, "remembers"), (0.001, 1, "forgets"), (0.5, 1, "forgets"), (0.5, 9, "undetermined")],
)
def test_verdicts(p: float, high: float, verdict: str) -> None:
    assert judge(p, high, 2.0) == verdict


def test_the_table_has_a_row_per_recipe_in_the_asked_order() -> None:
    adam = Recipe(dataset="digits", optimizer="adam")
    values = np.full((2, 3), 80.0)
    rows = memory_table(records(values) + records(values, adam), order=[adam])
    assert [row.recipe for row in rows] == ["adam", "sgd"]
    assert str(rows[0]) == "0 pp [0, 0], floor 0, forgets"
    twice = memory_table(records(values), order=[RECIPE, RECIPE])  # two studies may share a recipe
    assert len(twice) == 1


def test_other_metrics_and_unknown_ones() -> None:
    found = memory(records(np.full((2, 3), 80.0)), "norm_best")
    assert (found.unit, found.memory) == ("", 0.0)
    with pytest.raises(ConfigError, match=r"metric = 'beauty' .allowed: .*test_accuracy"):
        memory(records(np.full((2, 3), 80.0)), "beauty")
