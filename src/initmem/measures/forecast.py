"""A rule of thumb before any run: thresholds of the clocks, and the least change that crosses one.

The thresholds are where the paper's ResNet-9 runs (CIFAR-10) cross a memory of 2 points, interpolated between
its settings. They were read off the paper's results and have not been validated on other networks.

They are values of the clocks at the horizon, the last epoch, over the real schedule: before any run nothing
else is known. The selected predictor may be of a much earlier epoch. In the paper's adaptive runs at small
batch sizes it is that of epoch 5 to 7 of 300, so that at batch size 16 its clock stands at about 15, not at
379. `prediction` uses the clock at the selected epoch, and is scored.

- l2: 17.4 points at 0.47, below 1 at 2.4, 0.3 at 4.7; the standard recipe, 0.0, stands at 16.
- adaptive: 5.3 points at 24, 4.3 at 47, 1.6 at 379.
- sgd: 22.8 points at 0.018, about 10 at 1.8, 4.5 at 180; what it takes to reach 2 is extrapolated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from initmem.clocks import RateSums, horizon_sums, is_adaptive, step_momentum
from initmem.measures.design import plain
from initmem.measures.memory import Verdict
from initmem.recipe import Recipe
from initmem.store.record import RunRecord

Forecast = Literal["remembers", "forgets", "unclear"]
Checked = Literal["correct", "wrong", "cannot tell"]


class Threshold(NamedTuple):
    """Below `remembers` a clock has hardly moved; from `forgets` on it has done its work."""

    remembers: float
    forgets: float


THRESHOLDS = {"sgd": Threshold(100.0, 1500.0), "l2": Threshold(1.0, 2.1), "adaptive": Threshold(130.0, 280.0)}


class Outlook(NamedTuple):
    """The forecast of one recipe."""

    forecast: Forecast
    clock: str  # the clock that is furthest on its way
    value: float
    needed: float  # where it would have to be


class Advice(NamedTuple):
    """One change that should make a recipe forget."""

    field: str
    value: float
    factor: float  # new value / old value; infinite when the old one is zero
    clock: str
    recipe: Recipe


def effective_clocks(recipe: Recipe, n_train: int) -> dict[str, float]:
    """The clocks that can erase this recipe's memory, at the horizon."""
    return _effective(recipe, horizon_sums(recipe, n_train))


def lived_clocks(recipe: Recipe, records: Sequence[RunRecord]) -> dict[str, float]:
    """The same clocks at the epoch whose predictor was returned, medians over its runs; {}: none recorded."""
    runs = [record for record in plain(records) if record.summary.tau_best]
    ends = [(r.metric("clock_adaptive"), r.metric("clock_sgd")) for r in runs]
    known = np.array([end for end in ends if None not in end], dtype=float).reshape(-1, 2)
    if not len(known):
        return {}
    eta, eta2 = np.median(known, axis=0)
    return _effective(recipe, RateSums.of_recipe(recipe, float(eta), recipe.batch_size * float(eta2)))


def _effective(recipe: Recipe, sums: RateSums[float]) -> dict[str, float]:
    """Momentum makes of eta the rate eta / (1 - momentum), in the sgd clock as in the l2 clock."""
    ticks = sums.clocks(recipe.batch_size)
    effective = {"l2": ticks["l2"] / (1 - step_momentum(recipe))}
    if is_adaptive(recipe.optimizer):
        return effective | {"adaptive": ticks["adaptive"]}
    return effective | {"sgd": ticks["momentum"]}


def forecast(recipe: Recipe, n_train: int) -> Outlook:
    """Say from the clocks alone whether a recipe will forget."""
    return outlook(effective_clocks(recipe, n_train))


def outlook(values: Mapping[str, float]) -> Outlook:
    """What clocks of these values predict."""
    ahead = max(values, key=lambda name: values[name] / THRESHOLDS[name].forgets)
    value, limits = values[ahead], THRESHOLDS[ahead]
    if value >= limits.forgets:
        said: Forecast = "forgets"
    else:
        said = "remembers" if value < limits.remembers else "unclear"
    return Outlook(said, ahead, value, limits.forgets)


def checked(said: Forecast, verdict: Verdict) -> Checked:
    """Whether a forecast agrees with the verdict that was observed."""
    if said == "unclear" or verdict not in ("remembers", "forgets"):
        return "cannot tell"
    return "correct" if said == verdict else "wrong"


def advise(recipe: Recipe, n_train: int) -> list[Advice]:
    """Changes of one field each that bring a clock over its threshold, the least change first."""
    if forecast(recipe, n_train).forecast == "forgets":
        return []
    changes = []
    for field, change in LEVERS.items():
        advice = _least(recipe, n_train, field, change)
        if advice is not None:
            changes.append(advice)
    return sorted(changes, key=lambda advice: _size(recipe, advice))


def _size(recipe: Recipe, advice: Advice) -> float:
    """How large a change is, in orders of magnitude; switching a penalty on counts from 1e-4."""
    old = float(getattr(recipe, advice.field)) or 1e-4
    return abs(math.log10(advice.value / old))


MOST_PATIENCE = 20  # longest training that is proposed, in multiples of the present one

# For each field the values to try, from the least change on: 2 significant digits, within what people use.
LEVERS: dict[str, Callable[[Recipe], list[float]]] = {
    "learning_rate": lambda r: [v for v in _decades(r.learning_rate, 1.0) if v > r.learning_rate],
    "l2": lambda r: [v for v in _decades(max(r.l2, 1e-6), 0.1) if v > r.l2],
    "batch_size": lambda r: [float(b) for b in range(r.batch_size - 1, 0, -1)],
    "epochs": lambda r: [
        e for e in _decades(r.epochs, MOST_PATIENCE * r.epochs) if e > r.epochs and e % 1 == 0
    ],
}


def _decades(start: float, stop: float) -> list[float]:
    """Numbers of two significant digits from start to stop."""
    low, high = math.floor(math.log10(start)), math.ceil(math.log10(stop))
    values = [float(f"{d / 10}e{e}") for e in range(low, high + 1) for d in range(10, 100)]
    return [value for value in values if start <= value <= stop]


def _least(
    recipe: Recipe, n_train: int, field: str, change: Callable[[Recipe], list[float]]
) -> Advice | None:
    """The first value that makes the forecast `forgets`; clocks only grow along a lever, so bisect."""
    values = change(recipe)

    def forgets(value: float) -> bool:
        return forecast(_changed(recipe, field, value), n_train).forecast == "forgets"

    if not values or not forgets(values[-1]):
        return None
    low, high = 0, len(values) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if forgets(values[middle]) else (middle + 1, high)
    changed = _changed(recipe, field, values[low])
    old = float(getattr(recipe, field))
    factor = values[low] / old if old else math.inf
    return Advice(field, values[low], factor, forecast(changed, n_train).clock, changed)


def _changed(recipe: Recipe, field: str, value: float) -> Recipe:
    whole = field in ("batch_size", "epochs")
    return recipe.model_copy(update={field: int(value) if whole else value})
