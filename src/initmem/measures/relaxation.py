"""Relaxation: how fast the difference to the untouched run of the same seed goes away after an intervention.

At every epoch after the intervention, the run is compared with the run `none` of the same seed, which was the
same until then: the logarithm of the ratio of their kernel norms, and the difference of a metric. The model
is an exponential, start * exp(-rate * t), fitted by least squares to the mean over seeds, with t in epochs or
on the clock of the recipe's family. Rate and start have Student's limits from a jackknife over seeds. A rate
that is not significantly positive is an answer as well: the half-life has no upper limit. Half-lives beyond
the last epoch are not extrapolated.

Next to the half-life of a norm stands the one of weights that nothing but their decay acts on: they shrink as
exp(-2 T) on the L2 clock, under SGD with L2 to one half in ln 2 / (2 eta l2 updates) epochs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from initmem.clocks import CLOCKS, effective_clocks, shrinks_by_clock
from initmem.errors import ConfigError, allowed
from initmem.intervention import NONE, Intervention, Level, level_order
from initmem.measures.design import Groups, Measure, Row, curve_metrics, own_clock, plain, preferred
from initmem.measures.fit import has_moving_averages
from initmem.measures.statistics import Array, jackknife
from initmem.metric import metric_of
from initmem.record import RunRecord
from initmem.table import Column, number

FEWEST_EPOCHS = 3  # an exponential has two parameters
RATES = np.concatenate([-np.geomspace(3.0, 0.01, 30), [0.0], np.geomspace(0.01, 300.0, 150)])  # per last time
WELL_FITTED = 0.8  # of the variance over time
NORM = "norm"


class Relaxation(NamedTuple):
    """The decay of one difference on one axis of time. None: not known, or beyond all limits."""

    unit: str  # "epochs" or a clock
    start: float  # the difference right after the intervention
    start_low: float | None
    start_high: float | None
    rate: float  # per unit of time; negative: the difference grows
    rate_low: float | None
    rate_high: float | None
    explained: float  # share of the variance over time that the exponential explains
    left: float | None  # share of the start in the last epoch; None: there was no difference to begin with
    span: float  # time from the intervention to the last epoch
    n_seeds: int
    predicted: float | None = None  # the half-life of weights under their decay alone

    @property
    def has_effect(self) -> bool:
        """Whether there was a difference to begin with."""
        low, high = self.start_low, self.start_high
        return low is None or high is None or not low <= 0 <= high

    @property
    def half_life(self) -> tuple[float | None, float | None, float | None]:
        """The time to half of the start with its limits; None: not known, or beyond the last epoch.

        What is beyond the last epoch was not observed: an exponential that fits before need not fit there.
        """
        if not self.has_effect:
            return None, None, None
        value, high, low = (self._half(rate) for rate in (self.rate, self.rate_low, self.rate_high))
        return value, self.span if low is None and self.rate_high is not None else low, high

    def _half(self, rate: float | None) -> float | None:
        half = math.log(2) / rate if rate is not None and rate > 0 else math.inf
        return half if half <= self.span else None


def relaxation(differences: Array, time: Array, unit: str = "epochs") -> Relaxation:
    """Fit an exponential to differences of shape (seed, epoch) at times since the intervention, (epoch,)."""
    n = len(differences)
    mean = differences.mean(axis=0)

    @cache
    def fitted(*seeds: int) -> tuple[float, float, float]:
        return exponential(differences[list(seeds)].mean(axis=0), time)

    rate, start, explained = fitted(*range(n))
    _, rate_low, rate_high = jackknife(lambda seeds: fitted(*seeds.tolist())[0], n)
    _, low, high = jackknife(lambda seeds: fitted(*seeds.tolist())[1], n)
    span = float(time[-1])
    fit = Relaxation(unit, start, low, high, rate, rate_low, rate_high, explained, None, span, n)
    return fit._replace(left=float(mean[-1] / start) if fit.has_effect and start else None)


def exponential(values: Array, time: Array) -> tuple[float, float, float]:
    """Rate and start of the least-squares exponential, and the share of the variance that it explains.

    For a given rate the best start is known, so that only the rate is searched: on a grid, then around its
    best point.
    """
    from scipy.optimize import minimize_scalar

    rates = RATES / time[-1]

    def left_over(rate: float) -> float:
        basis = np.exp(-rate * time)
        return float(((values - (basis @ values) / (basis @ basis) * basis) ** 2).sum())

    best = int(np.argmin([left_over(rate) for rate in rates]))
    around = rates[max(best - 1, 0)], rates[min(best + 1, len(rates) - 1)]
    options = {"xatol": 1e-6 * (around[1] - around[0])}
    rate = float(minimize_scalar(left_over, bounds=around, method="bounded", options=options).x)
    basis = np.exp(-rate * time)
    total = float(((values - values.mean()) ** 2).sum())
    explained = 1 - left_over(rate) / total if total else 0.0
    return rate, float((basis @ values) / (basis @ basis)), explained


def differences(
    records: Sequence[RunRecord], level: Level, column: str
) -> tuple[Array, list[tuple[RunRecord, RunRecord]]]:
    """Differences to the untouched runs after an intervention, (seed, epoch), and the pairs of runs.

    Of norms the difference is that of their logarithms. The last epoch is that of the shortest run.
    """
    runs = {(r.run.seed, r.run.level): r for r in plain(records) if column in r.history}
    touched = {seed: run for (seed, one), run in runs.items() if one == level}
    untouched = {seed: runs.get((seed, NONE)) or runs.get((seed, 1.0)) for seed in touched}
    pairs = [(run, partner) for seed, run in touched.items() if (partner := untouched[seed])]
    start = Intervention.parse(str(level)).epoch
    end = min((len(run.history[column]) for pair in pairs for run in pair), default=0)
    shown = np.log if column == NORM else lambda values: metric_of(column).factor * values
    rows = [[shown(run.history[column][start:end]) for run in pair] for pair in pairs]
    values = [own - partner for own, partner in rows]
    return np.array(values).reshape(len(pairs), max(end - start, 0)), pairs


def relaxations(records: Sequence[RunRecord], level: Level, column: str) -> list[Relaxation]:
    """The relaxation of one difference in epochs, and on the clock of the recipe's family if it moves."""
    values, pairs = differences(records, level, column)
    usable = [i for i, row in enumerate(values) if np.isfinite(row).all()]
    values, pairs = values[usable], [pairs[i] for i in usable]
    if not len(values) or values.shape[1] < FEWEST_EPOCHS:
        return []
    start = Intervention.parse(str(level)).epoch
    axes = {"epochs": np.arange(1.0, values.shape[1] + 1)}
    clock = own_clock(pairs[0])
    ticks = pairs[0][0].history.get(f"clock_{clock}")
    if clock is not None and ticks is not None:
        axes[clock] = ticks[start : start + values.shape[1]] - ticks[start - 1]
    decay = decay_ticks(pairs[0][0])[start - 1 : start + values.shape[1]] if column == NORM else np.array([])
    return [
        relaxation(values, time, unit)._replace(predicted=decay_half_life(decay, time))
        for unit, time in axes.items()
        if (np.diff(time) > 0).all()
    ]


def decay_ticks(record: RunRecord) -> Array:
    """The L2 clock on which weights shrink as exp(-2 T), (epoch,); empty: they have no such decay."""
    ticks = {name: record.history.get(f"clock_{name}") for name in CLOCKS}
    if not shrinks_by_clock(record.run.recipe) or ticks["l2"] is None or not ticks["l2"][-1]:
        return np.array([])
    last = {name: float(column[-1]) for name, column in ticks.items() if column is not None}
    return ticks["l2"] * effective_clocks(record.run.recipe, last).get("l2", last["l2"]) / last["l2"]


def decay_half_life(ticks: Array, time: Array) -> float | None:
    """When exp(-2 T) is one half: `ticks` from the intervention on; None: not before the last epoch."""
    passed = 2 * (ticks[1:] - ticks[:1])
    if not len(passed) or passed[-1] < math.log(2):
        return None
    return float(np.interp(math.log(2), [0.0, *passed], [0.0, *time]))


# -- table ------------------------------------------------------------------------------------------------


def _rows(groups: Groups, metric: str | None) -> list[Row]:
    columns = {name for records in groups.values() for record in records for name in record.history}
    if metric is not None and metric not in columns:
        raise ConfigError(f"metric = {metric!r}: not recorded epoch by epoch ({allowed(preferred(columns))})")
    rows = []
    for label, records in groups.items():
        levels = {r.run.level for r in records if Intervention.parse(r.run.intervention).epoch}
        for level in sorted(levels, key=level_order):
            for column in dict.fromkeys([NORM, *([metric] if metric else curve_metrics(records)[:1])]):
                fits = relaxations(records, level, column)
                rows += [_row(label, level, column, records, one) for one in fits]
    return rows


def _row(label: str, level: Level, column: str, records: Sequence[RunRecord], one: Relaxation) -> Row:
    value, low, high = one.half_life
    notes = []
    if not one.has_effect:
        notes.append("no significant difference to begin with")
    elif one.rate_low is not None and one.rate_low <= 0:
        notes.append("no significant relaxation")
    elif value is None:
        notes.append("more than half is left at the end")
    if one.has_effect and one.explained < WELL_FITTED:
        notes.append(f"not exponential ({100 * max(one.explained, 0):.0f}% explained)")
    if column != NORM and has_moving_averages(records[0].run.recipe):
        notes.append("moving averages of batch norm lag behind")
    quantity = "log norm ratio" if column == NORM else column
    cells: Row = {"recipe": label, "intervention": level, "quantity": quantity}
    cells |= {"half_life": value, "low": low, "high": high}
    return cells | one._asdict() | {"note": "; ".join(notes)}


MEASURES = {
    "relaxation": Measure(
        "Relaxation after an intervention: the difference to the untouched run of the same seed",
        _rows,
        {
            "intervention": Column("intervention", "text", "what was done, and after which epoch"),
            "quantity": Column("quantity", "text", "whose difference relaxes; accuracies in points"),
            "start": number("start", "the difference right after the intervention, from the fit", ".3g"),
            ("start_low", "start_high"): number("start: 95% interval", "of this", ".3g", priority=8),
            "half_life": number("half-life", "time to half; empty: beyond the last epoch", ".3g"),
            "low": number("low", "lower 95% limit, over seeds", ".3g"),
            "high": number("high", "upper 95% limit; empty: beyond the last epoch", ".3g"),
            "predicted": number("predicted", "half-life under the decay of weights alone", ".3g", priority=5),
            "unit": Column("unit", "text", "of time: epochs, or the clock of the recipe's family"),
            "rate": number("rate", "ln 2 over the half-life", ".3g", priority=9),
            "explained": number("explained", "share of the variance over time", ".2f", priority=6),
            "left": number("left", "share of the start that is left in the last epoch", ".2f", priority=4),
            "note": Column("note", "text", "where the half-life is not to be trusted", priority=2),
        },
        together=True,
    )
}
