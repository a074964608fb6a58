from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from initmem.clocks import clocks
from initmem.measures.beta import beta_curve, half_life, half_lives
from initmem.measures.collapse import collapse, disagreement
from initmem.recipe import Recipe
from initmem.store.record import COLUMNS, RunRecord, summarise
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
            summary = summarise(history, norm_init=1.0, test_accuracy=0.5, test_loss=1.0)
            records.append(RunRecord(Run(recipe, scale, seed), "completed", summary, history))
    return records


def recipe_of(batch_size: int, **fields) -> Recipe:
    return Recipe.parse({"batch_size": batch_size, "epochs": 60, "schedule": "constant", **fields})


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


def test_runs_that_stop_early_leave_the_later_epochs_to_the_others() -> None:
    records = planted(recipe_of(16), np.full(60, 0.1))
    short = records[0]
    history = {name: column[:10] for name, column in short.history.items()}
    cut = RunRecord(short.run, "diverged", short.summary, history)
    curve = beta_curve([cut, *records[1:]])
    assert np.allclose(curve.beta, -0.1)
    assert len(curve.beta) == 60


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
    assert found["adaptive"].value == pytest.approx(15 * np.log(2) * per_epoch, rel=2e-3)
    assert found["l2"].value == pytest.approx(1e-3 * 15 * np.log(2) * per_epoch, rel=2e-3)
    assert found["epochs"].low == pytest.approx(found["epochs"].value)
    flat = {h.unit: h for h in half_lives(planted(recipe_of(16), np.full(60, 0.1)))}
    assert flat["epochs"].value is None
    assert "l2" not in flat  # a clock that stands still measures nothing


BATCHES = (16, 32, 64, 128, 256)


def family(axis: str, noise: float = 0.0, **fields):
    """|beta| = f(axis), the same f at five batch sizes."""
    groups = []
    for b in BATCHES:
        recipe = recipe_of(b, **fields)
        times = clocks(recipe, 4096)
        x = np.arange(1.0, 61) if axis == "epochs" else getattr(times, axis)
        # A scale at which the middle batch size has forgotten half.
        middle = clocks(recipe_of(64, **fields), 4096)
        unit = 30.0 if axis == "epochs" else getattr(middle, axis)[30]
        groups.append(planted(recipe, 0.15 / (1 + (x / unit)), noise=noise))
    return groups


@pytest.mark.parametrize("axis", ["sgd", "adaptive", "epochs", "l2"])
@pytest.mark.parametrize("noise", [0.0, 0.004])
def test_the_collapse_score_finds_the_planted_clock(axis: str, noise: float) -> None:
    found = collapse(family(axis, noise, **({"l2": 1e-2} if axis == "l2" else {})))
    scores = {score.axis: score for score in found.scores}
    # With the same eta and l2 everywhere, the l2 clock is the adaptive one in other units,
    # and so is the angular one while norms stay as they are; likewise momentum for plain sgd.
    winners = {"adaptive", "l2", "angular"} if axis in ("adaptive", "l2") else {"sgd", "momentum"}
    assert found.winner in ({"epochs"} if axis == "epochs" else winners)
    assert found.n_curves == 5
    if axis != "epochs":
        assert scores[axis].score > (0.999 if noise == 0 else 0.9)
        assert scores[axis].low <= scores[axis].score <= scores[axis].high
    else:
        assert all(score.score < 0 for score in found.scores if score.axis != "epochs")


def test_a_clock_on_which_curves_never_meet_has_no_score() -> None:
    fading = 0.1 / np.arange(1.0, 61)
    found = collapse([planted(recipe_of(b), fading) for b in (4, 1024)])  # 65,536 times apart, over 60 epochs
    scores = {score.axis: score for score in found.scores}
    assert scores["sgd"] == ("sgd", None, None, None, None, 0.0)
    assert scores["epochs"].disagreement == pytest.approx(0, abs=1e-9)
    assert found.winner == "epochs"


def test_disagreement_is_in_decades() -> None:
    x = [np.arange(1.0, 11)] * 2
    found = disagreement([np.full(10, 0.1), np.full(10, 0.01)], x, [1e-9, 1e-9])
    assert found == pytest.approx(np.std([-1, -2], ddof=1))
    apart = [np.arange(1.0, 5), np.arange(100.0, 104)]
    assert disagreement([np.ones(4), np.ones(4)], apart, [1e-9, 1e-9]) == float("inf")
