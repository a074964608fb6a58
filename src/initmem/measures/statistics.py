"""Inference for the range over scales of the mean over seeds: one method for test, interval and estimate.

Values have shape (..., seed, scale). Seeds are a sample; scales are fixed. The noise of a run may differ
between scales and be correlated between the scales of a seed in any way; everything rests on the seeds'
covariance S of the scales, taken relative to each seed's own mean (C S C with C = I - 11'/k).

- Test. F = n |C m|^2 / tr(CSC), with m the mean profile. Under "the scale does not matter" F is close to an F
  distribution with v and v (n - 1) degrees of freedom, v = tr(CSC)^2 / tr((CSC)^2) (Box 1954, Greenhouse and
  Geisser 1959). For two scales this is exactly the paired t test. With few seeds the plug-in v is too small;
  `degrees_of_freedom` moves it towards the estimate of Huynh and Feldt as far as simulation shows to be safe.
- Lower limit. A profile u is rejected when |C (m - u)| exceeds a radius, the same for all u. So the profiles
  that are not rejected form a ball, and the smallest range in it is reached by clipping m to a band.
  The limit is positive exactly when the test rejects.
- Upper limit. The largest one-sided paired Student limit over all pairs of scales. One of these pairs is the
  true pair of extremes, whose own limit has the nominal level.
- Estimate. The range of noisy means is biased upward, because the extreme scales are chosen by the data that
  then measure them. `debiased` chooses them on some seeds and measures their difference on the others.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtrc, fdtri, stdtr, stdtrit

from initmem.errors import ConfigError, allowed

ALPHA = 0.05
POWER = 0.8
TOLERANCE_PP = 2.0  # a range of at most this many points counts as forgotten
ADJUSTMENTS = ("bh", "none")
MOST_SEEDS = 300  # that are worth advising
FOLDS = 5  # groups of seeds that are left out in turn

Array = NDArray[np.float64]


T = TypeVar("T")


class Spread(NamedTuple, Generic[T]):
    """The range over scales with what is needed to trust it.

    Of one study T is `float | None`, with None for what so few seeds do not tell. Of many studies at once it
    is an array of shape (...,).
    """

    spread: T
    low: T
    high: T
    noise_range: T  # expected from noise alone
    p: T
    debiased: T


class Noise(NamedTuple):
    """What the seeds say about the noise of the mean profile."""

    covariance: Array  # CSC, (..., scale, scale)
    total: Array  # its trace, (...,)
    freedom: Array  # degrees of freedom of the numerator, (...,)


def spread(values: Array, *, alpha: float = ALPHA, bound: float = math.inf) -> Spread[float | None]:
    """Infer the range of values of shape (seed, scale); no range of the metric exceeds `bound`."""
    if len(values) < 2 or values.shape[1] < 2:
        return Spread(float(np.ptp(values.mean(axis=0))), None, None, None, None, None)
    return Spread(*(float(item) for item in spreads(values, alpha=alpha, bound=bound)))


def spreads(values: Array, *, alpha: float = ALPHA, bound: float = math.inf) -> Spread[Array]:
    """Infer the ranges of many studies, values of shape (..., seed, scale), from two seeds and scales on.

    The interval has level 1 - alpha, and low > 0 exactly when p <= alpha.
    """
    n, k = values.shape[-2:]
    means = values.mean(axis=-2)
    noise = noise_of(values)
    p = _p_value(means, noise, n)
    observed = np.ptp(means, axis=-1)
    radius = np.sqrt(fdtri(noise.freedom, noise.freedom * (n - 1), 1 - alpha) * noise.total / n)
    low, rejected = np.zeros(p.shape), p <= alpha
    low[rejected] = np.maximum(smallest_range(means[rejected], radius[rejected]), np.finfo(float).tiny)
    high = np.minimum(upper_limit(means, noise.covariance, n, alpha=alpha), bound)
    return Spread(
        spread=observed,
        low=np.minimum(low, high),
        high=high,
        noise_range=expected_range(k) * np.sqrt(noise.total / ((k - 1) * n)),
        p=p,
        debiased=np.clip(_cross_validated(values), low, observed),
    )


def noise_of(values: Array) -> Noise:
    """The covariance of the scales over seeds, relative to each seed's mean; values (..., seed, scale)."""
    n, k = values.shape[-2:]
    residuals = values - values.mean(axis=-2, keepdims=True)
    residuals = residuals - residuals.mean(axis=-1, keepdims=True)
    covariance = np.swapaxes(residuals, -1, -2) @ residuals / (n - 1)
    total = np.trace(covariance, axis1=-2, axis2=-1)
    rounding = 1e-24 * np.maximum(np.abs(values).max(axis=(-2, -1)), 1e-300) ** 2
    total = np.where(total <= rounding * k, 0.0, total)
    squares = (covariance**2).sum(axis=(-2, -1))
    plugged = np.where(total > 0, total**2 / np.where(squares > 0, squares, 1.0), 1.0)
    return Noise(covariance, total, degrees_of_freedom(plugged, n, k))


def degrees_of_freedom(plugged: Array, n: int, k: int) -> Array:
    """From Greenhouse and Geisser's plug-in estimate towards Huynh and Feldt's.

    The plug-in value cannot exceed n - 1, however many scales there are, which costs power with three or
    four seeds. Huynh and Feldt correct it, but overshoot where few directions carry the noise. The step
    towards their value grows with the share of directions that carry noise; the third power and the
    bound 2 (n - 1) keep false alarms below 6.5% in all simulated families (benchmarks/coverage.py).
    """
    plugged = np.clip(plugged, 1.0, None)
    most = min(n - 1, k - 1)
    if most < 2:
        return plugged
    room = np.maximum(n - 1 - plugged, 1e-9)
    corrected = np.clip((n * plugged - 2) / room, plugged, max(most, min(k - 1, 2 * (n - 1))))
    share = np.clip((plugged - 1) / (most - 1), 0.0, 1.0)
    return np.asarray(plugged + share**3 * (corrected - plugged))


def _p_value(means: Array, noise: Noise, n: int) -> Array:
    centred = means - means.mean(axis=-1, keepdims=True)
    between = n * (centred**2).sum(axis=-1)
    noisy = noise.total > 0
    ratio = between / np.where(noisy, noise.total, 1.0)
    # Seeds that agree to the last digit: any difference between scales is beyond noise.
    rounding = 1e-20 * np.maximum(np.abs(means).max(axis=-1), 1e-300) ** 2
    exact = np.where(between > rounding, 0.0, 1.0)
    return np.asarray(np.where(noisy, fdtrc(noise.freedom, noise.freedom * (n - 1), ratio), exact))


def smallest_range(means: Array, radius: Array, steps: int = 45) -> Array:
    """The smallest range of a profile within `radius` of `means`, up to a shift; (..., scale) and (...,).

    The nearest profile of a given range clips the means to a band that takes as much from above as from
    below. So: find the amount t, by bisection, at which the distance is the radius.
    """
    k = means.shape[-1]
    ordered = np.sort(means, axis=-1)
    counts = np.arange(1, k + 1)
    from_below = np.cumsum(ordered, axis=-1)
    from_above = np.cumsum(ordered[..., ::-1], axis=-1)

    def band(amount: Array) -> tuple[Array, Array]:
        upper = ((from_above - amount[..., None]) / counts).max(axis=-1)
        lower = ((from_below + amount[..., None]) / counts).min(axis=-1)
        return lower, upper

    deviations = ordered - ordered.mean(axis=-1, keepdims=True)
    least, most = np.zeros(means.shape[:-1]), np.maximum(deviations, 0.0).sum(axis=-1)
    for _ in range(steps):
        middle = (least + most) / 2
        lower, upper = band(middle)
        clipped = np.clip(ordered, np.minimum(lower, upper)[..., None], upper[..., None])
        inside = ((ordered - clipped) ** 2).sum(axis=-1) <= radius**2
        least, most = np.where(inside, middle, least), np.where(inside, most, middle)
    lower, upper = band(least)
    return np.asarray(np.maximum(upper - lower, 0.0))


def upper_limit(means: Array, covariance: Array, n: int, *, alpha: float) -> Array:
    """A range that the true one exceeds with probability alpha / 2 at most."""
    differences, errors = paired(means, covariance, n)
    return np.asarray((differences + student(n - 1, alpha / 2) * errors).max(axis=(-2, -1)))


def equivalence_p(values: Array, tolerance: float) -> Array:
    """The p-value of "the range exceeds the tolerance" (two one-sided tests), for values (..., seed, scale).

    It is at most alpha / 2 exactly when the upper limit of level 1 - alpha is at most the tolerance.
    """
    n = values.shape[-2]
    differences, errors = paired(values.mean(axis=-2), noise_of(values).covariance, n)
    margin = tolerance - differences
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(errors > 0, margin / errors, np.where(margin >= 0, np.inf, -np.inf))
    return np.asarray(stdtr(n - 1, -t).max(axis=(-2, -1)))


def paired(means: Array, covariance: Array, n: int) -> tuple[Array, Array]:
    """Differences of means over all pairs of scales, and their paired errors; (..., scale, scale) each."""
    differences = means[..., :, None] - means[..., None, :]
    own = np.diagonal(covariance, axis1=-2, axis2=-1)
    variances = own[..., :, None] + own[..., None, :] - 2 * covariance
    return differences, np.sqrt(np.maximum(variances, 0.0) / n)


def _cross_validated(values: Array) -> Array:
    """The difference between two scales on some seeds that are the extremes on the other seeds, averaged.

    Seeds are left out one by one, or in five groups where there are more of them: leaving out single seeds
    of many would hardly ever change the choice, and leave the estimate as variable as it is biased.
    """
    n = values.shape[-2]
    groups = np.arange(n) % min(n, FOLDS)
    total = np.zeros(values.shape[:-2])
    for group in range(groups.max() + 1):
        inside = values[..., groups == group, :].sum(axis=-2)
        others = values[..., groups != group, :].mean(axis=-2)
        top = np.take_along_axis(inside, others.argmax(axis=-1)[..., None], axis=-1)
        bottom = np.take_along_axis(inside, others.argmin(axis=-1)[..., None], axis=-1)
        total += (top - bottom)[..., 0]
    return np.asarray(total / n)


@lru_cache(maxsize=64)
def expected_range(k: int) -> float:
    """The expected range of k standard normal variables: 1.13, 2.33 and 3.93 for 2, 5 and 25."""
    from scipy.special import ndtr

    x = np.linspace(-9.0, 9.0, 3601)
    below = ndtr(x)
    return float(np.trapezoid(1 - below**k - (1 - below) ** k, x))


def seeds_needed(values: Array, tolerance: float | None, *, alpha: float = ALPHA) -> int | None:
    """How many seeds in all settle the verdict in 80% of studies that continue this one; None: over 300.

    Studies are simulated: the measured seeds, then normal ones around the debiased profile with the measured
    covariance. Its size is drawn as well (chi-squared): few seeds hardly determine the noise.
    """
    n, k = values.shape
    if n < 2 or k < 2:
        return None
    return _seeds_needed(values.tobytes(), n, tolerance, alpha)


@lru_cache(maxsize=4096)
def _seeds_needed(buffer: bytes, n: int, tolerance: float | None, alpha: float) -> int | None:
    values = np.frombuffer(buffer).reshape(n, -1)
    centred = values - values.mean(axis=1, keepdims=True)
    means, observed = centred.mean(axis=0), spread(values)
    share = (observed.debiased or 0.0) / observed.spread if observed.spread else 0.0
    freedom = float(noise_of(values).freedom) * (n - 1)

    def settles(seeds: int, studies: int = 200) -> bool:
        rng = np.random.default_rng(0)
        size = np.sqrt(freedom / rng.chisquare(freedom, (studies, 1, 1)))
        noise = rng.standard_normal((studies, seeds - n, n)) @ (centred - means) / math.sqrt(n - 1)
        measured = np.broadcast_to(centred, (studies, *centred.shape))
        ranges = spreads(np.concatenate([measured, share * means + size * noise], axis=1), alpha=alpha)
        within = ranges.high <= (-math.inf if tolerance is None else tolerance)
        return bool(((ranges.p <= alpha) | within).mean() >= POWER)

    counts = {*range(3, 20), *(round(20 * (MOST_SEEDS / 20) ** (i / 29)) for i in range(30))}
    grid: list[int] = sorted(m for m in counts if m > n)
    if not grid or not settles(grid[-1]):
        return None
    return grid[bisect_left(grid, True, key=settles)]


class Limits(NamedTuple):
    """An estimate and its 95% interval over seeds; None where there are too few of them."""

    value: float | None
    low: float | None
    high: float | None

    def named(self, name: str) -> dict[str, float | None]:
        """The three under the keys of a row."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}


def jackknife(estimate: Callable[[NDArray[np.intp]], float], n: int, *, alpha: float = ALPHA) -> Limits:
    """An estimate from the seeds with the given indices, of n: Student's interval with the jackknife's error.

    For a mean over seeds this is the usual interval.
    """
    every = np.arange(n)
    value = estimate(every) if n else math.nan
    left_out = np.array([estimate(np.delete(every, i)) for i in every]) if n > 1 else np.full(1, math.nan)
    if not (np.isfinite(left_out).all() and math.isfinite(value)):
        return Limits(value if math.isfinite(value) else None, None, None)
    error = math.sqrt((n - 1) / n * float(((left_out - left_out.mean()) ** 2).sum()))
    half = student(n - 1, alpha / 2) * error
    return Limits(value, value - half, value + half)


def mean_limits(values: Sequence[float] | Array, *, alpha: float = ALPHA) -> Limits:
    """The mean of values that are independent, with Student's interval."""
    n = len(values)
    mean = float(np.mean(values)) if n else None
    if mean is None or n < 2:
        return Limits(mean, None, None)
    half = student(n - 1, alpha / 2) * float(np.std(values, ddof=1)) / math.sqrt(n)
    return Limits(mean, mean - half, mean + half)


def mean_over_seeds(values: Sequence[tuple[int, float]], *, alpha: float = ALPHA) -> Limits:
    """The mean of (seed, value): first over the values of each seed, then over seeds."""
    own: dict[int, list[float]] = {}
    for seed, value in values:
        own.setdefault(seed, []).append(value)
    return mean_limits([float(np.mean(of_seed)) for of_seed in own.values()], alpha=alpha)


def student(freedom: int, tail: float = ALPHA / 2) -> float:
    """The quantile of Student's t that is exceeded with probability `tail`."""
    return float(stdtrit(freedom, 1 - tail))


def adjusted(ps: Sequence[float | None], method: str = "bh") -> list[float | None]:
    """Adjust p-values as Benjamini and Hochberg do; None: no test, which stays None and does not count."""
    from scipy.stats import false_discovery_control

    if method not in ADJUSTMENTS:
        raise ConfigError(f"adjust = {method!r} ({allowed(ADJUSTMENTS)})")
    tested = [p for p in ps if p is not None]
    values = iter(false_discovery_control(tested).tolist() if method == "bh" and tested else tested)
    return [None if p is None else next(values) for p in ps]


def critical(seeds: Array, *, alpha: float = ALPHA) -> float:
    """How many standard errors a band has to extend to hold at all points; `seeds` has shape (seed, point).

    At a single point it is Student's quantile. Along a curve, the expected number of crossings of a level is
    known for a t process (Rice; Worsley 1994) from the length of the path that the standardised residuals
    make, so that neighboring points which move together count once. Bonferroni's bound holds in any case.
    """
    n = len(seeds)
    residuals = seeds - seeds.mean(axis=0)
    size = np.sqrt((residuals**2).sum(axis=0))
    varies = np.isfinite(size) & (size > 0)
    points = int(varies.sum())
    if points < 2:
        return student(n - 1, alpha / 2)
    paths = residuals[:, varies] / size[varies]
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
