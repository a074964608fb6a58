"""Collapse: on which clock do the |beta| curves of different batch sizes agree?

Against clock * b^-(alpha - 1), with the sum of eta for the clock, the curves of all batch sizes b coincide at
the right alpha: 0 is epochs, 1 the sum of eta, 2 the SGD clock. Curves then pass a given level of |beta| at
clocks t with log t = constant + (alpha - 1) log b. So alpha - 1 is a regression slope over the levels that at
least two curves pass. Where no level is shared, the curves say nothing about alpha.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from initmem.labels import labels
from initmem.measures.beta import beta_curve
from initmem.measures.design import Groups, Measure, Row, followed_metric
from initmem.measures.statistics import Array, Limits, jackknife
from initmem.recipe import AnyRecipe, Recipe
from initmem.record import RunRecord
from initmem.table import Column, number

LEVELS = 40  # of |beta|, evenly in its logarithm
CLEAR = 2.0  # standard errors by which a curve has to start above a level and end below it
SHARED = 3  # levels that have to be shared
SMALLEST = 1e-6  # |beta| below this is zero for all practical purposes
NAMED = {0: "epochs", 1: "sum of eta", 2: "SGD clock"}


class Collapse(NamedTuple):
    """The exponent alpha of the batch size, where it can be told."""

    alpha: float | None
    low: float | None
    high: float | None
    n_levels: int  # of |beta| that at least two curves pass
    n_curves: int

    @property
    def reading(self) -> str:
        """What the interval of alpha says, in words."""
        if self.alpha is None:
            return "cannot tell: the curves share no level of |beta| that they clearly pass"
        if self.low is None or self.high is None:
            return "cannot tell: one seed gives no interval"
        inside = [name for alpha, name in NAMED.items() if self.low <= alpha <= self.high]
        return f"consistent with {', '.join(inside) or 'none of the named clocks'}"


class _Fading(NamedTuple):
    """The slopes of one recipe from the epoch of the largest |beta| on."""

    log_time: Array  # (epoch,)
    own: Array  # slopes of the seeds, (seed, epoch)
    error: float  # standard error of their mean, typical over epochs


def families(groups: Iterable[Sequence[RunRecord]]) -> dict[str, list[Sequence[RunRecord]]]:
    """Groups of at least two recipes that differ in batch size alone, by what they share."""
    shared: dict[AnyRecipe, list[Sequence[RunRecord]]] = {}
    for records in groups:
        recipe = records[0].run.recipe
        key = recipe.replace(batch_size=1) if recipe.get("batch_size") else recipe
        shared.setdefault(key, []).append(records)
    several = {recipe: members for recipe, members in shared.items() if len(members) > 1}
    # Of user code everything declared is in a label: a batch size that stands for all should not be.
    named = [one if isinstance(one, Recipe) else one.replace(batch_size=None) for one in several]
    return dict(zip(labels(named), several.values(), strict=True))


def collapse(groups: Sequence[Sequence[RunRecord]], metric: str = "val_accuracy") -> Collapse:
    """Compare the curves of recipes that differ in batch size, one group of records each."""
    sizes = np.array([float(group[0].run.recipe.get("batch_size") or np.nan) for group in groups])
    fadings = _fadings(groups, metric)
    slope, n_levels = regress(fadings, np.log(sizes)) if fadings else (None, 0)
    alpha, low, high = (None if one is None else one + 1 for one in slope or (None, None, None))
    return Collapse(alpha, low, high, n_levels, len(groups))


def _fadings(groups: Sequence[Sequence[RunRecord]], metric: str) -> list[_Fading] | None:
    """The decays of all recipes, over the seeds that they share; None where a clock was not recorded."""
    curves = [beta_curve(records, metric) for records in groups]
    shared = set.intersection(*(set(curve.seeds.tolist()) for curve in curves))
    fadings = []
    for curve in curves:
        own, time = curve.own[np.isin(curve.seeds, list(shared))], curve.clocks["adaptive"]
        finite = np.asarray(np.isfinite(own).all(axis=0) if own.size else np.zeros(0, dtype=bool))
        if len(time) != len(finite) or finite.sum() < 2 or not (np.diff(time[finite]) > 0).all():
            return None
        fadings.append(fading(np.log(time[finite]), own[:, finite]))
    return fadings


def fading(log_time: Array, own: Array) -> _Fading:
    """The decay of a curve from its peak on; (epoch,) and (seed, epoch)."""
    n = len(own)
    errors = own.std(axis=0, ddof=1) / np.sqrt(n) if n > 1 else np.zeros(own.shape[1])
    peak = int(np.abs(own.mean(axis=0)).argmax())
    return _Fading(log_time[peak:], own[:, peak:], max(float(np.median(errors)), SMALLEST))


def regress(fadings: Sequence[_Fading], log_sizes: Array) -> tuple[Limits | None, int]:
    """Regress log times of passing levels on log b, (curve,), with 95% limits; None: cannot tell.

    The interval comes from leaving out one seed at a time, in all curves at once, as they share seeds.
    """
    levels = _levels(fadings)
    passing = _passing(fadings, levels, slice(None))
    used = np.flatnonzero(np.isfinite(passing).sum(axis=0) >= 2)
    estimate = _solve(passing[:, used], log_sizes)
    if math.isnan(estimate) or len(used) < SHARED:
        return None, len(used)
    n = len(fadings[0].own)
    _, low, high = jackknife(lambda kept: _solve(_passing(fadings, levels[used], kept), log_sizes), n)
    if n < 2 or low is None or high is None:
        return (Limits(estimate, None, None) if n < 2 else None), len(used)
    # Interpolation between epochs leaves half an epoch open.
    step = float(np.median([np.diff(f.log_time).mean() for f in fadings]))
    open_part = 0.5 * step / float(np.ptp(log_sizes))
    return Limits(estimate, low - open_part, high + open_part), len(used)


def _levels(fadings: Sequence[_Fading]) -> Array:
    heights = [np.abs(f.own.mean(axis=0)) for f in fadings]
    low = max(min(float(h.min()) for h in heights), SMALLEST)
    high = max(float(h.max()) for h in heights)
    return np.geomspace(low, max(high, 2 * low), LEVELS + 2)[1:-1]


def _passing(fadings: Sequence[_Fading], levels: Array, kept: NDArray[np.intp] | slice) -> Array:
    """The log time at which each curve passes each level, (curve, level); NaN unless it clearly does."""
    from scipy.optimize import isotonic_regression

    table = np.full((len(fadings), len(levels)), np.nan)
    for row, one in zip(table, fadings, strict=True):
        height = np.abs(one.own[kept].mean(axis=0))
        # Decreasing by least squares: noise makes no detours, and every level is passed once.
        falling = isotonic_regression(height, increasing=False).x
        clear = (levels < falling[0] - CLEAR * one.error) & (levels > falling[-1] + CLEAR * one.error)
        if clear.any():
            logs = np.log(np.maximum(falling, SMALLEST / 10))
            tie = 1e-12 * np.arange(len(logs))  # strictly decreasing, for the interpolation
            row[clear] = np.interp(-np.log(levels[clear]), -logs + tie, one.log_time)
    return table


def _solve(passing: Array, log_sizes: Array) -> float:
    """The least-squares slope of the log times within levels; NaN where no level is shared."""
    there = np.isfinite(passing) & (np.isfinite(passing).sum(axis=0) >= 2)  # (curve, level)
    n = np.maximum(there.sum(axis=0), 1)
    x, y = (np.where(there, side, 0.0) for side in (log_sizes[:, None], passing))
    x, y = (np.where(there, side - side.sum(axis=0) / n, 0.0) for side in (x, y))
    spread = float((x * x).sum())
    return float((x * y).sum()) / spread if spread > 1e-18 else math.nan


# -- table ------------------------------------------------------------------------------------------------


def _rows(groups: Groups, metric: str | None) -> list[Row]:
    """The exponent alpha of the batch size, in families of recipes that differ in it alone."""
    rows = []
    for label, family in families(groups.values()).items():
        exponent = collapse(family, followed_metric(family[0], metric))
        rows.append({"family": label} | exponent._asdict() | {"reading": exponent.reading})
    return rows


MEASURES = {
    "collapse": Measure(
        "Collapse: the exponent of the batch size that makes the curves of |slope| agree",
        _rows,
        {
            "family": Column("family", "text", "recipes that differ in batch size alone"),
            "alpha": number("alpha", "0: epochs, 1: sum of eta, 2: the SGD clock", ".2f"),
            ("low", "high"): number("95% interval", "of alpha, from seeds", ".2f"),
            "reading": Column("reading", "text", "what that says; cannot tell: the curves do not overlap"),
            "n_curves": number("curves", "number of batch sizes", priority=5),
            "n_levels": number("levels", "levels of |slope| that at least two curves pass", priority=6),
        },
        of="curve",
        together=True,
    )
}
