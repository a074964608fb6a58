"""Which clock describes the norm elasticity: planted truths."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from initmem.measures.elasticity import Observed, clock_fits, observed, selected_clocks
from initmem.recipe import Recipe
from initmem.record import RunRecord
from initmem.study import Run
from planted import record as planted_record


def planted(recipe: Recipe, eta: float, elasticity: float) -> list[RunRecord]:
    """Runs whose final norm is the initial one to the power of the elasticity."""
    records = []
    for scale in (0.1, 1.0, 2.5):
        record = planted_record(Run(recipe, scale, 0))
        history = {name: column.copy() for name, column in record.history.items()}
        history["clock_adaptive"][:] = eta
        norm = 10 * scale
        summary = replace(record.summary, norm_init=norm, norm_best=7.0 * norm**elasticity)
        records.append(replace(record, history=history, summary=summary))
    return records


def recipes(rng: np.random.Generator, family: str = "adaptive", truth: str = "adaptive") -> list[Observed]:
    """Recipes whose elasticity follows one clock, half at 2; the other clocks are unrelated."""
    made = []
    for width in (4, 8, 16, 32):
        for rate in (1e-3, 3e-3, 1e-2):
            clocks = {name: 700 * rate if name == truth else 7 * rng.random() for name in ("adaptive", "l2")}
            elasticity = 1 / (1 + (clocks[truth] / 2) ** 0.8) + 0.02 * rng.standard_normal()
            recipe = Recipe(optimizer="adam", width=width, learning_rate=rate)
            made.append(Observed((family,), recipe, elasticity, clocks, 8))
    return made


@pytest.mark.parametrize("truth", ["adaptive", "l2"])
def test_the_clock_that_was_planted_fits_best(truth: str) -> None:
    first, second = clock_fits(recipes(np.random.default_rng(0), "l2", truth))
    assert first.clock == truth
    assert first.half == pytest.approx(2.0, rel=0.15)
    assert first.steepness == pytest.approx(0.8, rel=0.15)
    assert first.residual < 0.03 < first.error_of_mean
    assert first.error < second.error


def test_without_an_effect_no_clock_beats_the_mean() -> None:
    rng = np.random.default_rng(1)
    noise = [one._replace(elasticity=0.5 + 0.1 * rng.standard_normal()) for one in recipes(rng)]
    assert all(fit.error > 0.95 * fit.error_of_mean for fit in clock_fits(noise))


def test_three_recipes_are_too_few() -> None:
    assert clock_fits(recipes(np.random.default_rng(0))[:3]) == []


def gradient_steps(recipe: Recipe, angular: float, elasticity: float) -> list[RunRecord]:
    """Runs with the clocks that the updates of a recipe give, and an angular clock of its own."""
    rate, updates = recipe.learning_rate, 1000
    effective = rate / (1 - recipe.momentum) if recipe.optimizer == "momentum" else rate
    records = []
    clocks = {
        "clock_sgd": rate**2 * updates / recipe.batch_size,
        "clock_momentum": effective**2 * updates / recipe.batch_size,
        "clock_l2": (recipe.l2 + recipe.weight_decay / 2) * rate * updates,
        "clock_angular": angular * rate / effective,  # recorded without momentum
    }
    for record in planted(recipe, rate * updates, elasticity):
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
            made[recipe] = gradient_steps(
                recipe, angular, 1 / (1 + angular / 0.3) + 0.02 * rng.standard_normal()
            )
    return made


def test_momentum_is_in_every_clock_of_gradient_steps() -> None:
    recipe = Recipe(dataset="digits", optimizer="momentum", learning_rate=0.01, momentum=0.9)
    records = gradient_steps(recipe, 0.5, 0.3)
    clocks = selected_clocks(records)
    assert clocks["angular"] == pytest.approx(0.5)
    assert clocks["adaptive"] == pytest.approx(1000 * 0.01 / (1 - 0.9))
    assert clocks["momentum"] == clocks["sgd"] == pytest.approx(1000 * 0.1**2 / 128)
    assert "l2" not in clocks  # it stands still


def test_one_angular_clock_for_sgd_with_and_without_a_penalty() -> None:
    groups = sgd_and_l2(np.random.default_rng(3))
    fits = clock_fits(observed({recipe.id: records for recipe, records in groups.items()}))
    joint = [fit for fit in fits if fit.family == "sgd+l2"]
    assert joint[0].clock == "angular"
    assert joint[0].n_recipes == 12
    assert joint[0].half == pytest.approx(0.3, rel=0.15)
    assert joint[0].steepness == pytest.approx(1.0, rel=0.15)
    assert joint[0].error < 0.04 < 0.15 < min(joint[1].error, joint[0].error_of_mean)


def test_sgd_alone_is_not_fitted_twice() -> None:
    groups = sgd_and_l2(np.random.default_rng(3))
    alone = observed({recipe.id: records for recipe, records in groups.items() if not recipe.l2})
    assert {fit.family for fit in clock_fits(alone)} == {"sgd"}


@pytest.mark.parametrize(("decay", "family"), [(1e-4, "adaptive"), (0.1, "l2")])
def test_an_adaptive_optimizer_follows_the_l2_clock_where_its_decay_is_not_negligible(
    decay: float, family: str
) -> None:
    recipe = Recipe(dataset="digits", optimizer="adamw", weight_decay=decay)
    (one,) = observed({"adamw": gradient_steps(recipe, 0.5, 0.3)})
    assert one.families == (family,)


def test_momentum_does_not_amplify_decoupled_decay() -> None:
    fields = {"dataset": "digits", "optimizer": "momentum", "momentum": 0.9, "learning_rate": 0.01}
    recipe = Recipe.parse(fields | {"l2": 1e-3, "weight_decay": 4e-3})
    eta = 1000 * 0.01
    clocks = selected_clocks(gradient_steps(recipe, 0.5, 0.3))
    assert clocks["l2"] == pytest.approx(1e-3 * eta / (1 - 0.9) + 2e-3 * eta)
