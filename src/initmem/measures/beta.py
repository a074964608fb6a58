"""beta(t): how steeply validation accuracy depends on the initialization scale, epoch by epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from initmem.clocks import CLOCKS
from initmem.measures.design import Measure, Row, curves, followed_metric, of_scales, own_clock, plain
from initmem.measures.fit import cold_until
from initmem.measures.statistics import Array, critical, student
from initmem.record import RunRecord
from initmem.table import Column, number


class BetaCurve(NamedTuple):
    """The OLS slope of a metric on scale, with 95% limits; arrays of shape (epoch,)."""

    epochs: Array
    beta: Array
    low: Array  # at each epoch on its own
    high: Array
    n_runs: int
    clocks: dict[str, Array]  # cumulative clocks at the end of each epoch, means over runs
    band_low: Array  # for all epochs at once
    band_high: Array
    own: Array  # slopes of the seeds, (seed, epoch)
    seeds: Array


class HalfLife(NamedTuple):
    """How long after its largest value |beta| stays above half of it. None: to the end of the run."""

    unit: str  # "epochs", "updates" or a clock
    value: float | None
    low: float | None
    high: float | None  # None: beyond the end of the run


def beta_curve(records: Sequence[RunRecord], metric: str = "val_accuracy") -> BetaCurve:
    """The slope over all (seed, scale) at every epoch, with limits from the seeds' own slopes.

    It ends where the first run was stopped early: later slopes would be those of fewer scales and seeds.
    """
    values, scales, seeds = _common(records, metric)
    sums = _sums(values, scales)  # (5, seed, epoch)
    beta, own = _slope(sums.sum(axis=1)), _seed_slopes(sums)
    n, epochs = own.shape
    error = own.std(axis=0, ddof=1) / np.sqrt(n) if n > 1 else np.full(epochs, np.nan)
    half, band = (factor * error for factor in ((student(n - 1), critical(own)) if n > 1 else (1.0, 1.0)))
    ticks = {name: _mean_over_runs(records, f"clock_{name}") for name in CLOCKS}
    n_runs = int((~np.isnan(values).all(axis=2)).sum()) if values.size else 0
    return BetaCurve(
        epochs=np.arange(1.0, epochs + 1),
        beta=beta,
        low=beta - half,
        high=beta + half,
        n_runs=n_runs,
        clocks=ticks,
        band_low=beta - band,
        band_high=beta + band,
        own=own,
        seeds=seeds,
    )


def _common(records: Sequence[RunRecord], column: str) -> tuple[Array, Array, Array]:
    """The curves up to the last epoch of the shortest run that was completed; a diverged run leaves a gap.

    Metrics of epochs that are cold at any scale are left out: the slope would be that of the statistics.
    """
    values, levels, seeds = curves(of_scales(records), column)
    scales = np.array(levels, dtype=float)
    if not column.startswith(("clock_", "train_", "updates")):
        values[..., : cold_until(records)] = np.nan
    completed = (record for record in plain(records) if record.status == "completed")
    ends = [len(record.history[column]) for record in completed if column in record.history]
    return values[..., : min(ends, default=values.shape[2])], scales, seeds


def _seed_slopes(sums: Array) -> Array:
    """Each seed's contribution to the slope: its own slope on a full grid, else a jackknife pseudo-value."""
    n = sums.shape[1]
    whole = _slope(sums.sum(axis=1))
    if n < 2:
        return np.tile(whole, (n, 1))
    left_out = _slope(sums.sum(axis=1, keepdims=True) - sums)  # (seed, epoch)
    return np.asarray(n * whole - (n - 1) * left_out)


def half_lives(records: Sequence[RunRecord], metric: str = "val_accuracy") -> list[HalfLife]:
    """The half-life of |beta| in epochs, and in updates and on the clock of its family if recorded."""
    curve = beta_curve(records, metric)
    if not np.isfinite(curve.beta).any():
        return []
    clock = own_clock(plain(records))
    lives = []
    axes = {"epochs": curve.epochs, "updates": _mean_over_runs(records, "updates")}
    for unit, axis in (axes | ({clock: curve.clocks[clock]} if clock else {})).items():
        if len(axis) != len(curve.beta) or not (np.diff(axis) > 0).all():
            continue  # not recorded, or a clock that stands still
        low, high = half_life_limits(curve.beta, curve.own, axis)
        lives.append(HalfLife(unit, half_life(curve.beta, axis), low, high))
    return lives


def half_life(beta: Array, axis: Array) -> float | None:
    """Time on an axis from the largest |beta| until it stays at half of it or less; both (epoch,).

    The last crossing counts: a slope that changes sign passes through zero without having been forgotten.
    """
    peak = _peak(beta)
    if peak is None:
        return None
    size = np.abs(beta)
    end = _last_above(size - size[peak] / 2, axis, peak)
    return None if end is None else end - float(axis[peak])


def half_life_limits(beta: Array, own: Array, axis: Array) -> tuple[float | None, float | None]:
    """95% limits of a half-life from the seeds' slopes, shape (seed, epoch), as Fieller's for a ratio.

    At every epoch Student's t test over seeds compares the slope with half of the slope at the peak, and
    with that slope itself. The peak may be any epoch that is not significantly below the observed one. The
    time of half may be any from the first epoch at which the slope is not significantly above half until
    the last at which it is not significantly below.
    """
    peak, n = _peak(beta), len(own)
    if peak is None or n < 2:
        return None, None
    # The observed peak is the largest of many: these tests have to hold at all epochs together.
    _, below_peak = _beside_peak(own, beta[peak], peak, 1.0, critical(own - own[:, [peak]]))
    peaks = axis[(below_peak >= 0) | (np.arange(len(axis)) == peak)]
    above, below = _beside_peak(own, beta[peak], peak, 0.5, student(n - 1))
    first, last = _first_below(above, axis, peak), _last_above(below, axis, peak)
    low = None if first is None else max(first - float(peaks[-1]), 0.0)
    return low, None if last is None else last - float(peaks[0])


def _beside_peak(own: Array, sign: float, peak: int, share: float, times: float) -> tuple[Array, Array]:
    """|slope| minus a share of that at the peak, at every epoch: limits `times` standard errors away."""
    n = len(own)
    toward = np.sign(sign) * own
    # Above it on either side of zero: the slope may have changed its sign.
    above = np.stack([side * toward - share * toward[:, [peak]] for side in (1, -1)])
    centre = above.mean(axis=1)
    half = times * above.std(axis=1, ddof=1) / np.sqrt(n)
    return (centre - half).max(axis=0), (centre + half).max(axis=0)


def _peak(beta: Array) -> int | None:
    size = np.abs(beta)
    return None if not len(size) or np.isnan(size).all() else int(np.nanargmax(size))


def _last_above(height: Array, axis: Array, peak: int) -> float | None:
    """When a height falls to zero and stays there or below, from the peak on; None where it does not."""
    positive = np.flatnonzero(height > 0)
    positive = positive[positive >= peak]
    if not len(positive):
        return float(axis[peak])
    last = int(positive[-1])
    if not np.isfinite(height[last + 1 :]).any():
        return None
    return _crossing(height, axis, last)


def _first_below(height: Array, axis: Array, peak: int) -> float | None:
    """When a height first falls to zero, from the peak on; None where it does not."""
    below = np.flatnonzero(height[peak:] <= 0)
    if not len(below):
        return None
    first = peak + int(below[0])
    return float(axis[peak]) if first == peak else _crossing(height, axis, first - 1)


def _crossing(height: Array, axis: Array, before: int) -> float:
    """Where the height passes zero between an epoch and the next that is known."""
    after = before + 1 + int(np.flatnonzero(np.isfinite(height[before + 1 :]))[0])
    share = height[before] / (height[before] - height[after])
    return float(axis[before] + share * (axis[after] - axis[before]))


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


def _mean_over_runs(records: Sequence[RunRecord], column: str) -> Array:
    values, _, _ = _common(records, column)
    if not values.size:
        return np.empty(0)  # training code that no tracker watched
    return np.asarray(np.nanmean(values.reshape(-1, values.shape[2]), axis=0))


# -- tables -----------------------------------------------------------------------------------------------


def _beta_rows(records: Sequence[RunRecord], metric: str | None) -> list[Row]:
    name = followed_metric(records, metric)
    curve = beta_curve(records, name)
    peak = _peak(curve.beta)
    if peak is None:
        return []
    lines = ("beta", "low", "high", "band_low", "band_high")
    clocks = {f"clock_{clock}": ticks.tolist() for clock, ticks in curve.clocks.items()}
    row: Row = {
        "metric": name,
        "peak_epoch": peak + 1,
        "peak": float(curve.beta[peak]),
        "last_epoch": len(curve.beta),
        "last": float(curve.beta[-1]),
        "low": float(curve.low[-1]),
        "high": float(curve.high[-1]),
        "n_runs": curve.n_runs,
        "curve": {line: getattr(curve, line).tolist() for line in lines} | clocks,
    }
    return [row]


def _half_life_rows(records: Sequence[RunRecord], metric: str | None) -> list[Row]:
    name = followed_metric(records, metric)
    return [{"metric": name} | one._asdict() for one in half_lives(records, name)]


METRIC = Column("metric", "text", "followed over epochs", priority=3)
MEASURES = {
    "beta": Measure(
        "Slope of the metric on the initialization scale",
        _beta_rows,
        {
            "metric": METRIC,
            "peak": number("peak", "slope of the largest size over training", ".3g"),
            "peak_epoch": number("peak epoch", "when it was reached", priority=4),
            "last": number("last", "slope at the last epoch", ".3g"),
            ("low", "high"): number("95% interval", "of the slope at the last epoch", ".3g"),
            "last_epoch": number("epochs", "until the first run ended", priority=6),
        },
        of="curve",
    ),
    "half-life": Measure(
        "Half-life of the slope on the scale",
        _half_life_rows,
        {
            "metric": METRIC,
            "unit": Column("unit", "text", "epochs, updates, or the clock of the recipe's family"),
            "value": number("half-life", "until |slope| stays below half its peak; empty: never", ".4g"),
            "low": number("low", "lower 95% limit", ".4g"),
            "high": number("high", "upper 95% limit; empty: beyond the end", ".4g"),
        },
        of="curve",
    ),
}
