"""When the labels are fitted: tau_interp as censored data, never dropped."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from initmem.measures.design import plain
from initmem.record import RunRecord

Array = NDArray[np.float64]


class Interpolation(NamedTuple):
    """The median interpolation epoch over runs. None: not reached by half of them."""

    median: float | None
    low: float | None  # 95% limits; None: beyond the horizon
    high: float | None
    n: int
    n_censored: int


class Survival(NamedTuple):
    """The share of runs that have not interpolated yet (Kaplan-Meier), with 95% limits; (time,) each."""

    times: Array
    share: Array
    low: Array
    high: Array


def median_interpolation(records: Sequence[RunRecord]) -> Interpolation:
    """The median of tau_interp; a run that never interpolated counts as later than its last epoch."""
    times, reached = interpolation_times(records)
    curve = survival(times, reached)
    return Interpolation(
        median=_first(curve.times, curve.share <= 0.5),
        low=_first(curve.times, curve.low <= 0.5),
        high=_first(curve.times, curve.high <= 0.5),
        n=len(times),
        n_censored=int((~reached).sum()),
    )


def interpolation_times(records: Sequence[RunRecord]) -> tuple[Array, NDArray[np.bool_]]:
    """tau_interp, or the last epoch of runs that never got there; and whether they did; (run,) each."""
    chosen = [r for r in plain(records) if r.status != "crashed" and r.summary.epochs > 0]
    reached = np.array([r.summary.tau_interp is not None for r in chosen], dtype=bool)
    times = np.array([float(r.summary.tau_interp or r.summary.epochs) for r in chosen])
    return times, reached


def survival(times: Array, reached: NDArray[np.bool_]) -> Survival:
    """Kaplan and Meier's estimate with log(-log) limits by Greenwood's formula."""
    from scipy.stats import CensoredData, ecdf

    if not reached.any():
        return Survival(*[np.empty(0)] * 4)
    estimate = ecdf(CensoredData(uncensored=times[reached], right=times[~reached])).sf
    with warnings.catch_warnings():
        # Where every run has interpolated, or none has, the formula has no value; the share itself stands in.
        warnings.filterwarnings("ignore", "The confidence interval is undefined", RuntimeWarning)
        band = estimate.confidence_interval(0.95, method="log-log")
    at = np.isin(estimate.quantiles, times[reached])
    share = estimate.probabilities[at]
    low, high = (
        np.where(np.isfinite(limit.probabilities[at]), limit.probabilities[at], share)
        for limit in (band.low, band.high)
    )
    return Survival(estimate.quantiles[at], share, low, high)


def _first(times: Array, condition: NDArray[np.bool_]) -> float | None:
    reached = np.flatnonzero(condition)
    return float(times[reached[0]]) if len(reached) else None
