"""Radial memory: does the norm of the trained kernels still depend on the norm they started with?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from initmem.measures.design import plain
from initmem.measures.statistics import ALPHA, student
from initmem.record import RunRecord

Array = NDArray[np.float64]


class Radial(NamedTuple):
    """The elasticity of the selected norm in the initial norm: 1: fully retained, 0: forgotten."""

    elasticity: float
    low: float | None
    high: float | None
    n_runs: int
    n_seeds: int


def radial_memory(records: Sequence[RunRecord], *, alpha: float = ALPHA) -> Radial | None:
    """Slope of log ||W(tau_best)|| on log ||W(init)||; the interval, of level 1 - alpha, is a jackknife's."""
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
    half = student(n - 1, alpha / 2) * error
    return Radial(slope, slope - half, slope + half, len(rows), n)


def _slope(x: Array, y: Array) -> float:
    centred = x - x.mean()
    return float(centred @ y / (centred @ centred))
