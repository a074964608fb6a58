"""Simultaneous bands: limits that hold for a whole curve at once with the level that is said."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from initmem.measures.statistics import ALPHA, student

Array = NDArray[np.float64]


def critical(seeds: Array, *, alpha: float = ALPHA) -> float:
    """How many standard errors a band has to extend to hold at all points; `seeds` has shape (seed, point).

    At a single point it is Student's quantile. Along a curve, the expected number of crossings of a level is
    known for a t process (Rice; Worsley 1994) from the length of the path that the standardised residuals
    make, so that neighboring points which move together count once. Bonferroni's bound holds in any case.
    """
    n = len(seeds)
    residuals = seeds - seeds.mean(axis=0)
    size = np.sqrt((residuals**2).sum(axis=0))
    known = np.isfinite(size) & (size > 0)
    points = int(known.sum())
    if points < 2:
        return student(n - 1, alpha / 2)
    paths = residuals[:, known] / size[known]
    length = float(np.sqrt((np.diff(paths, axis=1) ** 2).sum(axis=0)).sum())
    bonferroni = student(n - 1, alpha / 2 / points)
    low, high = student(n - 1, alpha / 2), bonferroni
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _exceedance(middle, n - 1, length) > alpha else (low, middle)
    return high


def mean_band(values: Array) -> tuple[Array, Array]:
    """95% limits for the means of all points at once; `values` has shape (seed, point), NaN: no value.

    Where every seed has every point, as `critical` says. Else the points rest on different seeds, and each
    mean has Student's limits from its own seeds at Bonferroni's level. NaN from fewer than two seeds.
    """
    counts = np.isfinite(values).sum(axis=0)
    low, high = np.full((2, values.shape[1]), np.nan)
    shared = critical(values) if len(values) > 1 and (counts == len(values)).all() else None
    for i, n in enumerate(counts):
        if n > 1:
            there = values[np.isfinite(values[:, i]), i]
            times = student(n - 1, ALPHA / 2 / values.shape[1]) if shared is None else shared
            half = times * there.std(ddof=1) / np.sqrt(n)
            low[i], high[i] = there.mean() - half, there.mean() + half
    return low, high


def _exceedance(level: float, freedom: int, length: float) -> float:
    """A bound of the probability that a t process leaves a band of `level` standard errors anywhere."""
    crossings = length / np.pi * (1 + level**2 / freedom) ** (-(freedom - 1) / 2)
    return float(2 * stdtr(freedom, -level) + crossings)
