"""beta(t): how steeply validation accuracy depends on the initialization scale, epoch by epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from initmem.clocks import CLOCKS
from initmem.measures.design import curves
from initmem.measures.statistics import student
from initmem.store.record import RunRecord

Array = NDArray[np.float64]
DRAWS = 400  # of seeds, for the interval of a half-life


class BetaCurve(NamedTuple):
    """The OLS slope of a metric on scale, with its 95% interval; arrays of shape (epoch,)."""

    epochs: Array
    beta: Array
    low: Array
    high: Array
    n_runs: int
    clocks: dict[str, Array]  # cumulative clocks at the end of each epoch, means over runs


class HalfLife(NamedTuple):
    """How long after its largest value |beta| stays above half of it. None: to the end of the run."""

    unit: str  # "epochs" or a clock
    value: float | None
    low: float | None
    high: float | None  # None: some resampled studies never got there


def beta_curve(records: Sequence[RunRecord], metric: str = "val_accuracy") -> BetaCurve:
    """The slope over all (seed, scale) at every epoch; the interval leaves out one seed at a time."""
    values, scales, _ = curves(records, metric)
    n_seeds, _, epochs = values.shape
    sums = _sums(values, scales)  # (5, seed, epoch)
    beta = _slope(sums.sum(axis=1))
    if n_seeds > 1:
        left_out = _slope(sums.sum(axis=1, keepdims=True) - sums)  # (seed, epoch)
        spread = ((left_out - left_out.mean(axis=0)) ** 2).sum(axis=0)
        half = student(n_seeds - 1) * np.sqrt((n_seeds - 1) / n_seeds * spread)
    else:
        half = np.full(epochs, np.nan)
    ticks = {name: _mean_clock(records, name) for name in CLOCKS}
    n_runs = int((~np.isnan(values).all(axis=2)).sum())
    return BetaCurve(np.arange(1.0, epochs + 1), beta, beta - half, beta + half, n_runs, ticks)


def resampled_beta(
    records: Sequence[RunRecord], metric: str, *, rng: np.random.Generator, draws: int = DRAWS
) -> Array:
    """beta of studies whose seeds were drawn anew, jointly over all scales; shape (draw, epoch)."""
    values, scales, seeds = curves(records, metric)
    sums = _sums(values, scales)
    weights = rng.multinomial(len(seeds), np.full(len(seeds), 1 / len(seeds)), size=draws)
    return _slope(np.einsum("ds,ase->ade", weights.astype(float), sums))


def half_lives(
    records: Sequence[RunRecord], metric: str = "val_accuracy", *, seed: int = 0
) -> list[HalfLife]:
    """The half-life of |beta| in epochs and in every clock."""
    curve = beta_curve(records, metric)
    drawn = resampled_beta(records, metric, rng=np.random.default_rng(seed))
    found = []
    for unit, axis in {"epochs": curve.epochs, **curve.clocks}.items():
        if not len(axis) or not (np.diff(axis) > 0).all():
            continue  # a clock that was not measured, or stands still, as l2 does without a penalty
        value = half_life(curve.beta, axis)
        resampled = [half_life(row, axis) for row in drawn]
        ordered = sorted(np.inf if t is None else t for t in resampled)
        low, high = np.quantile(ordered, [0.025, 0.975], method="inverted_cdf")
        found.append(HalfLife(unit, value, *(float(t) if np.isfinite(t) else None for t in (low, high))))
    return found


def half_life(beta: Array, axis: Array) -> float | None:
    """Time on an axis from the largest |beta| until it stays at half of it or less; both (epoch,).

    The last crossing counts: a slope that changes sign passes through zero without having been forgotten.
    """
    size = np.abs(beta)
    if not len(size) or np.isnan(size).all():
        return None
    peak = int(np.nanargmax(size))
    half = size[peak] / 2
    known = np.flatnonzero(~np.isnan(size))
    after = int(np.flatnonzero(size > half)[-1]) + 1 if size[peak] > 0 else peak
    if after > known[-1]:
        return None
    if after == peak:
        return 0.0
    share = (size[after - 1] - half) / (size[after - 1] - size[after])
    return float(axis[after - 1] + share * (axis[after] - axis[after - 1]) - axis[peak])


def _sums(values: Array, scales: Array) -> Array:
    """Per seed and epoch: n, sum s, sum s^2, sum y, sum s*y; shape (5, seed, epoch)."""
    there = ~np.isnan(values)
    y = np.where(there, values, 0.0)
    s = scales[None, :, None]
    parts = (there, there * s, there * s**2, y, y * s)
    return np.stack([np.asarray(part, dtype=float).sum(axis=1) for part in parts])


def _slope(sums: Array) -> Array:
    """OLS slopes from sums of shape (5, ...); NaN where fewer than two scales are there."""
    n, s, ss, y, sy = sums
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = n * ss - s**2
        return np.asarray(np.where(spread > 1e-12, (n * sy - s * y) / spread, np.nan))


def _mean_clock(records: Sequence[RunRecord], name: str) -> Array:
    values, _, _ = curves(records, f"clock_{name}")
    if not values.size:
        return np.empty(0)  # training code that no tracker watched
    return np.asarray(np.nanmean(values.reshape(-1, values.shape[2]), axis=0))
