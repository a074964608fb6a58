"""From records to series: the one place where means, percentiles, intervals and counts are taken. Pure."""

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
from initmem.measures.statistics import mean_band, spread_of, student
from initmem.metric import metric_of
from initmem.plots.model import Series, Statistic, Style
from initmem.record import RunRecord

Array = NDArray[np.float64]
Value = Callable[[RunRecord], float | None]
PERCENTILES = "band from the 10th to the 90th percentile"
MEAN = Statistic("mean over seeds", PERCENTILES)
PROFILE = Statistic("mean over seeds", "95% simultaneous band (all scales at once)")
MEDIAN = Statistic(
    "median, runs that never reach it counted as later than the last epoch", "band of 95% limits"
)
SLOPE = Statistic("slope over all runs", "95% simultaneous band (all epochs at once)")
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
    *,
    label: str = "",
    style: Style = UNSTYLED,
) -> Series:
    """Mean, 10th and 90th percentile, 95% interval and n of a value, scale by scale.

    `expected` says how many runs there should be at every scale; without it, the scales are those that have
    a value.
    """
    groups = by_level(records)
    values = {scale: [v for v in map(value, group) if v is not None] for scale, group in groups.items()}
    scales: list[Level] = [level for level in groups if values[level]] if expected is None else list(expected)
    samples = [np.asarray(values.get(scale, []), dtype=float) for scale in scales]
    bands = [np.percentile(x, [10, 90]) if len(x) else (math.nan, math.nan) for x in samples]
    return Series(
        label=label,
        style=style,
        x=scales,
        y=[float(x.mean()) if len(x) else math.nan for x in samples],
        low=[float(low) for low, _ in bands],
        high=[float(high) for _, high in bands],
        limits=[mean_limits(x) for x in samples],
        n=[len(x) for x in samples],
        n_censored=[len(groups.get(scale, ())) - len(x) for scale, x in zip(scales, samples, strict=True)],
        expected=[0] * len(scales) if expected is None else list(expected.values()),
        runs=[[record.id for record in groups.get(scale, ())] for scale in scales],
    )


def profile_series(
    records: Sequence[RunRecord], metric: str, *, label: str = "", style: Style = UNSTYLED
) -> Series:
    """A metric by scale; its band holds for all scales at once, within what the metric allows."""
    value = value_of(metric)
    series = scale_series(records, value, label=label, style=style)
    seeds = sorted({record.run.seed for record in records})
    values = np.full((len(seeds), len(series.x)), np.nan)
    for record in records:
        if (shown := value(record)) is not None:
            values[seeds.index(record.run.seed), list(series.x).index(record.run.level)] = shown
    low, high = (np.clip(limit, *metric_of(metric).bounds).tolist() for limit in mean_band(values))
    return series._replace(low=low, high=high)


def mean_limits(values: Sequence[float] | np.ndarray) -> tuple[float, float] | None:
    """Student's 95% interval of a mean; None from a single value."""
    n = len(values)
    if n < 2:
        return None
    mean, half = float(np.mean(values)), student(n - 1) * float(np.std(values, ddof=1)) / n**0.5
    return mean - half, mean + half


def interpolation_series(
    records: Sequence[RunRecord],
    expected: Mapping[float, int] | None = None,
    *,
    label: str = "",
    style: Style = UNSTYLED,
) -> Series:
    """The median interpolation epoch by scale; NaN where half of the runs never interpolate.

    Here `n_censored` counts runs of `n`: they never interpolate, but they are part of the estimate.
    """
    groups = by_level(records)
    scales: list[Level] = list(groups) if expected is None else list(expected)
    medians = [median_interpolation(groups.get(scale, ())) for scale in scales]
    return Series(
        label=label,
        style=style,
        x=scales,
        y=[one.median or math.nan for one in medians],
        low=[one.low or math.nan if one.median else math.nan for one in medians],
        high=[one.high or math.inf if one.median else math.nan for one in medians],
        n=[one.n for one in medians],
        n_censored=[one.n_censored for one in medians],
        expected=[0] * len(scales) if expected is None else list(expected.values()),
        runs=[[record.id for record in groups.get(scale, ())] for scale in scales],
    )


def beta_series(
    curve: BetaCurve, clock: str | None = None, *, label: str = "", style: Style = UNSTYLED
) -> Series:
    """|beta| against epoch or a clock, with a band for all epochs at once and the interval at each."""
    low, high = folded(curve.band_low, curve.band_high)
    ticks = curve.epochs if clock is None else curve.clocks[clock]
    return Series(
        label=label,
        style=style,
        x=ticks.tolist(),
        y=np.abs(curve.beta).tolist(),
        low=low,
        high=high,
        limits=list(zip(*folded(curve.low, curve.high), strict=True)),
        n=[curve.n_runs] * len(low),
    )


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
    return float(spread_of(values.mean(axis=0))) if len(values) else None
