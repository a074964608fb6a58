"""Inference for a spread, max - min over scales of the mean over seeds, from few seeds.

Values have shape (seed, scale). A run's noise may differ between scales and be shared by all scales of a
seed; seeds are what is resampled, scales are fixed. The spread of noisy means is biased upward, so:

- `noise` draws errors of the mean profile by a paired multiplier bootstrap: one Gaussian weight per seed,
  the same for all scales, times a scaled chi draw for the few degrees of freedom. For two fixed scales
  this is exactly Student's t of the paired differences.
- `profile` is the mean over seeds shrunk towards its own average as far as the noise alone explains it.
- bias, lower limit and floor follow from spread(profile + noise); the upper limit from the pairs of scales.
- the p-value permutes scale labels within each seed, or, where so few labels exist that this could not
  reach significance, comes from the F test of one-way analysis of variance.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

DRAWS = 4000
LEAST_ARRANGEMENTS = 100

Array = NDArray[np.float64]


class Spread(NamedTuple):
    """The spread over scales with what is needed to trust it. None: not to be had from so few seeds."""

    spread: float | None
    low: float | None
    high: float | None
    floor: float | None
    p: float | None
    corrected: float | None


def spread_of(profile: Array) -> Array:
    """max - min over the last axis, which is scale."""
    return np.asarray(profile.max(axis=-1) - profile.min(axis=-1))


def spread(values: Array, *, rng: np.random.Generator, level: float = 0.95) -> Spread:
    """Estimate the spread of values of shape (seed, scale)."""
    means = values.mean(axis=0)
    observed = float(spread_of(means))
    if len(values) < 2 or values.shape[1] < 2:
        return Spread(observed, None, None, None, None, None)
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
        p=p_value(values, observed, rng=rng),
        corrected=max(0.0, observed - bias),
    )


def upper_bound(values: Array, *, tail: float) -> float:
    """A spread that the true one exceeds with probability `tail` at most; values (seed, scale).

    The true spread is the difference of some pair of scales, so it lies below the largest of all pairs'
    one-sided limits whenever it lies below the limit of its own pair.
    """
    from scipy.stats import t

    n = len(values)
    pairs = values[:, :, None] - values[:, None, :]  # (seed, scale, scale)
    errors = pairs.std(axis=0, ddof=1) / math.sqrt(n)
    return float((pairs.mean(axis=0) + t.ppf(1 - tail, n - 1) * errors).max())


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


def p_value(values: Array, observed: float, *, rng: np.random.Generator) -> float:
    """How often a spread this large comes up when the scale does not matter."""
    n, scales = values.shape
    if math.factorial(min(scales, 20)) ** (n - 1) < LEAST_ARRANGEMENTS:
        return anova_p(values)
    shuffled = rng.permuted(np.broadcast_to(values, (DRAWS, n, scales)), axis=2)
    null = spread_of(shuffled.mean(axis=1))
    reached = int((null >= observed * (1 - 1e-12)).sum())
    return (1 + reached) / (1 + DRAWS)


def anova_p(values: Array) -> float:
    """One-way analysis of variance over scales, seeds as replicates; values (seed, scale)."""
    from scipy.stats import f

    n, scales = values.shape
    means = values.mean(axis=0)
    between = n * float(((means - means.mean()) ** 2).sum()) / (scales - 1)
    within = float(((values - means) ** 2).sum()) / (scales * (n - 1))
    if within == 0:
        return 1.0 if between == 0 else 0.0
    return float(f.sf(between / within, scales - 1, scales * (n - 1)))
