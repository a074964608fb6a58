"""Relaxation after an intervention: planted decays, the linear lab, and what does not relax."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from initmem.clocks import CLOCKS, clocks
from initmem.errors import ConfigError
from initmem.measures.measure import measure, measure_table
from initmem.measures.relaxation import exponential, relaxation
from initmem.plots.tables import text
from initmem.recipe import PipelineRecipe, Recipe
from initmem.record import RunRecord, summarize
from initmem.study import Run

Array = NDArray[np.float64]
LAB = PipelineRecipe.parse({"pipeline": "lab", "optimizer": "sgd", "l2": 0.05, "learning_rate": 0.1})


def records(values: dict[str, Array], column: str, clock: Array, recipe: Recipe | PipelineRecipe = LAB):
    """Records of runs by intervention, with a history of shape (seed, epoch) in one column."""
    made = []
    for text_, curves in values.items():
        for seed, curve in enumerate(curves):
            history = {column: curve.copy(), "clock_l2": clock.copy()}
            run = Run(recipe, 1.0, seed, intervention=text_)
            made.append(RunRecord(run, "completed", summarize(history, norm_init=1.0), history))
    return made


def decay(rate: float, rng: np.random.Generator, *, seeds: int = 5, epochs: int = 30, noise: float = 0.1):
    """Differences that decay from about 1, with noise that is correlated from epoch to epoch."""
    time = np.arange(1.0, epochs + 1)
    size = np.exp(0.1 * rng.standard_normal((seeds, 1)))
    steps = rng.standard_normal((seeds, epochs))
    for k in range(1, epochs):
        steps[:, k] = 0.5 * steps[:, k - 1] + math.sqrt(0.75) * steps[:, k]
    return size * np.exp(-rate * time) + noise * steps, time


def test_the_rate_is_within_its_interval_in_95_percent_of_planted_studies() -> None:
    """With decay the imbalance of a linear network relaxes as exp(-2 lambda t): lambda is recovered."""
    rng = np.random.default_rng(36)
    lambdas = np.exp(rng.uniform(np.log(0.01), np.log(0.15), 100))
    fits = [relaxation(*decay(2 * one, rng)) for one in lambdas]
    within = [
        fit.rate_low is not None and fit.rate_high is not None and fit.rate_low <= 2 * one <= fit.rate_high
        for fit, one in zip(fits, lambdas, strict=True)
    ]
    assert 89 <= sum(within) <= 99
    # A negative control: a rate that is wrong by a half is rejected in most of them.
    wrong = [(f.rate_low or 0) <= 3 * one <= (f.rate_high or 0) for f, one in zip(fits, lambdas, strict=True)]
    assert sum(wrong) < 33


def test_without_noise_the_fit_is_exact() -> None:
    time = np.array([0.5, 1.0, 2.5, 7.0])
    for rate, start in ((0.3, -2.0), (-0.1, 1.0), (4.0, 0.7)):
        fitted = exponential(start * np.exp(-rate * time), time)
        assert fitted == pytest.approx((rate, start, 1.0), rel=1e-4)


def lab(seed: int, factor: float, *, epochs: int = 80, steps: int = 5) -> tuple[list[float], list[float]]:
    """Two factors on a noisy linear task under SGD with L2: |U|^2 - |V|^2 and the L2 clock by epoch."""
    rng = np.random.default_rng(seed)
    target, u, v = rng.standard_normal((3, 3, 3)) / 2
    eta, l2 = 0.02, 0.05
    imbalance, clock = [], []
    for epoch in range(1, epochs + 1):
        if epoch == 11:  # after epoch 10: the same function, another balance of the layers
            u, v = factor * u, v / factor
        for _ in range(steps):
            error = u @ v - target - 0.1 * rng.standard_normal((3, 3))
            u, v = u - eta * (error @ v.T + 2 * l2 * u), v - eta * (u.T @ error + 2 * l2 * v)
        imbalance.append(float((u**2).sum() - (v**2).sum()))
        clock.append(l2 * eta * steps * epoch)
    return imbalance, clock


def test_the_linear_lab_relaxes_at_the_rate_of_its_clock() -> None:
    """L2 acts on weights as a decay of 2 l2, so that the imbalance shrinks as exp(-4 T)."""
    curves = {
        name: np.array([lab(seed, factor)[0] for seed in range(6)])
        for name, factor in (("none", 1.0), ("scale=2@10", 2.0))
    }
    clock = np.array(lab(0, 1.0)[1])
    rows = measure(records(curves, "imbalance", clock), "relaxation", metric="imbalance")
    epochs, ticks = ({"unit": row["unit"]} | row for row in rows)
    assert (epochs["unit"], ticks["unit"]) == ("epochs", "l2")
    assert ticks["rate"] == pytest.approx(4.0, rel=0.03)
    assert ticks["low"] * 0.97 <= math.log(2) / 4 <= ticks["high"] * 1.03
    assert epochs["half_life"] == pytest.approx(ticks["half_life"] / (0.05 * 0.02 * 5), rel=1e-3)
    assert ticks["explained"] > 0.99 and not ticks["note"]


@pytest.mark.parametrize(
    ("fields", "shrinks"),
    [
        ({"optimizer": "sgd", "l2": 0.02}, 2 * 0.02),
        ({"optimizer": "momentum", "momentum": 0.5, "l2": 0.02}, 2 * 0.02 / (1 - 0.5)),
        ({"optimizer": "adamw", "weight_decay": 0.05}, 0.05),
        ({"optimizer": "adam", "l2": 0.02}, None),  # divided by the gradients' size, as all of the gradient
        ({"optimizer": "sgd"}, None),
        ({"optimizer": "adamw", "weight_decay": 0.001}, None),  # beyond the last epoch
    ],
)
def test_the_predicted_half_life_is_when_decay_alone_has_halved_the_weights(
    fields: dict[str, object], shrinks: float | None
) -> None:
    usual = {
        "dataset": "digits",
        "epochs": 60,
        "batch_size": 16,
        "learning_rate": 0.1,
        "schedule": "constant",
    }
    recipe = Recipe.parse(usual | fields)
    ticks = clocks(recipe, 200)  # 13 updates in an epoch
    rng = np.random.default_rng(4)
    norm = np.exp(0.01 * rng.standard_normal((3, 60)))
    made = records({"none": norm, "scale=2@5": norm * np.exp(np.exp(-0.1 * np.arange(60)))}, "norm", ticks.l2)
    for record in made:
        history = dict(record.history) | {f"clock_{k}": v for k, v in ticks._asdict().items() if k in CLOCKS}
        object.__setattr__(record, "history", history)
        object.__setattr__(record, "run", replace(record.run, recipe=recipe))
    predicted = {row["unit"]: row["predicted"] for row in measure(made, "relaxation")}
    if shrinks is None:
        assert set(predicted.values()) == {None}
        return
    weight, updates = 1.0, 0
    while weight > 0.5:
        weight, updates = weight * (1 - 0.1 * shrinks), updates + 1
    assert predicted["epochs"] == pytest.approx(updates / 13, rel=0.03)
    assert predicted["epochs"] == pytest.approx(math.log(2) / (0.1 * shrinks * 13), rel=1e-9)


def test_what_does_not_relax_has_no_upper_limit() -> None:
    rng = np.random.default_rng(0)
    flat, time = decay(0.0, rng, noise=0.02)
    fit = relaxation(flat, time)
    assert fit.half_life == (None, len(time), None)
    slow, time = decay(0.01, rng, noise=0.001)  # half of it would be left after 69 epochs, but there are 30
    assert relaxation(slow, time).half_life == (None, 30.0, None)
    assert relaxation(slow, time).left == pytest.approx(math.exp(-0.3), rel=0.05)
    none = relaxation(0.1 * rng.standard_normal((5, 30)), time)
    assert not none.has_effect and none.half_life == (None, None, None)


def test_rows_say_what_is_compared_and_where_the_fit_fails() -> None:
    rng = np.random.default_rng(1)
    recipe = Recipe.parse({"epochs": 12, "batch_size": 16})  # batch norm with moving averages
    base = 5 + 0.01 * rng.standard_normal((4, 12))
    away = base * np.concatenate([np.ones(3), np.exp(np.log(2) * np.exp(-0.4 * np.arange(1, 10)))])
    curves = {"none": base, "scale=2@3": away}
    made = records(curves, "norm", np.zeros(12), recipe)
    for record in made:
        object.__setattr__(record, "history", dict(record.history) | {"val_accuracy": np.full(12, 0.9)})
    norm, accuracy = measure(made, "relaxation")
    assert norm["quantity"] == "log norm ratio" and norm["start"] == pytest.approx(np.log(2), rel=1e-3)
    assert norm["half_life"] == pytest.approx(np.log(2) / 0.4, rel=1e-3)
    assert accuracy["quantity"] == "val_accuracy" and accuracy["half_life"] is None
    assert "moving averages" in accuracy["note"] and "moving averages" not in norm["note"]
    assert "scale=2@3" in text(measure_table("relaxation", [norm, accuracy]))
    with pytest.raises(ConfigError, match=r"metric = 'nothing': not recorded epoch by epoch .allowed: val_a"):
        measure(made, "relaxation", metric="nothing")


def test_only_later_interventions_with_an_untouched_partner_relax() -> None:
    rng = np.random.default_rng(2)
    curves = {
        "scale=2": np.exp(rng.standard_normal((3, 8))),
        "scale=2@2": np.exp(rng.standard_normal((3, 8))),
    }
    made = records(curves, "norm", np.zeros(8))
    assert measure(made, "relaxation") == []
    plain = records({"": np.exp(rng.standard_normal((3, 8)))}, "norm", np.zeros(8))
    rows = measure([*made, *plain], "relaxation")  # a run at scale 1 is untouched as well
    assert {row["intervention"] for row in rows} == {"scale=2@2"}
