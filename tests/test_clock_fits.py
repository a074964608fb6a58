"""Which clock rules: planted truths, and the number of weights against the real networks."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from initmem.measures.clock_fits import Observed, clock_fits, observed
from initmem.measures.radial import relative_clock
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
            made.append(Observed(str(len(made)), "adaptive", recipe, elasticity, clocks, 8))
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
