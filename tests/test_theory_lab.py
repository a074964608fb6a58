"""Ensembles of linear networks: their gradients, their seeds, and the laws by which they forget."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from initmem.errors import ConfigError
from initmem.recipe import PipelineRecipe
from initmem.study import Run
from initmem.theory import imbalance, imbalances, lab, regression
from initmem.theory.lab import LinearSettings, evaluate, linear_task, trajectories

norm = partial(np.linalg.norm, axis=(-2, -1))
TASK = linear_task()
SCALES = (1.0, 2.0, 3.0)


def recipe(**fields) -> PipelineRecipe:
    common = {
        "pipeline": "linear",
        "schedule": "constant",
        "learning_rate": 0.01,
        "epochs": 2,
    }
    return PipelineRecipe.parse(common | {"batch_size": 16} | fields)


def settings(**fields) -> LinearSettings:
    return LinearSettings.of(recipe(**fields))


def runs(seeds=range(4), scales=SCALES, **fields) -> list[Run]:
    return [Run(recipe(**fields), scale, seed) for seed in seeds for scale in scales]


def norms(path) -> np.ndarray:
    return np.sqrt(sum(norm(layer) ** 2 for layer in path))


def beta(path, asked) -> np.ndarray:
    """The slope of the norm on the scale at the start and after every epoch, (epoch,)."""
    return np.polyfit([run.scale for run in asked], norms(path).T, 1)[0]


@pytest.mark.parametrize("size", [16, 100])
def test_gradients_are_those_of_each_runs_own_minibatch(size):
    asked = [Run(recipe(batch_size=size), scale, seed) for scale, seed in ((1.0, 5), (2.0, 5), (2.0, 6))]
    w = np.random.default_rng(0).normal(size=(3, 4, 4))
    n, per_epoch = 512, -(-512 // size)
    losses = lab._losses(asked, size, TASK)
    for k, loss in zip(range(2 * per_epoch), losses, strict=False):  # the last batch of an epoch is smaller
        epoch, update = divmod(k, per_epoch)
        for r, run in enumerate(asked):
            order = lab.generator(run.seed, "order", epoch + 1).permutation(n)
            rows = order[update * size : (update + 1) * size]
            known = regression(TASK.x[rows], TASK.y[rows])(w[r])
            np.testing.assert_allclose(loss(w)[r], known, rtol=1e-12)


def test_one_update_by_hand_with_penalty():
    asked = [Run(recipe(batch_size=512, epochs=1, l2=0.3, learning_rate=0.02), 1.5, 3)]
    path = trajectories(asked, TASK)
    v, u = (layer[0, 0] for layer in path)
    g = regression(TASK.x, TASK.y)(u @ v)
    v_next, u_next = (layer[1, 0] for layer in path)
    np.testing.assert_allclose(v_next, v - 0.02 * (u.T @ g + 2 * 0.3 * v), rtol=1e-12)
    np.testing.assert_allclose(u_next, u - 0.02 * (g @ v.T + 2 * 0.3 * u), rtol=1e-12)


def test_initial_weights_have_the_variance_of_their_fan_in_and_one_draw_per_seed():
    wide = recipe(width=6)
    v, u = lab._initial([Run(wide, 2.0, seed) for seed in range(2000)], 6, 4)
    assert v.shape == (2000, 6, 4)
    assert u.shape == (2000, 4, 6)
    assert v.var() == pytest.approx(2.0**2 / 4, rel=0.03)
    assert u.var() == pytest.approx(2.0**2 / 6, rel=0.03)
    small, large = (lab._initial([Run(wide, s, 7)], 6, 4) for s in (0.5, 1.5))
    np.testing.assert_allclose(large[0], 3 * small[0], rtol=1e-14)


def test_each_seed_role_moves_only_its_own():
    plain, init, order = (Run(recipe(), 1.0, 0, pins) for pins in ((), (("init", 9),), (("order", 9),)))
    path = trajectories([plain, init, order], TASK)
    start, end = (layer for layer in path[0][:2])
    assert np.array_equal(start[0], start[2])
    assert not np.allclose(start[0], start[1])
    assert not np.allclose(end[0], end[2])
    gradients = next(lab._losses([plain, init, order], 16, TASK))(np.ones((3, 4, 4)))
    assert np.array_equal(gradients[0], gradients[1])
    assert not np.allclose(gradients[0], gradients[2])


def test_a_perturbation_moves_one_weight():
    v, u = lab._initial([Run(recipe(), 1.0, 0), Run(recipe(), 1.0, 0, perturbation=1.5)], 4, 4)
    assert v[1, 0, 0] == 1.5 * v[0, 0, 0]
    assert np.array_equal(v[0].ravel()[1:], v[1].ravel()[1:])
    assert np.array_equal(u[0], u[1])


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_a_run_is_the_same_in_any_pack(optimizer):
    asked = runs(optimizer=optimizer)
    together, alone = trajectories(asked, TASK), trajectories(asked[4:5], TASK)
    for mine, theirs in zip(alone, together, strict=True):
        np.testing.assert_allclose(mine[:, 0], theirs[:, 4], rtol=1e-9)


@pytest.mark.parametrize(
    ("optimizer", "setting"),
    [
        ("momentum", {"momentum": 0.5}),
        ("adam", {"beta1": 0.8}),
        ("adam", {"beta2": 0.95}),
        ("adam", {"epsilon": 1e-3}),
    ],
)
def test_optimizers_take_their_settings_from_the_recipe(optimizer, setting):
    usual, changed = (
        trajectories([Run(recipe(optimizer=optimizer, **s), 1.0, 0)], TASK) for s in ({}, setting)
    )
    assert np.abs(usual[0][-1] - changed[0][-1]).max() > 1e-6


def test_a_schedule_reaches_every_update():
    cosine = settings(schedule="cosine", batch_size=128, epochs=3, lr_floor=0.1)
    k = np.arange(12)
    expected = 0.01 * (0.1 + 0.9 * (1 + np.cos(np.pi * k / 12)) / 2)
    np.testing.assert_allclose(lab.all_rates(cosine, 512), expected)


@pytest.mark.parametrize(
    ("clock", "fields"),
    [
        ("sgd", {}),
        ("l2", {"learning_rate": 0.004, "l2": 0.1}),
        ("adaptive", {"learning_rate": 0.06, "optimizer": "adam"}),
    ],
)
def test_batch_sizes_agree_against_their_clock_and_disagree_against_epochs(clock, fields):
    found = {}
    for b in (4, 8):
        asked = runs(batch_size=b, epochs=15, **fields)
        eta, updates = asked[0].recipe.get("learning_rate"), 512 // b * np.arange(1, 16)
        ticks = {"sgd": updates * eta**2 / b, "l2": updates * eta, "adaptive": updates * eta}
        found[b] = beta(trajectories(asked, TASK), asked)[1:], ticks
    (fast, fast_ticks), (slow, slow_ticks) = found[4], found[8]
    # Compare where both are: the larger batch has come less far.
    own = np.interp(slow_ticks[clock], fast_ticks[clock], fast)
    both = slow_ticks[clock] >= fast_ticks[clock][0]
    apart = np.abs(own - slow)[both].mean() / slow[both].mean()
    assert both.sum() >= 5
    assert apart < 0.12
    assert np.abs(fast - slow).mean() / slow.mean() > 3 * apart
    assert fast[-1] < 0.5 * slow[-1]


def test_a_penalty_shrinks_the_imbalance_as_exp_of_four_times_its_clock():
    asked = runs(learning_rate=0.002, l2=0.1, epochs=20)
    (d,) = imbalances(trajectories(asked, TASK))
    clock = 0.1 * 20 * 32 * 0.002
    np.testing.assert_allclose(norm(d[-1]) / norm(d[0]), np.exp(-4 * clock), rtol=0.12)


def test_noise_shrinks_the_imbalance_at_the_rate_of_its_variance():
    # At a minimum each update takes the share eta^2 s^2 d / b of D, s^2 the residuals' variance.
    asked = runs(epochs=24, seeds=range(8), scales=(1.0, 1.5, 2.0))
    (d,) = imbalances(trajectories(asked, TASK))
    best = np.linalg.lstsq(TASK.x, TASK.y)[0]
    variance = np.mean((TASK.y - TASK.x @ best) ** 2)
    size = norm(d).reshape(25, 8, 3).mean(axis=1)
    rate = -np.log(size[24] / size[6]) / (18 * 32 * 0.01**2 / 16)
    np.testing.assert_allclose(rate, variance * 4, rtol=0.15)


def test_adam_at_half_the_rate_needs_about_four_times_the_updates():
    """The limit of the adaptive clock: noise at the minimum makes Adam's drift second order."""
    needed = []
    for rate, epochs in ((0.06, 5), (0.03, 16)):
        asked = runs(optimizer="adam", learning_rate=rate, batch_size=4, epochs=epochs)
        slope = beta(trajectories(asked, TASK), asked)
        assert slope[-1] < 0.7 < slope[0]
        needed.append(np.interp(-0.7, -slope, np.arange(epochs + 1)))
    assert 3 < needed[1] / needed[0] < 5


def test_perturbed_networks_are_evaluated_one_by_one():
    factors = (np.eye(4)[None], 2 * np.eye(4)[None])
    inputs = TASK.val_x[:50]
    perturbations = tuple(s[:3] for s in TASK.perturbations)
    losses, rights = [], []
    for e, f in zip(*perturbations, strict=True):
        w = (2 * np.eye(4) + f) @ (np.eye(4) + e)
        found = np.array([w @ x for x in inputs])
        losses.append(np.mean(np.sum((found - inputs) ** 2, axis=1)) / 2)
        rights.append(np.mean(found.argmax(axis=1) == inputs.argmax(axis=1)))
    loss, accuracy = evaluate(factors, inputs, inputs, perturbations)
    assert loss[0] == pytest.approx(np.mean(losses))
    assert accuracy[0] == pytest.approx(np.mean(rights))
    assert accuracy[0] < 1 == evaluate(factors, inputs, inputs)[1][0]


def test_larger_weights_with_the_same_product_survive_perturbation_less():
    rotation = TASK.truth / 2
    truth = TASK.val_x @ TASK.truth.T
    balanced = (np.sqrt(2) * rotation, np.sqrt(2) * np.eye(4))
    lopsided = (rotation / 4, 8 * np.eye(4))
    assert norm(imbalance(balanced[1], balanced[0])) == pytest.approx(0, abs=1e-12)
    scores = [evaluate(factors, TASK.val_x, truth, TASK.perturbations)[1] for factors in (balanced, lopsided)]
    assert scores[0] > scores[1] + 0.1


def test_the_task_is_whitened_and_the_same_at_every_width():
    np.testing.assert_allclose(TASK.x.T @ TASK.x / 512, np.eye(4), atol=1e-12)
    np.testing.assert_allclose(TASK.truth @ TASK.truth.T, 4 * np.eye(4), atol=1e-12)
    wide = linear_task(width=7)
    for name in ("x", "y", "val_x", "test_x", "truth"):
        assert np.array_equal(getattr(wide, name), getattr(TASK, name))
    assert [s.shape for s in wide.perturbations] == [(8, 7, 4), (8, 4, 7)]


def test_runs_of_two_recipes_are_refused():
    mixed = [Run(recipe(), 1.0, 0), replace(Run(recipe(), 1.0, 0), recipe=recipe(batch_size=8))]
    with pytest.raises(ConfigError, match="one recipe"):
        trajectories(mixed, TASK)
