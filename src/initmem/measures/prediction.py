"""Predict the memory of a recipe from its clock at the selected epoch, by regression on other recipes.

Within a family of optimizers a quantity (the debiased memory, or the radial elasticity) is regressed on
log10 of the family's clock at the selected epoch. For the elasticity, SGD with and without a penalty is one
family with the angular clock, which describes both (`clock_fits`). Every recipe is predicted from the
others, never from itself, by Student's predictive distribution; its logarithmic score is compared with that
of the mean of the others alone. A clock that does not beat the mean has not predicted anything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from initmem.clocks import is_adaptive
from initmem.measures.design import plain
from initmem.measures.forecast import lived_clocks
from initmem.measures.memory import Memory
from initmem.measures.radial import effective_clock, radial_memory
from initmem.measures.statistics import student
from initmem.recipe import AnyRecipe, Recipe
from initmem.store.record import RunRecord

Array = NDArray[np.float64]
Said = Literal["remembers", "forgets", "cannot tell"]
FEWEST = 3  # other recipes of the family that a prediction needs


class Predictive(NamedTuple):
    """Student's distribution of a value not seen yet."""

    centre: float
    scale: float
    freedom: int

    def limits(self) -> tuple[float, float]:
        """The 95% prediction interval."""
        half = student(self.freedom) * self.scale
        return self.centre - half, self.centre + half

    def score(self, value: float) -> float:
        """The logarithmic score, a proper one: larger is better."""
        t = (value - self.centre) / self.scale
        n = self.freedom
        constant = math.lgamma((n + 1) / 2) - math.lgamma(n / 2) - 0.5 * math.log(n * math.pi)
        return constant - math.log(self.scale) - (n + 1) / 2 * math.log1p(t * t / n)


class Lived(NamedTuple):
    """One recipe: the observed quantity, and the clock at the selected epoch (median over runs)."""

    family: str  # of optimizers, and at the same time the name of its clock; euclidean: the angular clock
    clock: float
    observed: float


class Prediction(NamedTuple):
    """One recipe predicted from the others of its family. None: too few of them."""

    family: str
    clock: float
    observed: float
    predicted: float | None
    low: float | None
    high: float | None
    score: float | None
    score_of_mean: float | None  # of the mean of the others, without any clock
    n_others: int

    def said(self, tolerance: float | None) -> Said:
        """The prediction in words: only an interval on one side of the tolerance says anything."""
        if self.low is None or self.high is None or tolerance is None:
            return "cannot tell"
        return "forgets" if self.high <= tolerance else "remembers" if self.low > tolerance else "cannot tell"


def family_of(recipe: AnyRecipe) -> str | None:
    """The clock that should act on a recipe: with a penalty l2, else by its optimizer; None: not declared."""
    optimizer = recipe.get("optimizer")
    if optimizer is None:
        return None
    return "l2" if recipe.get("l2") else "adaptive" if is_adaptive(str(optimizer)) else "sgd"


def families_of(recipe: AnyRecipe) -> tuple[str, ...]:
    """All families of a recipe: that of its clock, and for SGD with or without a penalty `euclidean`."""
    family, optimizer = family_of(recipe), recipe.get("optimizer")
    if family is None:
        return ()
    return (family,) if is_adaptive(str(optimizer)) else (family, "euclidean")


def lived_clock(records: Sequence[RunRecord]) -> tuple[str, float] | None:
    """The family of a recipe and its clock when predictors were selected; None where it was not recorded."""
    recipe = records[0].run.recipe
    family = family_of(recipe)
    if family is None:
        return None
    if isinstance(recipe, Recipe):
        value = lived_clocks(recipe, records).get(family)
    else:
        known = [r.metric(f"clock_{family}") for r in plain(records) if r.summary.tau_best]
        value = float(np.median([v for v in known if v is not None])) if any(known) else None
    return (family, value) if value and value > 0 else None


def lived_memory(records: Sequence[RunRecord], measured: Memory) -> Lived | None:
    """The debiased memory of a recipe beside its clock."""
    clock = lived_clock(records)
    return None if clock is None or measured.debiased is None else Lived(*clock, measured.debiased)


def lived_elasticity(records: Sequence[RunRecord]) -> Lived | None:
    """The radial elasticity of a recipe beside its clock: for Euclidean steps, the angular clock.

    SGD follows it with and without a penalty, so all of its recipes are one family here.
    """
    radial, angular = radial_memory(records), effective_clock("angular", records)
    clock = lived_clock(records)
    if angular is not None and "euclidean" in families_of(records[0].run.recipe):
        clock = ("euclidean", angular)
    return None if clock is None or radial is None else Lived(*clock, radial.elasticity)


def predict_each(recipes: Sequence[Lived]) -> list[Prediction]:
    """Predict every recipe from the others of its family."""
    return [
        _predict(one, [other for j, other in enumerate(recipes) if j != i and other.family == one.family])
        for i, one in enumerate(recipes)
    ]


def _predict(one: Lived, others: Sequence[Lived]) -> Prediction:
    x = np.log10([other.clock for other in others])
    y = np.array([other.observed for other in others])
    if len(others) < FEWEST or np.ptp(x) < 1e-9:
        return Prediction(*one, None, None, None, None, None, len(others))
    line, mean = regression(x, y, math.log10(one.clock)), mean_alone(y)
    return Prediction(
        *one, line.centre, *line.limits(), line.score(one.observed), mean.score(one.observed), len(others)
    )


def regression(x: Array, y: Array, at: float) -> Predictive:
    """The predictive distribution at a point, from a line through others; (recipe,) each."""
    n = len(x)
    centred = x - x.mean()
    sum_of_squares = float(centred @ centred)
    slope = float(centred @ y) / sum_of_squares
    residuals = y - y.mean() - slope * centred
    distance = at - float(x.mean())
    spread = 1 + 1 / n + distance**2 / sum_of_squares
    return Predictive(float(y.mean()) + slope * distance, _scale(residuals, n - 2) * math.sqrt(spread), n - 2)


def mean_alone(y: Array) -> Predictive:
    """The predictive distribution without any clock."""
    n = len(y)
    return Predictive(float(y.mean()), _scale(y - y.mean(), n - 1) * math.sqrt(1 + 1 / n), n - 1)


def _scale(residuals: Array, freedom: int) -> float:
    return max(math.sqrt(float(residuals @ residuals) / freedom), 1e-9)
