"""Runs that failed to train: how often, at which scale, and whether that depends on the scale.

A run failed to train when it diverged, or when its predictor is no better than chance. Means over seeds
hardly show it when one run in five fails at one scale, so the rate is tested on its own.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from initmem.data.sources import sizes
from initmem.errors import InitmemError
from initmem.measures.design import plain
from initmem.recipe import AnyRecipe, PipelineRecipe
from initmem.store.record import RunRecord

NEAR_CHANCE = 0.05  # of the way from chance to a perfect score
MEMORIZED = 0.9  # accuracy on training examples from which on they count as fitted
EQUAL_RATES = 0.1  # rates that differ by no more than this count as equal
LARGEST_TABLE = 2_000_000  # of the exact test


class FailureRate(NamedTuple):
    """Failures to train at one scale, with Clopper and Pearson's 95% interval of the rate."""

    scale: float
    failed: int
    n: int
    low: float
    high: float


class Failures(NamedTuple):
    """Failures to train over all scales."""

    rates: list[FailureRate]
    failed: int
    n: int
    p: float | None  # exact; None: no run failed, or all did
    largest_difference: float  # between two scales: an upper limit at 97.5%
    chance: float | None  # accuracies up to this one count as chance; None: not known, diverged runs only
    memorized: int = 0  # of the failed: fitted their training examples, but are at chance on others

    def equal(self, tolerance: float | None = None) -> bool:
        """Whether rates are equal as far as one can tell: no failure was seen, or the rates differ by no more
        than the tolerance. With a tolerance given, that has to be shown in any case."""
        if self.failed == 0 and tolerance is None:
            return True
        dependent = self.p is not None and self.p <= 0.05
        limit = EQUAL_RATES if tolerance is None else tolerance
        return not dependent and self.largest_difference <= limit


def failures(records: Sequence[RunRecord]) -> Failures | None:
    """Count the failures of one recipe by scale; None without any trained run. Crashes do not count."""
    trained = [record for record in plain(records) if record.status != "failed"]
    if not trained:
        return None
    limit = chance_limit(trained[0].run.recipe)
    counts: dict[float, list[int]] = defaultdict(lambda: [0, 0])
    lost = [record for record in trained if failed_to_train(record, limit)]
    for record in lost:
        counts[record.run.scale][0] += 1
    for record in trained:
        counts[record.run.scale][1] += 1
    rates = [FailureRate(scale, f, m, *rate_limits(f, m)) for scale, (f, m) in sorted(counts.items())]
    failed, n = [rate.failed for rate in rates], [rate.n for rate in rates]
    fits = [record.summary.train_accuracy_last for record in lost if record.status != "diverged"]
    return Failures(
        rates=rates,
        failed=sum(failed),
        n=sum(n),
        p=exact_p(failed, n) if 0 < sum(failed) < sum(n) else None,
        largest_difference=max(r.high for r in rates) - min(r.low for r in rates),
        chance=limit,
        memorized=sum(fit is not None and fit >= MEMORIZED for fit in fits),
    )


def failed_to_train(record: RunRecord, limit: float | None) -> bool:
    """Whether a run diverged, or ended with an accuracy at chance."""
    if record.status == "diverged":
        return True
    accuracy = record.summary.test_accuracy
    if accuracy is None:
        accuracy = record.summary.val_accuracy_best
    return limit is not None and accuracy is not None and accuracy <= limit


def chance_limit(recipe: AnyRecipe) -> float | None:
    """The largest accuracy that counts as chance. User code declares its number of `classes`."""
    try:
        known = None if isinstance(recipe, PipelineRecipe) else sizes(recipe)
    except InitmemError:  # the data may not be here
        known = None
    classes = recipe.get("classes") if known is None else known.classes
    if not isinstance(classes, int) or classes < 2:
        return None
    chance = 1 / classes
    noise = 2 * math.sqrt(chance * (1 - chance) / known.n_test) if known else 0.0
    return chance + max(NEAR_CHANCE * (1 - chance), noise)


def rate_limits(failed: int, n: int, alpha: float = 0.05) -> tuple[float, float]:
    """Clopper and Pearson's interval of a rate."""
    from scipy.special import betaincinv

    low = float(betaincinv(failed, n - failed + 1, alpha / 2)) if failed else 0.0
    high = float(betaincinv(failed + 1, n - failed, 1 - alpha / 2)) if failed < n else 1.0
    return low, high


def exact_p(failed: Sequence[int], n: Sequence[int]) -> float:
    """The exact p-value of equal rates, given the number of failures in all, by Pearson's statistic.

    With this total the statistic is a sum over scales, so that its distribution is built scale by scale: a
    table of failures so far by statistic so far. Where that would be too large (hundreds of runs, unequal
    numbers at the scales), tables with the same margins are drawn. Failures that come by seed rather than by
    scale make the test careful, not wrong.
    """
    total = min(sum(failed), sum(n) - sum(failed))
    rarer = list(failed) if sum(failed) == total else [m - f for f, m in zip(failed, n, strict=True)]
    weights = [math.lcm(*n) // m for m in n]
    largest = sum(w * min(m, total) ** 2 for w, m in zip(weights, n, strict=True))
    if (total + 1) * (largest + 1) > LARGEST_TABLE:
        return _drawn_p(rarer, n)
    states = np.zeros((total + 1, largest + 1))
    states[0, 0] = 1.0
    for m, weight in zip(n, weights, strict=True):
        grown = np.zeros_like(states)
        for f in range(min(m, total) + 1):
            step = f * f * weight
            grown[f:, step:] += states[: total + 1 - f, : largest + 1 - step] * (math.comb(m, f) / 2**m)
        states = grown
    observed = sum(w * f * f for w, f in zip(weights, rarer, strict=True))
    return float(states[total, observed:].sum() / states[total].sum())


def _drawn_p(failed: Sequence[int], n: Sequence[int], draws: int = 9999) -> float:
    sizes_, rng = np.array(n), np.random.default_rng(0)
    drawn = rng.multivariate_hypergeometric(sizes_, sum(failed), size=draws)
    reached = (drawn**2 / sizes_).sum(axis=1) >= (np.array(failed) ** 2 / sizes_).sum() * (1 - 1e-12)
    return float((1 + reached.sum()) / (1 + draws))
