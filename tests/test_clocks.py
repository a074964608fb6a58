from __future__ import annotations

import math

import numpy as np
import pytest

from initmem.clocks import clocks, epoch_rates, horizon_sums
from initmem.recipe import Recipe

N = 40_000


@pytest.mark.parametrize(
    ("fields", "clock", "expected"),
    [
        ({"batch_size": 128, "learning_rate": 1e-3}, "sgd", 7.3e-4),
        ({"batch_size": 128, "learning_rate": 1e-3, "epochs": 5000}, "sgd", 1.2e-2),
        ({"batch_size": 16, "learning_rate": 1e-2}, "sgd", 4.7),
        ({"batch_size": 128, "learning_rate": 1e-2, "l2": 1e-3}, "l2", 0.94),
        ({"batch_size": 128, "learning_rate": 1e-2, "l2": 5e-3}, "l2", 4.7),
    ],
)
def test_the_papers_figures(fields, clock: str, expected: float) -> None:
    found = clocks(Recipe(schedule="constant", **fields), N).at_end()[clock]
    assert found == pytest.approx(expected, rel=0.025)


def test_cosine_sums_have_closed_forms() -> None:
    """With c_k = cos(pi k / K): sum c_k = 1 and sum c_k^2 = K / 2 over k < K."""
    recipe = Recipe(learning_rate=0.3, lr_floor=0.05, batch_size=100, epochs=7, l2=0.02)
    k = 7 * math.ceil(1030 / 100)
    level, swing = 0.3 * (1 + 0.05) / 2, 0.3 * (1 - 0.05) / 2
    found = clocks(recipe, 1030).at_end()
    assert found["updates"] == k
    assert found["adaptive"] == pytest.approx(level * k + swing, rel=1e-12)
    square = level**2 * k + 2 * level * swing + swing**2 * k / 2
    assert found["sgd"] == pytest.approx(square / 100, rel=1e-12)
    assert found["l2"] == pytest.approx(0.02 * (level * k + swing), rel=1e-12)


def test_momentum_makes_the_rate_ten_times_itself() -> None:
    plain = clocks(Recipe(optimizer="sgd", epochs=3), N).at_end()
    heavy = clocks(Recipe(optimizer="momentum", epochs=3), N).at_end()
    assert heavy["sgd"] == plain["sgd"]
    assert heavy["momentum"] == pytest.approx(100 * plain["momentum"])


def test_clocks_only_go_forward() -> None:
    found = clocks(Recipe(epochs=20, l2=1e-3), N)
    for column in found:
        assert (np.diff(column) > 0).all()


@pytest.mark.parametrize("schedule", ["cosine", "constant"])
def test_warmup_grows_the_rate_linearly_and_then_leaves_the_schedule_alone(schedule: str) -> None:
    plain = Recipe(learning_rate=0.3, schedule=schedule, batch_size=10, epochs=4)
    warm = plain.replace(warmup=15)  # longer than an epoch of 10 updates
    rates, known = (np.concatenate([epoch_rates(r, 100, e) for e in range(1, 5)]) for r in (warm, plain))
    np.testing.assert_allclose(rates[:15], known[:15] * np.arange(1, 16) / 15, rtol=1e-12)
    np.testing.assert_array_equal(rates[15:], known[15:])
    sums = horizon_sums(warm, 100)
    assert (sums.eta, sums.eta2) == pytest.approx((rates.sum(), (rates**2).sum()), rel=1e-12)
    assert clocks(warm, 100).at_end()["adaptive"] == pytest.approx(rates.sum(), rel=1e-12)
