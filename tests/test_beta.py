from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from initmem.clocks import clocks
from initmem.measures.beta import beta_curve, half_life, half_life_limits, half_lives
from initmem.measures.collapse import collapse
from initmem.measures.measure import measure
from initmem.measures.statistics import critical, mean_band
from initmem.recipe import Recipe
from initmem.record import COLUMNS, RunRecord, summarize
from initmem.study import Run

SCALES = (0.1, 0.5, 1.0, 1.8, 2.5)


def planted(recipe: Recipe, slopes: np.ndarray, n_train: int = 4096, noise: float = 0.0, seeds: int = 3):
    """Records whose validation accuracy is 0.8 - slope(epoch) * scale, plus noise."""
    rng = np.random.default_rng(recipe.batch_size)
    times = clocks(recipe, n_train)
    records = []
    for seed in range(seeds):
        for scale in SCALES:
            history = {name: np.ones(recipe.epochs) for name in COLUMNS}
            for name in ("sgd", "l2", "adaptive", "momentum"):
                history[f"clock_{name}"] = np.array(getattr(times, name))
            history["clock_angular"] = times.adaptive / scale**2
            history["val_accuracy"] = 0.8 - slopes * scale + noise * rng.standard_normal(recipe.epochs)
            summary = summarize(history, norm_init=1.0, test_accuracy=0.5, test_loss=1.0)
            records.append(RunRecord(Run(recipe, scale, seed), "completed", summary, history))
    return records


def recipe_of(batch_size: int, **fields) -> Recipe:
    fixed = {"epochs": 60, "schedule": "constant", "batch_statistics": "re-estimated"}
    return Recipe.parse({"batch_size": batch_size, **fixed, **fields})


def test_beta_is_the_regression_slope_over_all_runs() -> None:
    rng = np.random.default_rng(0)
    records = planted(recipe_of(16), rng.normal(0, 0.1, 60), noise=0.05, seeds=4)
    curve = beta_curve(records)
    for epoch in (0, 17, 59):
        x = [r.run.scale for r in records]
        y = [r.history["val_accuracy"][epoch] for r in records]
        assert curve.beta[epoch] == pytest.approx(stats.linregress(x, y).slope, rel=1e-12)
    assert curve.n_runs == 20


def test_the_interval_is_students_over_seeds() -> None:
    """With a full grid beta is the mean of the seeds' own slopes, and so is its interval."""
    records = planted(recipe_of(16), np.full(60, 0.1), noise=0.05, seeds=5)
    curve = beta_curve(records)
    for epoch in (3, 40):
        slopes = [
            stats.linregress(
                SCALES, [r.history["val_accuracy"][epoch] for r in records if r.run.seed == seed]
            ).slope
            for seed in range(5)
        ]
        expected = stats.ttest_1samp(slopes, 0).confidence_interval(0.95)
        assert curve.low[epoch] == pytest.approx(expected.low, rel=1e-9)
        assert curve.high[epoch] == pytest.approx(expected.high, rel=1e-9)


def shortened(record: RunRecord, status: str, epochs: int) -> RunRecord:
    history = {name: column[:epochs] for name, column in record.history.items()}
    return replace(record, status=status, history=history)


def test_a_run_that_diverges_leaves_the_later_epochs_to_the_others() -> None:
    records = planted(recipe_of(16), np.full(60, 0.1))
    curve = beta_curve([shortened(records[0], "diverged", 10), *records[1:]])
    assert np.allclose(curve.beta, -0.1)
    assert len(curve.beta) == 60


def test_beta_ends_where_the_first_run_was_stopped_early() -> None:
    """Where patience stops the runs from one scale first, the rest would have the slope of other scales."""
    bent = np.array([0.0, 0.0, 0.0, 0.0, 0.5])  # accuracy that only the largest scale loses
    records = [
        replace(r, history={**r.history, "val_accuracy": r.history["val_accuracy"] - lost})
        for r, lost in zip(planted(recipe_of(16), np.full(60, 0.1)), [*bent] * 3, strict=True)
    ]
    whole = beta_curve(records)
    stopped = [shortened(r, "completed", 10 if r.run.scale == 2.5 else 20) for r in records]
    curve = beta_curve(stopped)
    assert len(curve.beta) == len(curve.low) == len(curve.clocks["adaptive"]) == 10
    assert np.allclose(curve.beta, whole.beta[:10])
    (row,) = measure(stopped, "beta")
    assert row["last_epoch"] == 10
    assert row["last"] == pytest.approx(whole.beta[9])
    assert [life.unit for life in half_lives(stopped)] == ["epochs", "sgd"]


def test_half_life_of_an_exponential_is_known() -> None:
    epochs = np.arange(1.0, 61)
    slopes = 0.2 * np.exp(-epochs / 15)
    assert half_life(slopes, epochs) == pytest.approx(15 * np.log(2), rel=2e-3)
    assert half_life(np.full(60, 0.1), epochs) is None
    crossing = np.concatenate([np.linspace(0.2, -0.15, 30), np.full(30, -0.15)])
    assert half_life(crossing, epochs) is None  # passing through zero is not forgetting
    back_and_gone = np.array([0.2, 0.05, 0.15, 0.05, 0.04, 0.03])
    assert half_life(back_and_gone, np.arange(1.0, 7)) == pytest.approx(2.5)
    records = planted(recipe_of(16, l2=1e-3), slopes)
    found = {h.unit: h for h in half_lives(records)}
    rate = 1e-3
    assert found["epochs"].value == pytest.approx(15 * np.log(2), rel=2e-3)
    per_epoch = rate * 4096 / 16
    assert found["l2"].value == pytest.approx(1e-3 * 15 * np.log(2) * per_epoch, rel=2e-3)
    assert found["epochs"].low == pytest.approx(found["epochs"].value)
    flat = {h.unit: h for h in half_lives(planted(recipe_of(16), np.full(60, 0.1)))}
    assert flat["epochs"].value is None


@pytest.mark.parametrize(
    ("fields", "clock"),
    [
        ({}, "sgd"),
        ({"optimizer": "momentum"}, "momentum"),
        ({"optimizer": "momentum", "l2": 1e-4}, "l2"),
        ({"optimizer": "adam"}, "adaptive"),
        ({"optimizer": "adamw", "weight_decay": 0.1}, "l2"),
    ],
)
def test_a_half_life_is_in_epochs_and_on_the_clock_of_the_family(fields, clock: str) -> None:
    recipe = recipe_of(16, **fields)
    ticks = clocks(recipe, 4096)._asdict()[clock]
    found = half_lives(planted(recipe, 0.2 / (1 + ticks / ticks[19])))
    assert [life.unit for life in found] == ["epochs", clock]
    # From the first epoch on: |slope| is half when 1 + t / t20 has doubled.
    assert found[1].value == pytest.approx(ticks[0] + ticks[19], rel=0.01)


BATCHES = (16, 32, 64, 128, 256)


def family(axis: str, noise: float = 0.0, batches=BATCHES, **fields):
    """|beta| = f(axis), the same f at five batch sizes."""
    groups = []
    for b in batches:
        recipe = recipe_of(b, **fields)
        times = clocks(recipe, 4096)
        x = np.arange(1.0, 61) if axis == "epochs" else getattr(times, axis)
        # A scale at which the middle batch size has forgotten half.
        middle = clocks(recipe_of(64, **fields), 4096)
        unit = 30.0 if axis == "epochs" else getattr(middle, axis)[30]
        groups.append(planted(recipe, 0.15 / (1 + (x / unit)), noise=noise))
    return groups


@pytest.mark.parametrize(("axis", "alpha"), [("epochs", 0), ("adaptive", 1), ("l2", 1), ("sgd", 2)])
def test_alpha_is_that_of_the_planted_clock(axis: str, alpha: float) -> None:
    found = collapse(family(axis, 0.002, **({"l2": 1e-2} if axis == "l2" else {})))
    assert found.low <= alpha <= found.high
    assert found.high - found.low < 0.5
    assert found.alpha == pytest.approx(alpha, abs=0.1)
    named = {0: "epochs", 1: "sum of eta", 2: "SGD clock"}
    assert found.reading == f"consistent with {named[alpha]}"
    assert found.n_curves == 5


def test_curves_that_share_no_level_say_nothing() -> None:
    """Planted on the SGD clock, 65,536 times apart: one has forgotten before the other begins to."""
    far = collapse(family("sgd", 0.002, batches=(4, 1024)))
    assert (far.alpha, far.low, far.high) == (None, None, None)
    assert far.reading.startswith("cannot tell")
    flat = collapse([planted(recipe_of(b), np.full(60, 0.1), noise=0.002) for b in (16, 64)])
    assert flat.alpha is None  # nothing fades, so that no level is passed
    near = collapse(family("sgd", 0.002, batches=(16, 32)))
    assert near.low <= 2 <= near.high
    silent = [
        [replace(r, history={"val_accuracy": r.history["val_accuracy"]}) for r in g] for g in family("sgd")
    ]
    assert collapse(silent).alpha is None  # no clock was recorded


def test_the_interval_of_alpha_covers_the_truth() -> None:
    """The short version of benchmarks/coverage.py; the negative control has the wrong truth."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
    from coverage import simulate_collapse

    rng = np.random.default_rng(0)
    for alpha in (0.0, 0.5, 1.0, 2.0):
        row = simulate_collapse(alpha, (16, 32, 64), 5, 40, rng)
        assert row["cannot_tell"] == 0
        assert row["covers"] >= 0.95 - 3 * np.sqrt(0.05 * 0.95 / 40)
    assert simulate_collapse(2.0, (16, 128), 3, 20, rng)["cannot_tell"] == 1
    assert simulate_collapse(1.0, (16, 32, 64), 5, 20, rng, claimed=1.5)["covers"] < 0.2


# -- limits --------------------------------------------------------------------------------------------------


def test_a_band_holds_for_the_whole_curve_and_pointwise_limits_do_not() -> None:
    rng = np.random.default_rng(1)
    epochs = np.arange(40)
    root = np.linalg.cholesky(np.exp(-(((epochs[:, None] - epochs) / 5.0) ** 2)) + 1e-9 * np.eye(40))
    for n in (3, 8):
        held = pointwise = 0
        for _ in range(300):
            own = rng.standard_normal((n, 40)) @ root.T
            t = np.abs(own.mean(0)) / (own.std(0, ddof=1) / np.sqrt(n))
            held += t.max() <= critical(own)
            pointwise += t.max() <= stats.t.ppf(0.975, n - 1)
        assert held / 300 >= 0.95 - 3 * np.sqrt(0.05 * 0.95 / 300)
        assert pointwise / 300 < 0.8
    assert critical(np.array([[1.0], [2.0], [4.0]])) == pytest.approx(stats.t.ppf(0.975, 2))
    together = rng.standard_normal((6, 1)) * np.ones(50)  # one curve moved as a whole is one comparison
    assert critical(together) == pytest.approx(stats.t.ppf(0.975, 5), rel=1e-3)


def test_a_band_of_means_holds_at_all_points_also_with_missing_seeds() -> None:
    rng = np.random.default_rng(2)
    for missing in (0, 2):
        held = pointwise = 0
        for _ in range(400):
            values = rng.standard_normal((6, 5)) * np.array([1.0, 2.0, 0.5, 3.0, 1.0])
            values[:missing, 3] = np.nan
            low, high = mean_band(values)
            held += bool(((low <= 0) & (high >= 0)).all())
            counts = np.isfinite(values).sum(axis=0)
            half = stats.t.ppf(0.975, counts - 1) * np.nanstd(values, axis=0, ddof=1) / np.sqrt(counts)
            pointwise += bool((np.abs(np.nanmean(values, axis=0)) <= half).all())
        assert held / 400 >= 0.95 - 3 * np.sqrt(0.05 * 0.95 / 400)
        assert pointwise / 400 < 0.87
    assert np.isnan(mean_band(np.ones((1, 3)))).all()


def test_the_band_of_beta_contains_its_pointwise_limits() -> None:
    curve = beta_curve(planted(recipe_of(16), np.full(60, 0.1), noise=0.05, seeds=5))
    assert (curve.band_low < curve.low).all() and (curve.band_high > curve.high).all()
    one = beta_curve(planted(recipe_of(16), np.full(60, 0.1), seeds=1))
    assert np.isnan(one.band_low).all()


@pytest.mark.parametrize("seeds", [3, 6])
def test_the_interval_of_a_half_life_covers_the_truth(seeds: int) -> None:
    rng = np.random.default_rng(2)
    axis = np.arange(1.0, 61)
    truth = half_life(np.exp(-axis / 15), axis)
    covered = 0
    for _ in range(200):
        rate = 15 * np.exp(0.2 * rng.standard_normal((seeds, 1)))
        own = np.exp(-axis / rate) + 0.01 * rng.standard_normal((seeds, 60))
        low, high = half_life_limits(own.mean(0), own, axis)
        covered += low <= truth and (high is None or truth <= high)
    assert covered / 200 >= 0.95 - 3 * np.sqrt(0.05 * 0.95 / 200)


def test_the_interval_of_a_half_life_knows_that_the_peak_of_a_plateau_is_uncertain() -> None:
    """The negative control measures the half-life from the observed peak, as if it were the true one."""
    rng = np.random.default_rng(4)
    axis = np.arange(1.0, 41)
    plateau = 1 / (1 + np.exp((axis - 18) / 3))
    truth = half_life(plateau, axis)
    covered = careless = 0
    for _ in range(200):
        own = plateau * np.exp(0.2 * rng.standard_normal((5, 1))) + 0.02 * rng.standard_normal((5, 40))
        mean = own.mean(axis=0)
        low, high = half_life_limits(mean, own, axis)
        assert low <= half_life(mean, axis) <= high
        covered += low <= truth <= high
        careless += abs(half_life(mean, axis) - truth) <= 1.0  # far more than the time of half is off by
    assert covered / 200 >= 0.95 - 3 * np.sqrt(0.05 * 0.95 / 200)
    assert careless / 200 < 0.5


def test_half_lives_of_code_that_recorded_no_clock_or_no_accuracy() -> None:
    fading = planted(recipe_of(16), 0.2 * np.exp(-np.arange(60) / 15))
    bare = [replace(r, history={"val_accuracy": r.history["val_accuracy"]}) for r in fading]
    assert [life.unit for life in half_lives(bare)] == ["epochs"]
    assert half_lives([replace(r, history={}) for r in fading]) == []
    lone = half_lives([r for r in bare if r.run.seed == 0])
    assert (lone[0].low, lone[0].high) == (None, None)
