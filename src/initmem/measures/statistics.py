"""Inference for a spread, max - min over scales of the mean over seeds, from few seeds.

Values have shape (seed, scale). A run's noise may differ between scales and be shared by all scales of a
seed; seeds are what is resampled, scales are fixed. The spread of noisy means is biased upward, so:

- `noise` draws errors of the mean profile by a paired multiplier bootstrap: one Gaussian weight per seed,
  the same for all scales, times a scaled chi draw for the few degrees of freedom. For two fixed scales
  this is exactly Student's t of the paired differences.
- `profile` is the mean over seeds shrunk towards its own average as far as the noise alone explains it.
- bias, lower limit and floor follow from spread(profile + noise); the upper limit from the pairs of scales.
- `p` is the F test of Brown and Forsythe with Mehrotra's degrees of freedom on values centred by seed (for
  two scales: Welch's test). It keeps its level when the noise differs between scales. Permuting scale
  labels within seeds, reported beside it, does not: with 25 scales whose noise grows with the scale it calls
  10 to 16% of memoryless recipes significant at the 5% level, and with two scales and few seeds it cannot
  become significant at all.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

DRAWS = 4000

Array = NDArray[np.float64]


class Spread(NamedTuple):
    """The spread over scales with what is needed to trust it. None: not to be had from so few seeds."""

    spread: float | None
    low: float | None
    high: float | None
    floor: float | None
    p: float | None
    corrected: float | None
    p_permutation: float | None


def spread_of(profile: Array) -> Array:
    """max - min over the last axis, which is scale."""
    return np.asarray(profile.max(axis=-1) - profile.min(axis=-1))


def spread(values: Array, *, rng: np.random.Generator, level: float = 0.95) -> Spread:
    """Estimate the spread of values of shape (seed, scale)."""
    means = values.mean(axis=0)
    observed = float(spread_of(means))
    if len(values) < 2 or values.shape[1] < 2:
        return Spread(observed, None, None, None, None, None, None)
    errors = noise(values, rng=rng)
    profile = shrink(values)
    excess = spread_of(profile + errors) - spread_of(profile)
    tail = (1 - level) / 2
    low = observed - float(np.quantile(excess, 1 - tail))
    bias = float(np.median(excess))
    return Spread(
        spread=observed,
        low=max(0.0, low),
        high=upper_bound(values, tail=tail),
        floor=float(spread_of(noise(values, rng=rng, known_variance=True)).mean()),
        p=scale_test(values),
        corrected=max(0.0, observed - bias),
        p_permutation=permutation_p(values, observed, rng=rng),
    )


def upper_bound(values: Array, *, tail: float) -> float:
    """A spread that the true one exceeds with probability `tail` at most; values (seed, scale).

    The true spread is the difference of some pair of scales, so it lies below the largest of all pairs'
    one-sided limits whenever it lies below the limit of its own pair.
    """
    n = len(values)
    pairs = values[:, :, None] - values[:, None, :]  # (seed, scale, scale)
    errors = pairs.std(axis=0, ddof=1) / math.sqrt(n)
    return float((pairs.mean(axis=0) + student(n - 1, tail) * errors).max())


def noise(values: Array, *, rng: np.random.Generator, known_variance: bool = False) -> Array:
    """Draw errors of the mean over seeds, shape (draw, scale).

    With `known_variance` the sample variance is taken at its word: right for an expectation, while limits
    have to allow for its being an estimate.
    """
    n = len(values)
    residuals = values - values.mean(axis=0)
    weights: Array = rng.standard_normal((DRAWS, n)) / math.sqrt(n * (n - 1))
    if not known_variance:
        weights *= np.sqrt((n - 1) / rng.chisquare(n - 1, size=(DRAWS, 1)))
    return np.asarray(weights @ residuals)


def shrink(values: Array) -> Array:
    """The mean profile, shape (scale,), shrunk by the share of its variance that is noise."""
    n = len(values)
    means: Array = values.mean(axis=0)
    centre = means.mean()
    between = float(((means - centre) ** 2).sum())
    if between == 0:
        return means
    residuals = values - means
    residuals = residuals - residuals.mean(axis=1, keepdims=True)  # a seed's own level is no noise here
    within = float((residuals**2).sum()) / (n * (n - 1))
    return np.asarray(centre + (means - centre) * max(0.0, 1 - within / between))


def scale_test(values: Array) -> float:
    """The p-value of no dependence on scale; values (seed, scale), noise may differ between scales."""
    from scipy.special import fdtrc

    n, scales = values.shape
    variances = values.var(axis=0, ddof=1)
    if scales > 2:  # with two scales, centring would tie them and halve the degrees of freedom
        values = values - values.mean(axis=1, keepdims=True)
        variances = values.var(axis=0, ddof=1) * scales / (scales - 1)
    means = values.mean(axis=0)
    between = n * float(((means - means.mean()) ** 2).sum())
    total, squares = float(variances.sum()), float((variances**2).sum())
    if total <= 1e-24 * max(1.0, float(np.abs(values).max()) ** 2):
        return 1.0 if between <= 1e-20 else 0.0
    share = 1 / scales
    freedom1 = ((1 - share) * total) ** 2 / ((share * total) ** 2 + (1 - 2 * share) * squares)
    freedom2 = total**2 * (n - 1) / squares
    return float(fdtrc(freedom1, freedom2, between / ((1 - share) * total)))


def permutation_p(values: Array, observed: float, *, rng: np.random.Generator) -> float:
    """How often the spread is as large when scale labels are permuted within each seed."""
    n, scales = values.shape
    shuffled = rng.permuted(np.broadcast_to(values, (DRAWS, n, scales)), axis=2)
    null = spread_of(shuffled.mean(axis=1))
    reached = int((null >= observed * (1 - 1e-12)).sum())
    return (1 + reached) / (1 + DRAWS)


def seeds_needed(found: Spread, n: int, tolerance: float | None, most: int = 1000) -> int | None:
    """How many seeds in all would settle the verdict, if the estimates stay as they are.

    Limits narrow as t(n - 1) / sqrt(n): either the lower one rises above zero or the upper one falls below
    the tolerance. None: more than `most`.
    """
    if found.low is None or found.high is None or found.corrected is None:
        return None
    unit = student(n - 1) / math.sqrt(n)
    down, up = (found.corrected - found.low) / unit, (found.high - found.corrected) / unit
    if found.low == 0:  # clipped: the upper half is the better guide to the width
        down = up
    for more in range(n + 1, most + 1):
        width = student(more - 1) / math.sqrt(more)
        if found.corrected - down * width > 0:
            return more
        if tolerance is not None and found.corrected + up * width <= tolerance:
            return more
    return None


def student(freedom: int, tail: float = 0.025) -> float:
    """The quantile of Student's t that is exceeded with probability `tail`."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 1 - tail))
