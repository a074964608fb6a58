"""When the labels are fitted: tau_interp as censored data, never dropped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from initmem.measures.design import plain
from initmem.store.record import RunRecord

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
    chosen = [r for r in plain(records) if r.status != "failed" and r.summary.epochs > 0]
    reached = np.array([r.summary.tau_interp is not None for r in chosen], dtype=bool)
    times = np.array([float(r.summary.tau_interp or r.summary.epochs) for r in chosen])
    return times, reached


def survival(times: Array, reached: NDArray[np.bool_]) -> Survival:
    """Kaplan-Meier estimate with log(-log) limits by Greenwood's formula."""
    points = np.unique(times[reached])
    share, variance = 1.0, 0.0
    rows = []
    for t in points:
        at_risk, events = int((times >= t).sum()), int(((times == t) & reached).sum())
        share *= 1 - events / at_risk
        variance += events / (at_risk * (at_risk - events)) if at_risk > events else np.inf
        rows.append((share, *_limits(share, variance)))
    table = np.array(rows).reshape(-1, 3)
    return Survival(points, table[:, 0], table[:, 1], table[:, 2])


def _limits(share: float, variance: float) -> tuple[float, float]:
    if share in (0.0, 1.0):
        return share, share
    log_share = np.log(share)
    half = 1.959963985 * np.sqrt(variance) / abs(log_share)
    return float(share ** np.exp(half)), float(share ** np.exp(-half))


def _first(times: Array, condition: NDArray[np.bool_]) -> float | None:
    found = np.flatnonzero(condition)
    return float(times[found[0]]) if len(found) else None
