"""From records to series: the one place where means, percentiles, intervals and counts are taken. Pure.

The caller gives a series its label and style.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from initmem.intervention import Level
from initmem.measures.beta import BetaCurve
from initmem.measures.design import by_level, profile
from initmem.measures.scales import median_interpolation
from initmem.measures.statistics import ALPHA, mean_band, mean_limits
from initmem.metric import metric_of
from initmem.plots.model import BAND, Series, Style
from initmem.record import RunRecord

Array = NDArray[np.float64]
Value = Callable[[RunRecord], float | None]
MEAN = f"mean over seeds, with a {BAND} (all scales at once)"
MEDIAN = f"median, runs that never get there counted as later than the last epoch, with a {BAND}"
SLOPE = f"slope over all runs, with a {BAND} (all epochs at once)"
UNSTYLED = Style("")


def value_of(metric: str) -> Value:
    """A metric of a record in the unit in which it is shown: percent for accuracies."""
    factor = metric_of(metric).factor

    def value(record: RunRecord) -> float | None:
        recorded = record.metric(metric)
        return None if recorded is None else factor * recorded

    return value


def accuracy_gap(record: RunRecord) -> float | None:
    """Train less test accuracy of the selected predictor, in points."""
    train, test = record.metric("train_accuracy"), record.metric("test_accuracy")
    return None if train is None or test is None else 100 * (train - test)


def scale_series(
    records: Sequence[RunRecord],
    value: Value,
    expected: Mapping[float, int] | None = None,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> Series:
    """Mean, 95% band for all scales at once, 95% interval of each mean, and n of a value, scale by scale.

    `expected` says how many runs there should be at every scale; without it, the scales are those that have
    a value. The band stays within `bounds`.
    """
    groups = by_level(records)
    values = {
        level: {r.run.seed: v for r in group if (v := value(r)) is not None}
        for level, group in groups.items()
    }
    trained = [level for level in groups if values[level]]
    scales: list[Level] = trained if expected is None else list(expected)
    seeds = sorted({seed for of_seeds in values.values() for seed in of_seeds})
    table = np.array([[values[level].get(seed, math.nan) for level in trained] for seed in seeds])
    band = np.clip(mean_band(table), *bounds).T.tolist() if trained else []
    bands = dict(zip(trained, band, strict=True))
    samples = [list(values.get(scale, {}).values()) for scale in scales]
    return Series(
        "",
        UNSTYLED,
        scales,
        y=[float(np.mean(sample)) if sample else math.nan for sample in samples],
        low=[bands.get(scale, (math.nan, math.nan))[0] for scale in scales],
        high=[bands.get(scale, (math.nan, math.nan))[1] for scale in scales],
        limits=[mean_limits(sample)[1:] for sample in samples],
        n=[len(sample) for sample in samples],
        n_censored=[len(groups.get(scale, ())) - len(x) for scale, x in zip(scales, samples, strict=True)],
        expected=[0] * len(scales) if expected is None else list(expected.values()),
        runs=[[record.id for record in groups.get(scale, ())] for scale in scales],
    )


def profile_series(
    records: Sequence[RunRecord], metric: str, expected: Mapping[float, int] | None = None
) -> Series:
    """A metric by scale, in the unit in which it is shown."""
    return scale_series(records, value_of(metric), expected, metric_of(metric).bounds)


def interpolation_series(records: Sequence[RunRecord], expected: Mapping[float, int] | None = None) -> Series:
    """The median interpolation epoch by scale; NaN where half of the runs never interpolate.

    Here `n_censored` counts runs of `n`: they never interpolate, but they are part of the estimate.
    """
    groups = by_level(records)
    scales: list[Level] = list(groups) if expected is None else list(expected)
    level = 1 - ALPHA / max(1, len(groups))  # Bonferroni: the limits hold for all scales at once
    medians = [median_interpolation(groups.get(scale, ()), level) for scale in scales]
    return Series(
        "",
        UNSTYLED,
        scales,
        y=[one.median or math.nan for one in medians],
        low=[one.low or math.nan if one.median else math.nan for one in medians],
        high=[one.high or math.inf if one.median else math.nan for one in medians],
        n=[one.n for one in medians],
        n_censored=[one.n_censored for one in medians],
        expected=[0] * len(scales) if expected is None else list(expected.values()),
        runs=[[record.id for record in groups.get(scale, ())] for scale in scales],
    )


def beta_series(curve: BetaCurve, clock: str | None = None) -> Series:
    """|beta| against epoch or a clock, with a band for all epochs at once and the interval at each."""
    low, high = folded(curve.band_low, curve.band_high)
    ticks = curve.epochs if clock is None else curve.clocks[clock]
    limits = list(zip(*folded(curve.low, curve.high), strict=True))
    y, n = np.abs(curve.beta).tolist(), [curve.n_runs] * len(low)
    return Series("", UNSTYLED, ticks.tolist(), y, low, high, limits, n)


def folded(low: Array, high: Array) -> tuple[list[float], list[float]]:
    """The limits of |beta| from those of beta, shape (epoch,) each: one around zero starts at zero."""
    around_zero = (low <= 0) & (high >= 0)
    ends = np.abs(np.stack([low, high]))
    return np.where(around_zero, 0.0, ends.min(axis=0)).tolist(), ends.max(axis=0).tolist()


def usual_grid(groups: Iterable[Sequence[RunRecord]]) -> list[float]:
    """The scales that most groups of records have, exactly."""
    counts = Counter(tuple(sorted({record.run.scale for record in records})) for records in groups)
    best = max(counts, key=lambda grid: (counts[grid], len(grid)), default=())
    return list(best)


def common_grid(grids: Sequence[Iterable[float]]) -> list[float]:
    """The grid of scales that most of the given ones contain: spreads over different grids do not compare."""
    sets = [frozenset(grid) for grid in grids]
    best = max(set(sets), key=lambda grid: (sum(grid <= other for other in sets), len(grid)), default=None)
    return sorted(best) if best is not None else []


def spread_over(records: Sequence[RunRecord], scales: Sequence[float]) -> float | None:
    """max - min over scales of the mean test accuracy, in points, over the seeds that have every scale.

    None where no seed has them all, or where there is but one scale.
    """
    there = [record for record in records if record.run.scale in scales]
    if len(scales) < 2 or {record.run.scale for record in there} != set(scales):
        return None
    values = profile(there, "test_accuracy").values
    return float(np.ptp(values.mean(axis=0))) if len(values) else None
