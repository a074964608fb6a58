"""Untrained runs: how many, at which scale, and whether their rate depends on the scale.

A run is untrained when it diverged, or when its selected model is no better than chance. Means over seeds
hardly show it when one run in five fails at one scale, so the rate is tested on its own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from initmem.data.sources import sizes
from initmem.errors import InitmemError
from initmem.measures.design import SCALE, Groups, Measure, Row, plain
from initmem.recipe import AnyRecipe, PipelineRecipe
from initmem.record import RunRecord
from initmem.table import RECIPE, number

NEAR_CHANCE = 0.05  # of the way from chance to a perfect score
MEMORIZED = 0.9  # accuracy on training examples from which on they count as fitted
EQUAL_RATES = 0.1  # rates that differ by no more than this count as equal


class FailureRate(NamedTuple):
    """Untrained runs at one scale, with Clopper and Pearson's 95% interval of the rate."""

    scale: float
    untrained: int
    n: int
    low: float
    high: float


class Failures(NamedTuple):
    """Untrained runs over all scales."""

    rates: list[FailureRate]
    untrained: int
    at_chance: int  # of the untrained: the others diverged after a better model had been selected
    n: int
    p: float | None  # of equal rates; None: no run is untrained, or all are
    largest_difference: float  # between two scales: an upper limit at 97.5%
    chance: float | None  # accuracies up to this one count as chance; None: not known, diverged runs only
    memorized: int = 0  # of the untrained: fitted their training examples, but are at chance on others

    def equal(self, tolerance: float | None = None) -> bool:
        """Whether rates are equal as far as one can tell: no run is untrained, or the rates differ by no more
        than the tolerance. With a tolerance given, that has to be shown in any case."""
        if self.untrained == 0 and tolerance is None:
            return True
        dependent = self.p is not None and self.p <= 0.05
        limit = EQUAL_RATES if tolerance is None else tolerance
        return not dependent and self.largest_difference <= limit


def failures(records: Sequence[RunRecord]) -> Failures | None:
    """Count the untrained runs of one recipe by scale; None if all runs crashed: crashes do not count."""
    trained = [record for record in plain(records) if record.status != "crashed"]
    if not trained:
        return None
    limit = chance_limit(trained[0].run.recipe)
    lost = [r for r in trained if r.status == "diverged" or is_at_chance(r, limit)]
    totals = Counter(record.run.scale for record in trained)
    counts = Counter(record.run.scale for record in lost)
    rates = [FailureRate(x, counts[x], n, *rate_limits(counts[x], n)) for x, n in sorted(totals.items())]
    untrained, n = [rate.untrained for rate in rates], [rate.n for rate in rates]
    fits = [record.summary.train_accuracy_last for record in lost if record.status != "diverged"]
    return Failures(
        rates=rates,
        untrained=sum(untrained),
        at_chance=sum(is_at_chance(record, limit) for record in trained),
        n=sum(n),
        p=equal_rates_p(untrained, n) if 0 < sum(untrained) < sum(n) else None,
        largest_difference=max(r.high for r in rates) - min(r.low for r in rates),
        chance=limit,
        memorized=sum(fit is not None and fit >= MEMORIZED for fit in fits),
    )


def is_at_chance(record: RunRecord, limit: float | None) -> bool:
    """Whether the accuracy of a run is at chance, or it diverged before any model was selected."""
    accuracy = record.summary.test_accuracy
    if accuracy is None:
        accuracy = record.summary.val_accuracy_best
    if accuracy is None:
        return record.status == "diverged"
    return limit is not None and accuracy <= limit


def chance_limit(recipe: AnyRecipe) -> float | None:
    """The largest accuracy that counts as chance. User code declares its number of `classes`."""
    try:
        data = None if isinstance(recipe, PipelineRecipe) else sizes(recipe)
    except InitmemError:  # the data may not be here
        data = None
    classes = recipe.get("classes") if data is None else data.classes
    if not isinstance(classes, int) or classes < 2:
        return None
    chance = 1 / classes
    noise = 2 * math.sqrt(chance * (1 - chance) / data.n_test) if data else 0.0
    return chance + max(NEAR_CHANCE * (1 - chance), noise)


def rate_limits(untrained: int, n: int) -> tuple[float, float]:
    """Clopper and Pearson's 95% interval of a rate."""
    from scipy.stats import binomtest

    interval = binomtest(untrained, n).proportion_ci()
    return float(interval.low), float(interval.high)


def equal_rates_p(untrained: Sequence[int], n: Sequence[int]) -> float:
    """The p-value of equal rates by Pearson's statistic, from 9,999 tables with the same margins.

    Failures that come by seed rather than by scale make the test conservative, not wrong.
    """
    from scipy.stats import MonteCarloMethod, chi2_contingency

    table = [untrained, np.subtract(n, untrained)]
    method = MonteCarloMethod(rng=np.random.default_rng(0))
    return float(chi2_contingency(table, correction=False, method=method).pvalue)


# -- table ------------------------------------------------------------------------------------------------


def _rows(groups: Groups, metric: str | None) -> list[Row]:
    """Untrained runs, scale by scale; p is the recipe's."""
    rows: list[Row] = []
    for label, records in groups.items():
        if (counted := failures(records)) is not None:
            shared = {"p": counted.p, "counts_as_chance": counted.chance}
            rows += [{"recipe": label} | rate._asdict() | shared for rate in counted.rates]
    return rows


MEASURES = {
    "failures": Measure(
        "Untrained runs: at chance, or diverged",
        _rows,
        {
            "recipe": RECIPE,
            "scale": SCALE,
            "untrained": number("untrained", "runs at chance, or diverged"),
            "n": number("n", "number of runs"),
            ("low", "high"): number("95% interval", "of the rate (Clopper-Pearson)", ".2f"),
            "p": number("p", "of a rate that does not depend on the scale", ".2g"),
            "counts_as_chance": number("chance", "accuracy that counts as chance", ".3g", priority=4),
        },
    )
}
