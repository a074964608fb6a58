"""Ensembles of linear networks: the clocks, the collapse against them, and its absence elsewhere."""

import numpy as np
import pytest

from initmem.errors import ConfigError
from initmem.theory import ensemble
from initmem.theory.ensemble import LinearRecipe, linear_task, train

TASK = linear_task(seed=0)


@pytest.fixture(scope="module")
def families():
    found = ensemble.study(task_seed=0, seeds=range(4), epochs=40)
    return {c: [e for e in found if e.recipe.clock == c] for c in ("sgd", "l2", "adaptive")}


def _beta(e, metric):
    """The slope of the metric on the scale at every epoch, (epoch,)."""
    return np.polyfit(e.scales, e.metrics[metric].mean(axis=1), 1)[0]


def _spread(members, x, metric="norm"):
    """How far the slopes of different batch sizes lie apart on their common range of x."""
    lo, hi = max(x(e)[1] for e in members), min(x(e)[-1] for e in members)
    grid = np.linspace(lo, hi, 40)
    curves = np.array([np.interp(grid, x(e)[1:], _beta(e, metric)[1:]) for e in members])
    return np.ptp(curves, axis=0).mean() / np.abs(curves).mean()


@pytest.mark.parametrize("clock", ["sgd", "l2", "adaptive"])
def test_batch_sizes_agree_against_their_clock_and_disagree_against_epochs(families, clock):
    members = families[clock]
    assert [e.recipe.batch_size for e in members] == [4, 8, 16]
    assert not any(e.diverged.any() for e in members)
    own = _spread(members, lambda e: e.clocks[clock])
    assert own < 0.2
    assert _spread(members, lambda e: e.epochs.astype(float)) > 5 * own
    wrong = "adaptive" if clock == "sgd" else "sgd"
    assert _spread(members, lambda e: e.clocks[wrong]) > 2 * own


@pytest.mark.parametrize("clock", ["sgd", "l2", "adaptive"])
def test_small_batches_forget_first(families, clock):
    last = [_beta(e, "norm")[-1] for e in families[clock]]
    assert 0 < last[0] < 0.5 * last[1] < last[2]


def test_perturbed_accuracy_remembers_the_scale_where_the_norm_does(families):
    forgets, _, remembers = families["sgd"]
    drop = [
        m.mean(axis=1)[0, -1] - m.mean(axis=1)[-1, -1]
        for m in (e.metrics["shaken_accuracy"] for e in (forgets, remembers))
    ]
    assert abs(drop[0]) < 0.02 < 0.04 < drop[1]


def test_decay_shrinks_the_imbalance_on_its_clock(families):
    e = families["l2"][-1]
    shrunk = e.metrics["imbalance"].mean(axis=1)
    np.testing.assert_allclose(
        shrunk / shrunk[:, :1], np.exp(-2 * e.clocks["l2"]) * np.ones((5, 1)), rtol=0.1
    )


def test_noise_shrinks_the_imbalance_at_the_rate_of_its_variance(families):
    # At a minimum each update takes the share eta^2 s^2 d / b of D, s^2 the residuals' variance.
    e = families["sgd"][2]
    d = TASK.x.shape[1]
    best = np.linalg.lstsq(TASK.x, TASK.y)[0]
    variance = np.mean((TASK.y - TASK.x @ best) ** 2)
    mean = e.metrics["imbalance"].mean(axis=1)[:3]
    rate = -np.log(mean[:, 30] / mean[:, 5]) / (e.clocks["sgd"][30] - e.clocks["sgd"][5])
    np.testing.assert_allclose(rate, variance * d, rtol=0.1)


def test_adam_at_twice_the_rate_forgets_four_times_as_fast():
    """The limit of the adaptive clock: noise at the minimum makes Adam's drift second order."""
    needed = []
    for rate, epochs in ((0.06, 8), (0.12, 3)):
        e = train(LinearRecipe("adam", rate, 4), TASK, seeds=range(8), epochs=epochs)
        beta = _beta(e, "norm")
        assert beta[-1] < 0.8 < beta[0]
        needed.append(np.interp(-0.8, -beta, e.updates))
    assert 3 < needed[0] / needed[1] < 6


def test_clocks_are_sums_over_updates(families):
    e = families["l2"][0]
    assert (e.recipe.learning_rate, e.recipe.decay, e.recipe.batch_size) == (0.004, 0.2, 4)
    assert list(e.updates[:3]) == [0, 64, 128]
    assert e.clocks["adaptive"][-1] == pytest.approx(40 * 64 * 0.004)
    assert e.clocks["l2"][-1] == pytest.approx(0.2 * 40 * 64 * 0.004)
    assert e.clocks["sgd"][-1] == pytest.approx(40 * 64 * 0.004**2 / 4)
    assert e.clocks["sgd"][0] == 0


def test_axes(families):
    e = families["adaptive"][0]
    assert e.epochs.shape == e.updates.shape == (41,)
    assert {m.shape for m in e.metrics.values()} == {(5, 4, 41)}
    assert e.diverged.shape == (5, 4)
    # At the start the norm is the scale times that of one draw per seed.
    start = e.metrics["norm"][:, :, 0]
    np.testing.assert_allclose(start / e.scales[:, None], start[:1] / e.scales[0] * np.ones((5, 1)))
    assert np.ptp(start[0]) > 0.01


def test_a_seed_gives_the_same_run_in_any_company():
    recipe = LinearRecipe("adam", 0.02, 8)
    together = train(recipe, TASK, seeds=(5, 6, 7), scales=(1.0, 2.0), epochs=2)
    alone = train(recipe, TASK, seeds=(6,), scales=(2.0,), epochs=2)
    for name, values in alone.metrics.items():
        np.testing.assert_allclose(values[0, 0], together.metrics[name][1, 1], rtol=1e-10)


def test_every_seed_has_its_own_minibatches():
    first, second = ensemble._batches(256, 8, 2, (5, 6))
    assert first.shape == second.shape == (1, 2, 8)
    assert not np.array_equal(first[0, 0], first[0, 1])
    assert not np.array_equal(first, second)


def test_an_unstable_rate_is_marked_and_silent():
    found = train(LinearRecipe("sgd", 0.2, 8), TASK, seeds=(0, 1), scales=(0.1, 3.0), epochs=3)
    assert list(found.diverged[1]) == [True, True]
    assert np.isnan(found.metrics["norm"][1, 0, -1])
    assert np.isnan(found.metrics["val_accuracy"][1, 0, -1])
    assert np.isnan(found.metrics["shaken_accuracy"][1, 0, -1])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"optimizer": "newton"}, "optimizer: 'newton'; allowed: sgd, momentum, adam, muon"),
        ({"learning_rate": 0.0}, "learning_rate: 0.0"),
        ({"batch_size": 0}, "batch_size: 0"),
        ({"decay": -1.0}, "decay: -1.0"),
    ],
)
def test_wrong_fields_are_named(fields, message):
    good = {"optimizer": "sgd", "learning_rate": 0.1, "batch_size": 4}
    with pytest.raises(ConfigError, match=message):
        LinearRecipe(**(good | fields))
