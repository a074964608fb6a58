from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from conftest import fake_record
from initmem.errors import ConfigError
from initmem.measures.design import Analysis
from initmem.measures.memory import judged, memory, memory_table
from initmem.measures.scales import equal_rates_p, failures, rate_limits
from initmem.measures.statistics import (
    adjusted,
    equivalence_p,
    expected_range,
    noise_of,
    seeds_needed,
    smallest_range,
    spread,
    spreads,
)
from initmem.measures.verdict import columns_of, verdict_table
from initmem.recipe import PipelineRecipe, Recipe
from initmem.study import Run
from initmem.table import interval

RECIPE = Recipe(dataset="digits")
SCALES = (0.1, 0.5, 1.0, 1.8, 2.5)


def records(values: np.ndarray, recipe: Recipe | PipelineRecipe = RECIPE):
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


def test_the_noise_range_is_the_expected_range_of_noise() -> None:
    """max - min of five standard normals has mean 2.326 (of 25: 3.931, of 2: 1.128)."""
    rng = np.random.default_rng(2)
    for scales, expected in ((2, 1.128), (5, 2.326), (25, 3.931)):
        assert expected_range(scales) == pytest.approx(expected, abs=1e-3)
        found = spread(rng.standard_normal((400, scales)) * 3 + rng.normal(0, 50, (400, 1)))
        assert found.noise_range == pytest.approx(3 * expected / np.sqrt(400), rel=0.1)


def test_for_two_scales_everything_is_the_paired_t_test() -> None:
    rng = np.random.default_rng(3)
    for shift in (0.1, 1.0, 20.0):
        values = rng.normal(0, 1, (6, 2)) * [1, 3] + rng.normal(0, 5, (6, 1)) + [0, shift]
        test = stats.ttest_rel(values[:, 1], values[:, 0])
        interval = test.confidence_interval(0.95)
        ends = sorted(abs(v) for v in (interval.low, interval.high))
        found = spread(values)
        assert found.p == pytest.approx(test.pvalue, rel=1e-9)
        assert found.high == pytest.approx(ends[1], rel=1e-9)
        assert found.low == pytest.approx(ends[0] if test.pvalue <= 0.05 else 0.0, rel=1e-6)


def test_without_a_correction_p_is_the_test_of_greenhouse_and_geisser() -> None:
    """With many seeds the degrees of freedom are those of the textbook, computed here by another way."""
    values = np.random.default_rng(4).normal(0, 1, (40, 4)) @ np.diag([1.0, 1.0, 2.0, 4.0])
    contrasts = np.linalg.qr(np.column_stack([np.ones(4), np.eye(4)[:, :3]]))[0][:, 1:]
    covariance = np.cov((values @ contrasts).T)
    epsilon = np.trace(covariance) ** 2 / (3 * (covariance**2).sum())
    scores = values @ contrasts
    f = 40 * (scores.mean(0) ** 2).sum() / np.trace(covariance)
    assert noise_of(values).total == pytest.approx(np.trace(covariance))
    expected = stats.f.sf(f, 3 * epsilon, 3 * epsilon * 39)
    assert spread(values).p == pytest.approx(expected, rel=0.05)


def test_the_lower_limit_inverts_the_test() -> None:
    """No profile of a smaller range is accepted, and one of that range is: found by a general optimizer."""
    from scipy.optimize import minimize

    rng = np.random.default_rng(5)
    values = rng.normal(0, 1, (6, 5)) + np.array([0, 3.0, 3.1, 1.0, -2.0])
    low, means, n = spread(values).low, values.mean(0), len(values)
    noise = noise_of(values)
    radius = np.sqrt(stats.f.ppf(0.95, noise.freedom, noise.freedom * (n - 1)) * noise.total / n)
    best = np.inf
    for _ in range(20):  # minimise the distance over profiles of that range
        start = np.append(rng.uniform(0, low, 5), -1.0)
        found = minimize(
            lambda x: float(((means - x[:5] - x[5]) ** 2).sum()),
            start,
            bounds=[(0, low)] * 5 + [(None, None)],
        )
        best = min(best, found.fun)
    assert np.sqrt(best) == pytest.approx(radius, rel=1e-4)
    assert smallest_range(means, np.array(0.0)) == pytest.approx(np.ptp(means))
    assert smallest_range(means, np.array(1e9)) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("alpha", [0.05, 0.01])
def test_test_interval_and_verdict_never_contradict_each_other(alpha: float) -> None:
    rng = np.random.default_rng(6)
    for n, k in ((2, 2), (2, 5), (3, 5), (5, 25), (10, 3)):
        effect = rng.uniform(0, 4, (500, 1, 1)) * rng.random((500, 1, k))
        # Rounded, so that ties and zero variances occur.
        values = np.round(effect + rng.standard_normal((500, n, k)), 1)
        found = spreads(values, alpha=alpha, bound=12.0)
        assert ((found.low > 0) == (found.p <= alpha)).all()
        assert (found.low <= found.spread).all()
        assert (found.spread <= found.high).all()
        assert found.high.max() <= 12
        assert ((found.low <= found.debiased) & (found.debiased <= found.spread)).all()
        for row, high in zip(values[:50], spreads(values, alpha=alpha).high, strict=False):
            assert (equivalence_p(row, 2.0) <= alpha / 2) == (high <= 2.0)


@pytest.mark.parametrize("noise_ratio", [1.0, 4.0])
def test_p_keeps_its_level_when_noise_grows_with_scale(noise_ratio: float) -> None:
    rng = np.random.default_rng(9)
    sizes = np.linspace(1, noise_ratio, 25)
    tables = rng.normal(0, 1, (1000, 5, 25)) * sizes + rng.normal(0, 2, (1000, 5, 1))
    assert (spreads(tables).p <= 0.05).mean() <= 0.065
    slopes = rng.normal(0, 1, (1000, 5, 1)) * np.linspace(-1, 1, 25) + 0.2 * tables
    assert (spreads(slopes).p <= 0.05).mean() <= 0.065
    # The negative control: a test that takes scales for independent is wrong here.
    means, within = slopes.mean(axis=1), slopes - slopes.mean(axis=2, keepdims=True)
    f = 5 * means.var(axis=1, ddof=1) / within.var(axis=1, ddof=1).mean(axis=1)
    assert (stats.f.sf(f, 24, 96) <= 0.05).mean() > 0.09


def test_the_debiased_memory_is_less_biased() -> None:
    rng = np.random.default_rng(10)
    for scales, seeds in ((25, 10), (25, 30), (5, 5)):
        clusters = np.where(np.arange(scales) < scales // 2, 0.0, 3.0)
        for profile in (clusters, np.linspace(0, 3, scales), np.zeros(scales)):
            found = spreads(profile + rng.standard_normal((400, seeds, scales)))
            bias = (found.debiased.mean() - np.ptp(profile)) * np.sqrt(seeds)  # in standard errors
            assert abs(bias) < 1.1
    as_observed = spreads(clusters + rng.standard_normal((400, 5, 5))).spread.mean() - 3
    assert as_observed * np.sqrt(5) > 1.2  # the negative control


def test_seeds_needed_is_what_a_larger_study_takes() -> None:
    rng = np.random.default_rng(11)
    values = rng.normal(0, 1, (5, 5)) + np.array([0, 0.3, 0.6, 0.9, 1.2])
    known = spread(values)
    assert known.p > 0.05
    needed = seeds_needed(values, None)
    share = known.debiased / known.spread

    def settled(n: int) -> bool:
        """A study of n seeds with the same means and covariance."""
        noise = np.linalg.cholesky(np.cov(values.T) + 1e-12 * np.eye(5))
        white = rng.standard_normal((n, 5))
        white = (white - white.mean(0)) @ np.linalg.inv(np.linalg.cholesky(np.cov(white.T))).T
        return spread(white @ noise.T + share * values.mean(0)).p <= 0.05

    assert needed is not None
    assert settled(needed + 5)
    assert not settled(max(needed // 2, 6))
    tight = seeds_needed(rng.normal(0, 0.8, (5, 5)), 2.0)
    assert tight is not None and 5 < tight < 60
    assert seeds_needed(values[:1], 2.0) is None


def test_a_level_shared_by_all_scales_of_a_seed_is_no_uncertainty() -> None:
    rng = np.random.default_rng(5)
    levels = rng.normal(0, 50, (6, 1))
    values = levels + np.linspace(0, 10, 5) + rng.normal(0, 0.1, (6, 5))
    found = spread(values)
    assert found.high - found.low < 1
    unpaired = spread(rng.permuted(values, axis=0))
    assert unpaired.high - unpaired.low > 20


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_only_seeds_with_a_finite_value_at_every_scale_count(value: float | None) -> None:
    values = 80 + np.random.default_rng(0).normal(0, 0.5, (5, 3))
    without = memory(records(np.delete(values, 4, axis=0)))
    values[4, 1] = 80 if value is None else value
    found = memory([r for r in records(values) if value or (r.run.seed, r.run.scale) != (4, SCALES[1])])
    assert found.dropped_seeds == (4,) and found.n_seeds == 4
    for field in ("memory", "low", "high", "p"):
        assert getattr(found, field) == getattr(without, field)
    why = "is not trained yet" if value is None else "has no finite value"
    assert f"left out, because a scale {why}: seed 4" in found.notes


def test_one_seed_gives_a_point_and_no_verdict() -> None:
    found = memory(records(np.array([[90.0, 80.0, 70.0]])))
    assert found.memory == pytest.approx(20)
    assert (found.low, found.p, found.verdict) == (None, None, "inconclusive")
    nothing = memory([r for r in records(np.full((2, 2), 80.0)) if r.run.scale != SCALES[r.run.seed]])
    assert (nothing.memory, nothing.n_seeds, nothing.verdict) == (None, 0, "inconclusive")


def test_no_noise_at_all_is_no_trouble() -> None:
    same = memory(records(np.full((3, 5), 80.0)))
    assert (same.verdict, same.p, same.high) == ("forgets", 1.0, 0.0)
    exact = memory(records(np.tile([90.0, 80.0, 70.0], (3, 1))))
    assert (exact.verdict, exact.p) == ("remembers", 0.0)
    assert exact.low == pytest.approx(20) and exact.high == pytest.approx(20)
    (note,) = [note for note in exact.notes if "is the seed used?" in note]
    assert "the same differences between scales" in note
    shifted = memory(records(np.tile([90.0, 80.0, 70.0], (3, 1)) + np.arange(3)[:, None]))
    assert any("the same differences between scales" in note for note in shifted.notes)


def test_an_interval_of_accuracies_stays_within_what_they_can_be() -> None:
    wild = memory(records(np.array([[0.0, 100.0], [100.0, 0.0], [0.0, 90.0]])))
    assert wild.high == 100
    assert memory(records(np.array([[0.0, 100.0], [100.0, 0.0]])), "norm_best").high is not None


@pytest.mark.parametrize(
    ("p", "equivalence", "verdict"),
    [
        (0.001, 0.9, "remembers"),
        (0.001, 0.025, "forgets"),
        (0.5, 0.01, "forgets"),
        (0.5, 0.026, "inconclusive"),
    ],
)
def test_verdicts(p: float, equivalence: float, verdict: str) -> None:
    row = replace(memory(records(np.eye(2) + 80)), p=p, p_equivalence=equivalence)
    assert judged([row])[0].verdict == verdict
    means_alone = "remembers" if p <= 0.05 else "inconclusive"
    assert judged([replace(row, equal_failure_rates=False)])[0].verdict == means_alone


@pytest.mark.parametrize(
    ("points", "size"),
    [(26, "large"), (7, "moderate"), (3.5, "small"), (10, "moderate to large"), (5, "small to moderate")],
)
def test_a_size_is_that_of_the_whole_interval(points: float, size: str) -> None:
    noise = np.random.default_rng(1).normal(0, 0.3, (5, 5))
    found = memory(records(70 + noise + np.linspace(0, points, 5)))
    assert found.verdict_text == f"remembers: generalization ({size})"
    assert found.to_json()["thresholds"] == {"alpha": 0.05, "tolerance": 2.0, "large": 10.0, "moderate": 5.0}
    own = memory(records(70 + noise + np.linspace(0, points, 5)), tolerance=100.0)
    assert own.verdict == "forgets" and own.size is None


def test_a_lower_limit_above_zero_is_never_shown_as_zero() -> None:
    assert interval(0.013, 4.2).text == "0.01 to 4.2"
    assert interval(0.0, 4.2).text == "0.0 to 4.2"
    assert interval(0.13, 4.2).text == "0.1 to 4.2"


def test_adjusted_p_values_are_those_of_the_textbook() -> None:
    ps = [0.01, None, 0.04, 0.03, 0.005]
    assert adjusted(ps, "none") == ps
    assert adjusted(ps, "bh") == [pytest.approx(v) if v else v for v in (0.02, None, 0.04, 0.04, 0.02)]
    with pytest.raises(ConfigError, match=r"adjust = 'sidak' .allowed: bh, none"):
        adjusted(ps, "sidak")


def test_verdicts_are_adjusted_for_the_number_of_recipes() -> None:
    rng = np.random.default_rng(3)
    rows = [memory(records(80 + rng.normal(0, 1, (5, 5)))) for _ in range(40)]
    false = [row for row in rows if row.verdict == "remembers"]
    assert false  # forty recipes without memory: some are significant
    among_all = judged(rows)
    assert not [row for row in among_all if row.verdict == "remembers"]
    (noted, *_) = [row for row in among_all if row.recipe_id == false[0].recipe_id and row.p == false[0].p]
    assert noted.verdict == "inconclusive" and noted.p_adjusted > 0.05 >= noted.p
    assert f"p = {noted.p:.2g} alone, {noted.p_adjusted:.2g} adjusted for 40 recipes" in noted.notes
    unadjusted = [row for row in judged(rows, "none") if row.verdict == "remembers"]
    assert len(unadjusted) == len(false)
    assert all(row.verdict_text.endswith(" (unadjusted)") for row in unadjusted)
    strong = memory(records(80 + rng.normal(0, 1, (5, 5)) + np.linspace(0, 20, 5)))
    assert judged([*rows, strong])[-1].verdict == "remembers"


def test_the_adjustment_is_that_of_the_claims_that_recipes_make() -> None:
    """Each recipe has one p-value: twice that of the equivalence test where its interval is narrow enough."""
    rng = np.random.default_rng(5)
    kinds = [(0, 0.3), (0, 0.7), (0, 2), (3, 1), (8, 1), (1.2, 0.4)]
    rows = [memory(records(80 + rng.normal(0, s, (5, 5)) + np.linspace(0, m, 5))) for m, s in kinds]
    claims = [2 * row.p_equivalence if row.high <= 2 else row.p for row in rows]
    expected = stats.false_discovery_control(claims)
    for row, alone, p, claim in zip(judged(rows), rows, expected, claims, strict=True):
        shown = 2 * row.p_equivalence_adjusted if alone.high <= 2 else row.p_adjusted
        assert shown == pytest.approx(p)
        assert row.verdict == (alone.verdict if p <= 0.05 else "inconclusive")
        assert alone.verdict == "inconclusive" or claim <= 0.05
    halves = [replace(row, alpha=0.025) for row in rows]  # all at half the level: as if p were twice as large
    for row, p in zip(
        judged(halves), stats.false_discovery_control(np.minimum(np.multiply(claims, 2), 1)), strict=True
    ):
        if row.verdict != "inconclusive":
            assert p <= 0.05


def test_the_interval_of_an_interim_analysis_has_its_level() -> None:
    values = 80 + np.random.default_rng(4).normal(0, 1, (5, 5)) + np.linspace(0, 3, 5)
    once, twice = memory(records(values)), memory(records(values), analysis=Analysis(2, 0.001, 0.0075))
    assert twice.low < once.low and twice.high > once.high
    assert (twice.low > 0) == (twice.p <= 0.001)
    assert (twice.analysis, twice.alpha, twice.alpha_spent) == (2, 0.001, 0.0075)
    assert any("interim analysis 2: tested at 0.1%" in note for note in twice.notes)
    titles = [columns_of(rows)["interval"].title for rows in ([once], [twice], [once, twice])]
    assert titles == ["95% interval", "99.9% interval", "interval"]


# -- untrained runs -----------------------------------------------------------------------------------------


def test_rates_are_compared_over_all_tables_with_the_same_margins() -> None:
    for untrained, n in (([4, 0], [5, 5]), ([3, 0, 1], [4, 3, 5]), ([0, 0, 0, 1, 3], [5] * 5)):
        tables = [t for t in itertools.product(*(range(m + 1) for m in n)) if sum(t) == sum(untrained)]
        weight = {t: np.prod([math.comb(m, f) for f, m in zip(t, n, strict=True)]) for t in tables}

        def pearson(t, n=n) -> float:
            return sum(f * f / m for f, m in zip(t, n, strict=True))

        as_extreme = sum(w for t, w in weight.items() if pearson(t) >= pearson(untrained) - 1e-9)
        assert equal_rates_p(untrained, n) == pytest.approx(as_extreme / sum(weight.values()), abs=0.01)
        assert equal_rates_p(untrained, n) == equal_rates_p(untrained, n)
    assert equal_rates_p([30, 10, 20, 5, 3], [50, 49, 50, 47, 50]) < 0.001


def test_the_limits_of_a_rate_are_clopper_and_pearsons() -> None:
    for k, n in ((0, 5), (2, 5), (5, 5)):
        low, high = rate_limits(k, n)
        assert low == pytest.approx(stats.beta.ppf(0.025, k, n - k + 1) if k else 0)
        assert high == pytest.approx(stats.beta.ppf(0.975, k + 1, n - k) if k < n else 1)


def test_failures_that_depend_on_the_scale_forbid_forgets() -> None:
    values = 80 + np.random.default_rng(0).normal(0, 0.05, (12, 3))
    clean = memory(records(values))
    assert (clean.verdict, clean.untrained, clean.failure_p) == ("forgets", 0, None)
    some = records(values)
    diverged = [replace(r, status="diverged") if r.run.scale == 0.1 and r.run.seed < 6 else r for r in some]
    found = memory(diverged)  # predictors from before they diverged: the means agree
    assert found.high < 2 and found.verdict == "inconclusive"
    assert found.untrained == 6 and found.failure_p < 0.01
    assert any("depend on the scale" in note for note in found.notes)
    one = memory(
        [replace(r, status="diverged") if r.run.scale == 0.1 and r.run.seed < 1 else r for r in some]
    )
    assert one.verdict == "inconclusive" and one.failure_p > 0.05
    assert any("cannot be excluded" in note for note in one.notes)
    assert one.seeds_needed is None and "but nothing shows" in one.meaning  # the means are settled
    small = [
        replace(r, status="diverged") if r.run.scale == 0.1 and r.run.seed < 6 else r
        for r in records(values + np.array([0, 0.5, 1.0]))
    ]
    assert (memory(small).verdict, memory(small).size) == (
        "remembers",
        "small",
    )  # its lower limit is positive
    assert 0 < memory(small).low < memory(small).high < 2


def test_a_run_at_chance_is_untrained() -> None:
    found = failures(records(np.array([[80.0, 10.0, 80.0], [80.0, 12.0, 80.0], [80.0, 80.0, 80.0]])))
    assert [rate.untrained for rate in found.rates] == [0, 2, 0]  # digits: ten classes
    assert found.chance == pytest.approx(0.145)
    own = PipelineRecipe.parse({"pipeline": "mine"})
    values = np.full((2, 2), 50.0)
    assert failures(records(values, own)).chance is None
    assert failures(records(values, own.replace(classes=2))).untrained == 4
    assert memory(records(values, own.replace(classes=2))).verdict == "untrained"


def test_a_run_that_memorized_is_told_from_one_that_learned_nothing() -> None:
    at_chance = records(np.array([[80.0, 10.0, 80.0], [80.0, 12.0, 80.0], [80.0, 80.0, 80.0]]))
    fitted = [replace(r, summary=replace(r.summary, train_accuracy_last=1.0)) for r in at_chance]
    nothing = [replace(r, summary=replace(r.summary, train_accuracy_last=0.1)) for r in at_chance]
    assert (failures(fitted).memorized, failures(nothing).memorized) == (2, 0)
    assert any(
        "2 of 9 runs are untrained (at chance or diverged); 2 of them memorized" in note
        for note in memory(fitted).notes
    )
    assert not any("memorized" in note for note in memory(nothing).notes)
    later = [replace(r, status="diverged") for r in fitted]  # its predictor may be better than chance
    assert (failures(later).untrained, failures(later).memorized) == (9, 0)


def test_a_scale_that_was_never_used_has_no_verdict() -> None:
    unused = [replace(r, provenance={"scale_used": False}) for r in records(np.full((3, 3), 80.0))]
    found = memory(unused)
    assert found.verdict == "not applicable"
    assert str(found) == "not applicable: the pipeline never used the scale"
    assert (found.memory, found.low, found.high, found.p, found.debiased) == (None,) * 5
    assert "never used" in found.meaning
    applied = [replace(r, provenance={"applied": True}) for r in records(np.full((3, 3), 80.0))]
    alike = [replace(r, summary=replace(r.summary, norm_init=1.0)) for r in applied]
    assert str(memory(alike)) == "not applicable: the scale had no effect on the weights"
    for i in (0, 2):  # a norm that is not known may be another, wherever it stands
        unknown = replace(alike[i], summary=replace(alike[i].summary, norm_init=None))
        assert memory([*alike[:i], unknown, *alike[i + 1 :]]).verdict == "forgets"


def test_runs_that_stopped_early_are_said_to_have_done_so() -> None:
    recipe = Recipe(dataset="digits", epochs=300, patience=5)
    runs = [Run(recipe, scale, seed) for scale in (0.1, 2.5) for seed in (0, 1)]
    lengths = [10, 12, 11, 300]
    known = [fake_record(run, 0.8, epochs=n) for run, n in zip(runs, lengths, strict=True)]
    (note,) = [note for note in memory(known).notes if "stopped" in note]
    assert note.startswith(
        "3 runs stopped after 10 to 12 of 300 epochs: the validation loss had not fallen for 5"
    )
    whole = [fake_record(run, 0.8, epochs=300) for run in runs]
    diverged = [replace(record, status="diverged") for record in known]  # says so elsewhere
    assert not [note for each in (whole, diverged) for note in memory(each).notes if "stopped" in note]


def test_runs_of_different_code_are_named_wherever_a_memory_is() -> None:
    known = records(np.full((3, 3), 80.0) + np.arange(9).reshape(3, 3))
    same = [replace(r, provenance={"fingerprint": {"EPOCHS": "20", "lr": "1"}}) for r in known]
    other = [replace(same[0], provenance={"fingerprint": {"lr": "1", "EPOCHS": "1"}}), *same[1:]]
    order = [replace(same[0], provenance={"fingerprint": {"lr": "1", "EPOCHS": "20"}}), *same[1:]]
    assert not [note for each in (known, same, order) for note in memory(each).notes if "versions" in note]
    (note,) = [note for note in memory(other).notes if "versions" in note]
    assert note == "trained by 2 versions of the code (8 and 1 runs): the fingerprints differ"
    assert note in verdict_table(memory_table(other)).notes


def test_the_table_has_a_row_per_recipe_in_the_asked_order() -> None:
    adam = Recipe(dataset="digits", optimizer="adam")
    values = np.full((2, 3), 80.0)
    rows = memory_table(records(values) + records(values, adam), recipes=[adam, RECIPE])
    assert [row.recipe for row in rows] == ["adam", "sgd"]
    assert str(rows[0]) == (
        "0 pp [0, 0], noise range 0, forgets (failure rates up to 84% not excluded), train accuracy 100%"
    )
    twice = memory_table(records(values), recipes=[RECIPE, RECIPE])  # two studies may share a recipe
    assert len(twice) == 1


def test_other_metrics_and_unknown_ones() -> None:
    found = memory(records(np.full((2, 3), 80.0)), "norm_best")
    assert (found.unit, found.memory) == ("", 0.0)
    with pytest.raises(ConfigError, match=r"metric = 'beauty' .allowed: .*test_accuracy"):
        memory(records(np.full((2, 3), 80.0)), "beauty")


def test_labels_stay_the_same_as_a_store_fills_up() -> None:
    recipes = [Recipe(optimizer="adam", width=width) for width in (4, 8)]
    runs = [Run(recipe, scale, seed) for recipe in recipes for scale in (0.1, 2.5) for seed in (0, 1)]
    records = [fake_record(run, 0.5) for run in runs]
    half, whole = (memory_table(some, recipes=recipes) for some in (records[:4], records))
    assert [row.recipe for row in half] == ["adam w4"]
    assert [row.recipe for row in whole] == ["adam w4", "adam w8"]


def test_runs_with_different_layers_or_devices_are_named() -> None:
    rows = records(np.full((3, 3), 80.0) + np.arange(9).reshape(3, 3))
    alike = [replace(r, provenance={"native": True, "device": "cpu"}) for r in rows]
    mixed = [replace(alike[0], provenance={"native": False, "device": "cuda:0"}), *alike[1:]]
    notes = [note for note in memory(mixed).notes if note.startswith("trained")]
    assert notes == [
        "trained with layers in C (8 runs) and of PyTorch (1 run)",
        "trained on cpu (8 runs) and cuda (1 run)",
    ]
    assert not [note for each in (rows, alike) for note in memory(each).notes if note.startswith("trained")]
