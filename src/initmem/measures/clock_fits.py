"""The norm elasticity of many recipes against the clocks that could explain it: a description of records.

The norm elasticity d log ||W_end|| / d log ||W_init|| of a recipe is 1 where training keeps the norm that
the initialization chose, and 0 where it forgets it. If a clock t governs forgetting, recipes that differ in
width, learning rate, batch size or dataset fall on one curve, here 1 / (1 + (t / t_half)^steepness).
In a normalized network a gradient step turns the weights by an angle proportional to eta / ||W||^2. L2 acts
there by making ||W|| smaller, so one clock, `angular`, could serve SGD with and without it.

With heavy-ball momentum all clocks count the effective learning rate eta / (1 - momentum).

Every candidate is rated by its error on recipes that were left out of the fit, next to that of their mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from initmem.clocks import CLOCKS, effective_clocks, family_of, is_adaptive
from initmem.measures.design import plain
from initmem.measures.radial import radial_memory
from initmem.recipe import AnyRecipe
from initmem.record import RunRecord

Array = NDArray[np.float64]

FEWEST = 4  # recipes of a family that a fit needs: a curve has two parameters
STEEPEST = 8.0
# The clocks that could govern the forgetting of a family of optimizers.
CANDIDATES = {
    "adaptive": ("adaptive",),
    "l2": ("l2", "adaptive", "angular"),
    "sgd": ("momentum", "adaptive", "angular"),
    "sgd+l2": ("momentum", "adaptive", "angular"),
}


class Observed(NamedTuple):
    """One recipe: its elasticity, and its clocks at the selected epoch."""

    label: str
    families: tuple[str, ...]  # the narrowest first
    recipe: AnyRecipe
    elasticity: float
    clocks: Mapping[str, float]  # geometric means over runs
    n_runs: int


class ClockFit(NamedTuple):
    """The curve of one clock through the recipes of one family."""

    family: str
    clock: str
    half: float  # the clock at which half of the elasticity is left
    steepness: float
    residual: float  # root mean square, in units of the elasticity
    error: float  # the same for recipes that were left out of the fit, one at a time
    error_of_mean: float  # of the mean of the other recipes, without any clock
    n_recipes: int

    def at(self, clock: Array) -> Array:
        """The elasticity on the curve."""
        return curve(np.log(clock), math.log(self.half), self.steepness)


def observed(label: str, records: Sequence[RunRecord]) -> Observed | None:
    """The elasticity and the clocks of one recipe; None where either was not recorded."""
    recipe, radial = records[0].run.recipe, radial_memory(records)
    family = family_of(recipe)
    if radial is None or family is None:
        return None
    families = (family,) if is_adaptive(str(recipe.get("optimizer"))) else (family, "sgd+l2")
    return Observed(label, families, recipe, radial.elasticity, selected_clocks(records), radial.n_runs)


def selected_clocks(records: Sequence[RunRecord]) -> dict[str, float]:
    """The effective clocks at the selected epoch, geometric means over runs; only those that are positive."""
    rows = []
    for record in plain(records):
        ticks = {name: record.metric(f"clock_{name}") for name in CLOCKS}
        known = {name: value for name, value in ticks.items() if value is not None}
        rows.append(effective_clocks(record.run.recipe, known))
    columns = {name: [row[name] for row in rows if name in row] for name in CLOCKS}
    return {
        name: float(np.exp(np.mean(np.log(values))))
        for name, values in columns.items()
        if values and min(values) > 0
    }


def clock_fits(recipes: Sequence[Observed]) -> list[ClockFit]:
    """Fit every candidate clock of every family that has recipes enough, the best of a family first.

    A family that has the same members as one before it is not fitted again.
    """
    fits: list[ClockFit] = []
    fitted: list[list[Observed]] = []
    for family, names in CANDIDATES.items():
        members = [one for one in recipes if family in one.families]
        if members in fitted:
            continue
        fitted.append(members)
        of_family = []
        for name in names:
            if len(members) >= FEWEST and all(name in one.clocks for one in members):
                t = np.log([one.clocks[name] for one in members])
                if np.ptp(t) > 0:
                    e = np.array([one.elasticity for one in members])
                    of_family.append(_fit(family, name, t, e))
        fits += sorted(of_family, key=lambda fit: fit.error)
    return fits


def curve(log_clock: Array, log_half: float, steepness: float) -> Array:
    """1 / (1 + (t / t_half)^steepness)."""
    from scipy.special import expit

    return np.asarray(expit(-steepness * (log_clock - log_half)))


def _fit(family: str, name: str, t: Array, elasticity: Array) -> ClockFit:
    log_half, steepness = _parameters(t, elasticity)
    n = len(t)
    others = ~np.eye(n, dtype=bool)
    predicted = [curve(t[i], *_parameters(t[others[i]], elasticity[others[i]])).item() for i in range(n)]
    means = [elasticity[others[i]].mean() for i in range(n)]
    return ClockFit(
        family,
        name,
        math.exp(log_half),
        steepness,
        _rms(elasticity - curve(t, log_half, steepness)),
        _rms(elasticity - predicted),
        _rms(elasticity - means),
        n,
    )


def _parameters(t: Array, elasticity: Array) -> tuple[float, float]:
    """The least-squares curve: the logarithm of the half clock, and the steepness."""
    from scipy.optimize import least_squares

    margin = 5.0  # the half clock may lie a little outside what was observed
    start = (float(np.median(t)), 1.0)
    bounds = ((t.min() - margin, 0.0), (t.max() + margin, STEEPEST))
    best = least_squares(lambda p: curve(t, *p) - elasticity, start, bounds=bounds)
    log_half, steepness = best.x
    return float(log_half), float(steepness)


def _rms(residuals: Array) -> float:
    return float(np.sqrt(np.mean(np.square(residuals))))
