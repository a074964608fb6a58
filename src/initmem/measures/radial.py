"""Radial memory: does the norm of the trained kernels still depend on the norm they started with?

And the clock that moves it under adaptive methods.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from initmem.data.sources import sizes
from initmem.errors import InitmemError
from initmem.measures.design import plain
from initmem.measures.statistics import student
from initmem.recipe import Recipe
from initmem.shapes import kernel_weights
from initmem.store.record import RunRecord

Array = NDArray[np.float64]


class Radial(NamedTuple):
    """The elasticity of the selected norm in the initial norm: 1: fully retained, 0: forgotten."""

    elasticity: float
    low: float | None
    high: float | None
    n_runs: int
    n_seeds: int


def radial_memory(records: Sequence[RunRecord]) -> Radial | None:
    """Slope of log ||W(tau_best)|| on log ||W(init)||; the interval leaves out one seed at a time."""
    rows = [
        (r.run.seed, r.summary.norm_init, r.summary.norm_best)
        for r in plain(records)
        if r.summary.norm_init and r.summary.norm_best
    ]
    if len({start for _, start, _ in rows}) < 2:
        return None
    seeds = np.array([seed for seed, _, _ in rows])
    x = np.log([start for _, start, _ in rows])
    y = np.log([end for _, _, end in rows])
    slope = _slope(x, y)
    distinct = np.unique(seeds)
    n = len(distinct)
    if n < 2:
        return Radial(slope, None, None, len(rows), n)
    left_out = np.array([_slope(x[seeds != seed], y[seeds != seed]) for seed in distinct])
    error = math.sqrt((n - 1) / n * float(((left_out - left_out.mean()) ** 2).sum()))
    half = student(n - 1) * error
    return Radial(slope, slope - half, slope + half, len(rows), n)


def relative_clock(records: Sequence[RunRecord]) -> float | None:
    """The sum of eta over the root mean square of the initial kernel weights, at the selected epoch.

    A preconditioned step moves every weight by about eta, whatever its size: this says how often it has moved
    by its own initial size. Geometric mean over runs; None where the number of weights is not known.
    """
    recipe = records[0].run.recipe
    if not isinstance(recipe, Recipe):
        return None
    try:
        size = sizes(recipe)
    except InitmemError:  # the user's dataset is not here any more
        return None
    weights = kernel_weights(recipe, size.shape, size.classes)
    if weights is None:
        return None
    root = math.sqrt(weights)
    runs = [(r.metric("clock_adaptive"), r.summary.norm_init) for r in plain(records)]
    return geometric_mean(eta * root / norm if eta is not None and norm else None for eta, norm in runs)


def effective_clock(name: str, records: Sequence[RunRecord]) -> float | None:
    """A recorded clock at the selected epoch, at the effective rate eta / (1 - momentum) of heavy ball.

    Geometric mean over runs; None where the clock, or the momentum, was not recorded.
    """
    return geometric_mean(_effective(name, record) for record in plain(records))


def _effective(name: str, record: RunRecord) -> float | None:
    clock, plain_rate, effective_rate = (record.metric(f"clock_{n}") for n in (name, "sgd", "momentum"))
    if name == "momentum":
        return clock
    if clock is None or effective_rate is None or not plain_rate:
        return None
    return clock * math.sqrt(effective_rate / plain_rate)  # these two are sums of squared rates


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """Over the values that are there; None where there is none, or one that is not positive."""
    known = [value for value in values if value is not None]
    return float(np.exp(np.mean(np.log(known)))) if known and min(known) > 0 else None


def _slope(x: Array, y: Array) -> float:
    centred = x - x.mean()
    return float(centred @ y / (centred @ centred))
