"""Which clock rules: planted truths, and the number of weights against the real networks."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from initmem.measures.clock_fits import Observed, clock_fits, observed
from initmem.measures.prediction import lived_elasticity, predict_each
from initmem.measures.radial import effective_clock, relative_clock
from initmem.recipe import Recipe
from initmem.shapes import kernel_weights
from initmem.store.record import RunRecord
from initmem.study import Run
from initmem.train.models import build
from planted import record as planted_record


def planted(recipe: Recipe, eta: float, elasticity: float, weights: int) -> list[RunRecord]:
    """Runs whose final norm is the initial one to the power of the elasticity."""
    records = []
    for scale in (0.1, 1.0, 2.5):
        record = planted_record(Run(recipe, scale, 0))
        history = {name: column.copy() for name, column in record.history.items()}
        history["clock_adaptive"][:] = eta
        norm = scale * math.sqrt(weights / 100)  # rms of the initial weights: scale / 10
        summary = replace(record.summary, norm_init=norm, norm_best=7.0 * norm**elasticity)
        records.append(replace(record, history=history, summary=summary))
    return records


def test_the_relative_clock_counts_initial_sizes() -> None:
    recipe = Recipe(dataset="digits", width=4, optimizer="adam")
    weights = kernel_weights(recipe, (1, 8, 8), 10)
    records = planted(recipe, 0.5, 0.3, weights)
    # rms of the initial weights is 0.1 times the scale: the geometric mean over the scales follows.
    assert relative_clock(records) == pytest.approx(5.0 / (0.1 * 1.0 * 2.5) ** (1 / 3))
    found = observed("adam", records)
    assert found is not None
    assert found.elasticity == pytest.approx(0.3)


@pytest.mark.parametrize("model", ["resnet9", "resnet56", "mlp"])
def test_weights_are_those_of_the_network(model: str) -> None:
    recipe = Recipe(model=model, width=4, dataset="synthetic:100x3x16x16")
    network = build(model, replicas=1, shape=(3, 16, 16), classes=10, width=4, norm="batch")
    assert kernel_weights(recipe, (3, 16, 16), 10) == sum(layer.kernel.numel() for layer in network.layers())


def recipes(clock: str, rng: np.random.Generator) -> list[Observed]:
    """Recipes of four widths whose elasticity follows one of the two clocks exactly."""
    made = []
    for width in (4, 8, 16, 32):
        for rate in (1e-3, 3e-3, 1e-2):
            clocks = {"adaptive": 700 * rate, "relative": 700 * rate * 10 * math.sqrt(width)}
            noise = 0.02 * rng.standard_normal()
            elasticity = 1 / (1 + (clocks[clock] / {"adaptive": 2.0, "relative": 60.0}[clock]) ** 0.8) + noise
            recipe = Recipe(optimizer="adam", width=width, learning_rate=rate)
            made.append(Observed(str(len(made)), ("adaptive",), recipe, elasticity, clocks, 8))
    return made


@pytest.mark.parametrize("truth", ["adaptive", "relative"])
def test_the_clock_that_was_planted_fits_best(truth: str) -> None:
    first, second = clock_fits(recipes(truth, np.random.default_rng(0)))
    assert first.clock == truth
    assert first.half == pytest.approx({"adaptive": 2.0, "relative": 60.0}[truth], rel=0.15)
    assert first.steepness == pytest.approx(0.8, rel=0.15)
    assert first.residual < 0.03 < first.error_of_mean
    assert first.error < second.error


def test_without_an_effect_no_clock_beats_the_mean() -> None:
    rng = np.random.default_rng(1)
    noise = [one._replace(elasticity=0.5 + 0.1 * rng.standard_normal()) for one in recipes("adaptive", rng)]
    assert all(fit.error > 0.95 * fit.error_of_mean for fit in clock_fits(noise))


def test_three_recipes_are_too_few() -> None:
    assert clock_fits(recipes("adaptive", np.random.default_rng(0))[:3]) == []


def euclidean(recipe: Recipe, angular: float, elasticity: float) -> list[RunRecord]:
    """Runs with the clocks that the updates of a recipe give, and an angular clock of its own."""
    rate, updates = recipe.learning_rate, 1000
    effective = rate / (1 - recipe.momentum) if recipe.optimizer == "momentum" else rate
    records = []
    clocks = {
        "clock_sgd": rate**2 * updates / recipe.batch_size,
        "clock_momentum": effective**2 * updates / recipe.batch_size,
        "clock_l2": recipe.l2 * rate * updates,
        "clock_angular": angular * rate / effective,  # recorded without momentum
    }
    for record in planted(recipe, rate * updates, elasticity, 10_000):
        ticks = {name: np.full(recipe.epochs, value) for name, value in clocks.items()}
        records.append(replace(record, history={**record.history, **ticks}))
    return records


def sgd_and_l2(rng: np.random.Generator) -> dict[Recipe, list[RunRecord]]:
    """SGD, momentum, and SGD with a penalty: all on one curve of the angular clock, half at 0.3."""
    made = {}
    for extra in ({}, {"optimizer": "momentum"}, {"l2": 1e-3}, {"optimizer": "momentum", "l2": 1e-2}):
        for rate in (1e-3, 1e-2, 1e-1):
            recipe = Recipe.parse({"dataset": "digits", "learning_rate": rate, **extra})
            angular = float(np.exp(rng.uniform(np.log(0.01), np.log(10))))
            made[recipe] = euclidean(recipe, angular, 1 / (1 + angular / 0.3) + 0.02 * rng.standard_normal())
    return made


def test_momentum_is_in_every_clock_of_euclidean_steps() -> None:
    recipe = Recipe(dataset="digits", optimizer="momentum", learning_rate=0.01, momentum=0.9)
    records = euclidean(recipe, 0.5, 0.3)
    assert effective_clock("angular", records) == pytest.approx(0.5)
    assert effective_clock("adaptive", records) == pytest.approx(1000 * 0.01 / (1 - 0.9))
    assert effective_clock("momentum", records) == pytest.approx(1000 * 0.1**2 / 128)
    assert effective_clock("sharpness", records) is None


def test_one_angular_clock_for_sgd_with_and_without_a_penalty() -> None:
    groups = sgd_and_l2(np.random.default_rng(3))
    known = [observed(str(i), records) for i, records in enumerate(groups.values())]
    fits = clock_fits([one for one in known if one is not None])
    joint = [fit for fit in fits if fit.family == "euclidean"]
    assert joint[0].clock == "angular"
    assert joint[0].n_recipes == 12
    assert joint[0].half == pytest.approx(0.3, rel=0.15)
    assert joint[0].steepness == pytest.approx(1.0, rel=0.15)
    assert joint[0].error < 0.04 < 0.15 < min(joint[1].error, joint[0].error_of_mean)


def test_sgd_alone_is_not_fitted_twice() -> None:
    groups = sgd_and_l2(np.random.default_rng(3))
    alone = [observed(str(i), records) for i, (recipe, records) in enumerate(groups.items()) if not recipe.l2]
    assert {fit.family for fit in clock_fits([one for one in alone if one is not None])} == {"sgd"}


def test_the_elasticity_of_sgd_with_a_penalty_is_predicted_from_sgd_without_one() -> None:
    groups = sgd_and_l2(np.random.default_rng(3))
    lived = [one for records in groups.values() if (one := lived_elasticity(records)) is not None]
    predictions = predict_each(lived)
    assert {one.family for one in predictions} == {"euclidean"}
    assert {one.n_others for one in predictions} == {11}
    scores = [(one.score, one.score_of_mean) for one in predictions if one.score is not None]
    clock, mean = np.mean(scores, axis=0)
    assert clock > mean + 0.5


def test_adaptive_steps_with_a_penalty_are_not_euclidean() -> None:
    recipe = Recipe(dataset="digits", optimizer="adam", l2=1e-3)
    found = observed("adam", euclidean(recipe, 0.5, 0.3))
    assert found is not None
    assert found.families == ("l2",)
