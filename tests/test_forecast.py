from __future__ import annotations

import pytest

from initmem.clocks import clocks, horizon_sums
from initmem.measures.forecast import THRESHOLDS, advise, effective_clocks, forecast
from initmem.recipe import Recipe

N = 40_000
# Settings of the paper with their spread in points; those near the tolerance of 2 are left out.
PAPER = [
    ({}, 26.5),
    ({"batch_size": 16}, 22.8),
    ({"batch_size": 16, "optimizer": "momentum"}, 10.9),
    ({"batch_size": 16, "optimizer": "adam"}, 1.6),
    ({"optimizer": "adam"}, 4.3),
    ({"optimizer": "adamw"}, 4.7),
    ({"learning_rate": 1e-2}, 23.8),
    ({"learning_rate": 1e-2, "batch_size": 16}, 9.7),
    ({"learning_rate": 1e-1}, 8.1),
    ({"learning_rate": 1e-2, "l2": 1e-3}, 17.4),
    ({"learning_rate": 1e-2, "l2": 5e-3}, 0.9),
    ({"learning_rate": 1e-2, "l2": 1e-2}, 0.3),
    ({"learning_rate": 1e-2, "l2": 1e-2, "batch_size": 16}, 0.3),
    ({"schedule": "constant", "epochs": 5000}, 26.0),
    ({"optimizer": "momentum", "learning_rate": 0.1, "l2": 5e-4, "epochs": 200}, 0.0),
]


@pytest.mark.parametrize(("fields", "spread"), PAPER)
def test_the_forecast_agrees_with_what_the_paper_saw(fields, spread: float) -> None:
    said = forecast(Recipe.parse(fields), N).forecast
    assert said == ("forgets" if spread <= 2 else "remembers")


@pytest.mark.parametrize("fields", [{}, {"schedule": "constant"}, {"epochs": 1, "batch_size": 50_000}])
def test_totals_are_the_clocks_at_the_horizon(fields) -> None:
    recipe = Recipe.parse(fields)
    sums = horizon_sums(recipe, N)
    first, second = sums.eta, sums.eta2
    end = clocks(recipe, N).at_end()
    assert first == pytest.approx(end["adaptive"], rel=1e-9)
    assert second / recipe.batch_size == pytest.approx(end["sgd"], rel=1e-9)


@pytest.mark.parametrize("fields", [fields for fields, spread in PAPER if spread > 2])
def test_advice_is_the_least_change_that_turns_the_forecast(fields) -> None:
    recipe = Recipe.parse(fields)
    found = advise(recipe, N)
    assert found
    for advice in found:
        assert forecast(advice.recipe, N).forecast == "forgets"
        changed = {
            name for name in Recipe.model_fields if getattr(advice.recipe, name) != getattr(recipe, name)
        }
        assert changed == {advice.field}
        old = getattr(recipe, advice.field)
        # A step of two significant digits back towards the old value would not do.
        step = -1 if advice.field == "batch_size" else 1
        less = advice.value + 1 if advice.field == "batch_size" else 0.9 * advice.value
        if advice.field in ("epochs", "batch_size"):
            less = int(less)
        if (less - old) * step > 0:
            before = recipe.model_copy(update={advice.field: less})
            assert forecast(before, N).forecast != "forgets"


def test_no_advice_for_what_forgets_already() -> None:
    assert advise(Recipe(learning_rate=1e-2, l2=1e-2), N) == []


def test_only_clocks_that_can_act_are_counted() -> None:
    assert set(effective_clocks(Recipe(), N)) == {"l2", "sgd"}
    assert set(effective_clocks(Recipe(optimizer="adam"), N)) == {"l2", "adaptive"}
    assert all(limit.remembers < limit.forgets for limit in THRESHOLDS.values())
