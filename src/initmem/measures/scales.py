"""What every scale reached: the mean of a metric, untrained runs, interpolation, repair gap."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from initmem.data.sources import sizes_by_name
from initmem.errors import ConfigError, DataError
from initmem.intervention import Level, level_order
from initmem.measures.design import SCALE, Groups, Measure, Row, by_level, default_metric, of_scales, plain
from initmem.measures.statistics import ALPHA, TOLERANCE_PP
from initmem.metric import DERIVED, metric_of
from initmem.recipe import Recipe
from initmem.record import RunRecord
from initmem.table import RECIPE, Column, number

Array = NDArray[np.float64]

NEAR_CHANCE = 0.05  # of the way from chance to a perfect score
MEMORIZED = 0.9  # accuracy on training examples from which on they count as fitted
LOSSES = ("loss", "cross_entropy", "objective")
EQUAL_RATES = 0.1  # rates that differ by no more than this count as equal
NEVER_USED = "the pipeline never used the scale"
NO_EFFECT = "the scale had no effect on the weights"


def each_scale(groups: Groups) -> Iterator[tuple[Row, list[RunRecord]]]:
    """The records of every recipe at every scale, with the keys that say which these are."""
    for label, records in groups.items():
        for scale, at in by_level(plain(records)).items():
            yield {"recipe": label, "scale": scale}, at


# -- means ------------------------------------------------------------------------------------------------


class AtScale(NamedTuple):
    """A metric at one scale or intervention, over seeds: accuracies in percent, else in its own unit."""

    scale: Level
    mean: float | None
    deviation: float | None  # None: fewer than two runs
    n: int
    n_crashed: int


def scale_means(records: Sequence[RunRecord], metric: str) -> list[AtScale]:
    """Mean and standard deviation of a metric at every scale, smallest scale first."""
    rows = []
    for scale, at in by_level(plain(records)).items():
        recorded = [value for record in at if (value := record.metric(metric)) is not None]
        values = metric_of(metric).factor * np.array(recorded)
        rows.append(
            AtScale(
                scale,
                float(values.mean()) if len(values) else None,
                float(values.std(ddof=1)) if len(values) > 1 else None,
                len(values),
                sum(record.status == "crashed" for record in at),
            )
        )
    return rows


def mean_rows(groups: Groups, metric: str | None) -> list[Row]:
    """What every recipe reached at every scale; without a metric, in the default one of each."""
    rows = []
    for label, records in groups.items():
        name = metric or default_metric(records)
        rows += [{"recipe": label, "metric": name} | at._asdict() for at in scale_means(records, name)]
    return rows


# -- interpolation: tau_interp as censored data, never dropped --------------------------------------------


class Interpolation(NamedTuple):
    """The median interpolation epoch over runs. None: not reached by half of them."""

    median: float | None
    low: float | None  # 95% limits; None: beyond the horizon
    high: float | None
    n: int
    n_censored: int


def median_interpolation(records: Sequence[RunRecord], level: float = 0.95) -> Interpolation:
    """The median of tau_interp; a run that never interpolated counts as later than its last epoch.

    Kaplan and Meier's estimate of the share that has not interpolated yet, with log(-log) limits by
    Greenwood's formula.
    """
    from scipy.stats import CensoredData, ecdf

    chosen = [r for r in plain(records) if r.status != "crashed" and r.summary.epochs > 0]
    reached = [float(r.summary.tau_interp) for r in chosen if r.summary.tau_interp is not None]
    never = [float(r.summary.epochs) for r in chosen if r.summary.tau_interp is None]
    if not reached:
        return Interpolation(None, None, None, len(chosen), len(never))
    estimate = ecdf(CensoredData(uncensored=reached, right=never)).sf
    with warnings.catch_warnings():
        # Where every run has interpolated, or none has, the formula has no value; the share itself stands in.
        warnings.filterwarnings("ignore", "The confidence interval is undefined", RuntimeWarning)
        band = estimate.confidence_interval(level, method="log-log")
    share = estimate.probabilities

    def first_half(limit: Array) -> float | None:
        below = np.flatnonzero(np.where(np.isfinite(limit), limit, share) <= 0.5)
        return float(estimate.quantiles[below[0]]) if len(below) else None

    low, high = first_half(band.low.probabilities), first_half(band.high.probabilities)
    return Interpolation(first_half(share), low, high, len(chosen), len(never))


def _interpolation_rows(groups: Groups, metric: str | None) -> list[Row]:
    return [key | median_interpolation(records)._asdict() for key, records in each_scale(groups)]


def _repair_rows(groups: Groups, metric: str | None) -> list[Row]:
    rows = []
    for key, records in each_scale(groups):
        gaps = [100 * r.summary.repair_gap for r in records if r.summary.repair_gap is not None]
        values: Row = {
            "repair_gap_pp": float(np.mean(gaps)) if gaps else None,
            "standard_error": float(np.std(gaps, ddof=1) / np.sqrt(len(gaps))) if len(gaps) > 1 else None,
            "n": len(gaps),
            "n_never_interpolated": len(records) - len(gaps),
        }
        rows.append(key | values)
    return rows


# -- untrained runs: diverged, or with a selected model no better than chance -----------------------------
#
# Means over seeds hardly show it when one run in five fails at one scale: the rate is tested on its own.


class FailureRate(NamedTuple):
    """Untrained runs at one scale, with Clopper and Pearson's 95% interval of the rate."""

    scale: Level
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
    chance: float | None  # accuracies up to this one count as chance; None: not known
    memorized: int = 0  # of the untrained: fitted their training examples, but are at chance on others

    @property
    def equal(self) -> bool:
        """Whether rates are equal as far as one can tell: no run is untrained, or they differ little."""
        dependent = self.p is not None and self.p <= ALPHA
        return self.untrained == 0 or (not dependent and self.largest_difference <= EQUAL_RATES)

    def __str__(self) -> str:
        are = "is" if self.untrained == 1 else "are"
        why = "at chance or diverged" if self.chance else "no better than in the first epoch, or diverged"
        counts = f"{self.untrained} of {self.n} runs {are} untrained ({why})"
        if self.memorized:
            counts += f"; {self.memorized} of them memorized the training examples"
        if self.p is None:
            return counts
        if self.p <= ALPHA:
            return f"{counts}, at rates that depend on the scale (p = {self.p:.2g})"
        return f"{counts}; rates that differ between scales cannot be excluded (p = {self.p:.2g})"


def failures(records: Sequence[RunRecord]) -> Failures:
    """Count the untrained runs of one recipe by scale; crashed runs do not count."""
    trained = [record for record in plain(records) if record.status != "crashed"]
    limit = next((limit for limit in map(chance_limit, trained) if limit is not None), None)
    lost = [r for r in trained if r.status == "diverged" or is_at_chance(r, limit)]
    totals = Counter(record.run.level for record in trained)
    counts = Counter(record.run.level for record in lost)
    ordered = sorted(totals.items(), key=lambda item: level_order(item[0]))
    rates = [FailureRate(x, counts[x], n, *rate_limits(counts[x], n)) for x, n in ordered]
    untrained, n = [rate.untrained for rate in rates], [rate.n for rate in rates]
    fits = [record.summary.train_accuracy_last for record in lost if record.status != "diverged"]
    return Failures(
        rates=rates,
        untrained=sum(untrained),
        at_chance=sum(is_at_chance(record, limit) for record in trained),
        n=sum(n),
        p=equal_rates_p(untrained, n) if 0 < sum(untrained) < sum(n) else None,
        # Without a run no difference is excluded.
        largest_difference=max(r.high for r in rates) - min(r.low for r in rates) if rates else 1.0,
        chance=limit,
        memorized=sum(fit is not None and fit >= MEMORIZED for fit in fits),
    )


def is_at_chance(record: RunRecord, limit: float | None) -> bool:
    """Whether the accuracy of a run is at chance, or it diverged before any model was selected.

    Where chance is not known, a selected epoch that is no better than the first one counts as chance.
    """
    accuracy = record.summary.test_accuracy
    if accuracy is None:
        accuracy = record.summary.val_accuracy_best
    if limit is not None and accuracy is not None:
        return accuracy <= limit or _is_constant(record)
    if accuracy is None and record.status == "diverged":
        return True
    gains = [gain(record, name) for name in _judged_columns(record)]
    return bool(gains) and max(gains) <= 0


def chance_limit(record: RunRecord) -> float | None:
    """The largest accuracy that counts as chance; None: not known. No dataset is opened.

    The number of classes was recorded with the run, user code declared it, or the name of the dataset tells.
    """
    recipe, about = record.run.recipe, record.provenance
    classes, n_test = about.get("classes"), about.get("n_test")
    if isinstance(recipe, Recipe) and classes is None:
        try:
            data = sizes_by_name(recipe)
        except (ConfigError, DataError):
            data = None
        classes, n_test = (data.classes, data.n_test) if data else (None, None)
    elif not isinstance(recipe, Recipe):
        classes = recipe.get("classes") or classes
    if not isinstance(classes, int) or classes < 2:
        return None
    chance = 1 / classes
    noise = 2 * math.sqrt(chance * (1 - chance) / n_test) if n_test else 0.0
    return chance + max(NEAR_CHANCE * (1 - chance), noise)


def gain(record: RunRecord, column: str) -> float:
    """How much better than the first epoch a metric is: at the selected epoch, or at best while training.

    Where it is not known which direction is better, the size of the change counts.
    """
    values, shown = record.history[column], metric_of(column)
    changes = shown.factor * (values - values[0])
    changes = np.abs(changes) if shown.better is None else changes if shown.better == "higher" else -changes
    if column.startswith("train_"):
        return float(np.nanmax(changes))
    return float(changes[(record.summary.tau_best or 1) - 1])


def unclear_scales(
    records: Sequence[RunRecord], metric: str, failed: Failures, tolerance: float | None
) -> tuple[Level, ...]:
    """The scales at which nothing shows that anything was learned: their runs may all be at chance.

    The mean of the metric did not improve on its first epoch by more than the tolerance, and chance is not
    known. Only `forgets` depends on it, which requires a tolerance.
    """
    shown = metric_of(metric)
    has_accuracy = any(r.metric("test_accuracy") or r.metric("val_accuracy_best") for r in records)
    if tolerance is None or not shown.held_out or (failed.chance is not None and has_accuracy):
        return ()
    least = min(tolerance, TOLERANCE_PP) if shown.unit == "pp" else tolerance
    kind = metric.removeprefix("test_").removeprefix("val_").removesuffix("_best")
    names = dict.fromkeys([metric, *(f"{part}_{kind}" for part in ("test", "val", "train"))])
    unclear = []
    for scale, at in by_level(
        [r for r in plain(records) if r.status != "crashed" and r.summary.epochs]
    ).items():
        shared = [name for name in names if all(name in record.history for record in at)]
        gains = [float(np.mean([gain(record, name) for record in at])) for name in shared]
        if max(gains, default=0.0) <= least:
            unclear.append(scale)
    return tuple(unclear)


def why_inapplicable(records: Sequence[RunRecord]) -> str:
    """Why there is no memory of the scale to measure in user code; empty: there is.

    The code never asked for the scale, or weights that `init.apply` had drawn have the same norm at all
    scales when training begins.
    """
    trained = [record for record in records if record.status != "crashed"]
    if trained and not any(record.provenance.get("scale_used", True) for record in trained):
        return NEVER_USED
    norms: dict[int, list[float]] = {}
    for record in of_scales(plain(trained)):
        applied, norm = record.provenance.get("applied", False), record.summary.norm_init
        norms.setdefault(record.run.seed, []).append(math.nan if norm is None or not applied else norm)
    # A norm that is not known is NaN, and never the same as another.
    same = [len(row) > 1 and bool(np.ptp(row) <= 1e-6 * np.max(row)) for row in norms.values()]
    return NO_EFFECT if same and all(same) else ""


def _judged_columns(record: RunRecord) -> list[str]:
    """What tells whether a run learned anything: accuracies, else losses, else any metric of user code.

    None where there is a single epoch, or where the first epoch is perfect.
    """
    if record.summary.epochs < 2:
        return []
    names = [name for name in record.history if not name.startswith(DERIVED)]
    accuracies = [name for name in names if metric_of(name).is_percentage]
    if any(record.history[name][0] >= 1 for name in accuracies):
        return []
    return accuracies or [name for name in names if name.endswith(LOSSES)] or names


def _is_constant(record: RunRecord) -> bool:
    """Whether no metric of a run of user code ever changed."""
    columns = [] if isinstance(record.run.recipe, Recipe) else _judged_columns(record)
    return bool(columns) and all(np.ptp(record.history[name]) == 0 for name in columns)


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


def _failure_rows(groups: Groups, metric: str | None) -> list[Row]:
    """Untrained runs, scale by scale; p is the recipe's."""
    rows: list[Row] = []
    for label, records in groups.items():
        counted = failures(records)
        shared = {"p": counted.p, "counts_as_chance": counted.chance}
        rows += [{"recipe": label} | rate._asdict() | shared for rate in counted.rates]
    return rows


MEASURES = {
    "scale": Measure(
        "What every scale reached",
        mean_rows,
        {
            "recipe": RECIPE,
            "metric": Column("metric", "text", "accuracies in percent", priority=2),
            "scale": SCALE,
            "mean": number("mean", "over seeds", ".4g"),
            "deviation": number("s.d.", "standard deviation over seeds", ".2g"),
            "n": number("n", "number of runs"),
            "n_crashed": number("crashed", "runs that crashed", priority=1),
        },
    ),
    "interpolation": Measure(
        "Interpolation epoch: when train accuracy reaches 99.5%",
        _interpolation_rows,
        {
            "recipe": RECIPE,
            "scale": SCALE,
            "median": number("median", "median epoch; empty: half of the runs never got there", ".4g"),
            "low": number("low", "lower 95% limit", ".4g"),
            "high": number("high", "upper 95% limit; empty: beyond the last epoch", ".4g"),
            "n": number("runs", "number of runs"),
            "n_censored": number("never", "runs that never interpolated"),
        },
    ),
    "repair": Measure(
        "Repair gap: accuracy gained after interpolation",
        _repair_rows,
        {
            "recipe": RECIPE,
            "scale": SCALE,
            "repair_gap_pp": number("gap", "selected minus at interpolation", ".2f", unit="pp"),
            "standard_error": number("s.e.", "standard error of the gap", ".2f"),
            "n": number("runs", "number of runs that interpolated"),
            "n_never_interpolated": number("never", "runs that never interpolated"),
        },
    ),
    "failures": Measure(
        "Untrained runs: at chance, or diverged",
        _failure_rows,
        {
            "recipe": RECIPE,
            "scale": SCALE,
            "untrained": number("untrained", "runs at chance, or diverged"),
            "n": number("n", "number of runs"),
            ("low", "high"): number("95% interval", "of the rate (Clopper-Pearson)", ".2f"),
            "p": number("p", "of a rate that does not depend on the scale", ".2g"),
            "counts_as_chance": number("chance", "accuracy that counts as chance", ".3g", priority=4),
        },
    ),
}
