"""Fit next to memory: is a difference in test accuracy a difference in how well the data were fitted?

A range of test accuracy over scales has two possible sources. Networks may fit the training data equally well
and generalize differently, or some of them may simply not have fitted the data yet. Three quantities tell the
two apart, all from the histories of the runs:

- the train accuracy of the selected model at every scale, and the exact split of the change in test accuracy
  from the smallest to the largest scale, d(test) = d(train) - d(gap) with gap = train - test;
- memory at matched fit: the range over scales of validation accuracy when each run first reaches a common
  level of train accuracy, the highest that all of them reach; and the same for train loss;
- time to fit: how many times as long the slowest scale takes to reach that level as the fastest.

Crossings are interpolated between epochs. A train accuracy that is averaged while the network trains belongs
to the middle of its epoch. Validation with moving averages of batch norm that still contain their starting
values (`cold_epochs`) is not used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from initmem.catalog import is_schedule_free
from initmem.clocks import epoch_rates
from initmem.errors import count
from initmem.intervention import Level, level_text
from initmem.measures.design import Profile, complete, levels_of, plain, profile
from initmem.measures.statistics import ALPHA, Array, Limits, Spread, mean_limits, spread
from initmem.metric import UNCLEAR, metric_of
from initmem.recipe import AnyRecipe, Recipe
from initmem.record import RunRecord

ACCURACY_LEVELS = (0.995, 0.99, *(round(0.05 * i, 2) for i in range(19, 1, -1)))  # the highest first
TRAIN_LOSSES = ("train_cross_entropy", "train_loss")
HELD_OUT = ("val_accuracy", "val_cross_entropy", "val_loss", "test_accuracy", "test_loss")  # over epochs
FITTED, LATE = 0.95, 0.2  # a rise of validation accuracy by LATE after train accuracy FITTED: grokking
MOVING_AVERAGE = 0.99  # of batch norm in Keras 3
STARTING_SHARE = 0.02  # of a moving variance: more than this left of its starting value is cold
MOST_UPDATES = 1e6  # of an epoch that matter: after so many, no starting value is left


Mode = Literal["generalization", "trainability", "fit unknown"]


class Matched(NamedTuple):
    """The range over scales of a validation metric when each run first reaches a common level of fit."""

    by: str  # the train metric
    level: float
    metric: str  # the validation metric
    memory: float
    low: float | None
    high: float | None
    p: float | None
    scales: tuple[Level, ...]  # that were compared
    means: tuple[float, ...]  # of the validation metric at these scales
    n_seeds: int
    early: int  # runs that reached the level before their first validation: theirs is that of epoch 1

    def agrees(self, better: Level, worse: Level) -> bool:
        """Whether the validation metric is better at one scale than at another.

        A scale that was not compared is replaced by the nearest one that was; interventions have none.
        """
        first, second = self._mean_at(better), self._mean_at(worse)
        if first is None or second is None:
            return True
        return first > second if metric_of(self.metric).better == "higher" else first < second

    def _mean_at(self, level: Level) -> float | None:
        means = dict(zip(self.scales, self.means, strict=True))
        numbers = [one for one in means if not isinstance(one, str)]
        if level in means or isinstance(level, str) or not numbers:
            return means.get(level)
        return means[min(numbers, key=lambda one: abs(one - level))]


class TimeToFit(NamedTuple):
    """Epochs until the level is reached: the slowest scale over the fastest, geometric means over seeds."""

    level: float
    ratio: float
    low: float | None  # 95% interval
    high: float | None
    p: float | None
    epochs: tuple[float, ...]  # by scale


class Fit(NamedTuple):
    """How well the selected models fit the training data at every scale, and the memory at equal fit."""

    metric: str  # the train metric
    unit: str
    scales: tuple[Level, ...]
    train: tuple[float, ...]  # mean over seeds at every scale
    last: tuple[float, ...]  # the same in the last epoch; empty if it was not recorded
    range: Spread[float | None]
    test_change: Limits | None  # None: the metric and the train metric are of different kinds
    train_change: Limits | None  # None: interventions have no smallest and no largest
    gap_change: Limits | None
    matched: Matched | str  # else the reason why there is none
    matched_by_loss: Matched | str
    time: TimeToFit | None
    late: bool  # validation accuracy rose long after the data were fitted: equal fit in the last epoch counts

    def is_equal(self, tolerance: float | None) -> bool:
        """Whether the scales are fitted equally well, within the tolerance; None: no difference is."""
        values = self.last if self.late and self.last else self.train
        return tolerance is not None and max(values) - min(values) <= tolerance

    @property
    def matched_p(self) -> float | None:
        """Of no memory at matched fit."""
        return self.matched.p if isinstance(self.matched, Matched) else None

    def mode(self, better: Level, worse: Level, *, equal: bool, p: float | None) -> Mode:
        """What kind of memory it is if a metric is better at one scale than at another.

        `p` is the p-value of no memory at matched fit, adjusted for the recipes that are judged together.
        """
        if equal:
            return "generalization"
        if isinstance(self.matched, str) or p is None:
            return "fit unknown"
        return "generalization" if p <= ALPHA and self.matched.agrees(better, worse) else "trainability"

    def span(self, form: str) -> str:
        """The lowest and the highest mean train metric over scales."""
        ends = dict.fromkeys(format(end, form) for end in (min(self.train), max(self.train)))
        return " to ".join(ends) + ("%" if self.unit == "pp" else "")

    def __str__(self) -> str:
        return f"{self.metric.replace('_', ' ')} {self.span('.3g')}"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        parts = (Limits, Matched, Spread, TimeToFit)
        row = {k: v._asdict() if isinstance(v, parts) else v for k, v in self._asdict().items()}
        for name in ("matched", "matched_by_loss"):
            row[name] = {"missing": row[name]} if isinstance(row[name], str) else row[name]
        return row


class _Crossings(NamedTuple):
    """When the runs first reach the best level of a train metric that all of them reach."""

    by: str
    level: float
    scales: list[Level]
    runs: list[list[RunRecord]]  # (seed, scale), of the seeds with a run at every scale
    times: Array  # in epochs, (seed, scale)

    def have(self, column: str) -> bool:
        """Whether all runs recorded a column."""
        return all(column in run.history for row in self.runs for run in row)

    def at(self, column: str) -> Array:
        """A validation metric when the level is reached, (seed, scale); NaN where it cannot be used."""
        rows = zip(self.runs, self.times.tolist(), strict=True)
        return np.array([[_at(run, column, t) for run, t in zip(*row, strict=True)] for row in rows])


def fit(records: Sequence[RunRecord], metric: str = "test_accuracy") -> Fit | None:
    """The fit of one recipe next to the memory of `metric`; None where no train metric was recorded."""
    name = train_metric(records, metric)
    if name is None:
        return None
    train = profile(records, name)
    if not train.seeds or len(train.scales) < 2:
        return None
    unit = metric_of(name).unit
    train_change: Limits | None
    train_change, test_change, gap_change = _change(train.values), None, None
    if any(isinstance(level, str) for level in train.scales):
        train_change = None
    elif metric_of(metric).unit == unit and (unit or name == _counterpart(metric)):
        train_change, test_change, gap_change = _split(train, profile(records, metric))
    crossings = _crossings(records, "train_accuracy" if unit == "pp" else name)
    losses = [_matched(_crossings(records, column)) for column in TRAIN_LOSSES]
    return Fit(
        metric=name,
        unit=unit,
        scales=train.scales,
        train=tuple(train.values.mean(axis=0).tolist()),
        last=_in_last_epoch(train, records, name),
        range=spread(train.values, bound=metric_of(name).widest),
        test_change=test_change,
        train_change=train_change,
        gap_change=gap_change,
        matched=_matched(crossings),
        matched_by_loss=next((loss for loss in losses if isinstance(loss, Matched)), losses[0]),
        time=None if isinstance(crossings, str) else _time_to_fit(crossings),
        late=not isinstance(crossings, str) and _rises_late(crossings),
    )


def train_metric(records: Sequence[RunRecord], metric: str) -> str | None:
    """The train metric to set next to a test metric: its counterpart if there is one, else any."""
    names = (_counterpart(metric), "train_accuracy", *TRAIN_LOSSES)
    directed = [name for name in names if metric_of(name).better]
    return next((name for name in directed if any(r.metric(name) is not None for r in records)), None)


def _counterpart(metric: str) -> str:
    return "train_" + metric.removeprefix("test_").removeprefix("val_").removesuffix("_best")


def _crossings(records: Sequence[RunRecord], by: str) -> _Crossings | str:
    """When each run first reaches the common level; else why there is none."""
    runs = [record for record in plain(records) if record.status == "completed"]
    if not runs or not all(by in record.history for record in runs):
        return f"no {by} was recorded epoch by epoch"
    if not (grid := complete(runs)):
        return "no seed has all scales"
    sign = 1.0 if metric_of(by).better == "higher" else -1.0
    reached = min(float((sign * r.history[by]).max()) for row in grid for r in row)
    if by == "train_accuracy":
        level = next((level for level in ACCURACY_LEVELS if level <= reached), None)
    else:
        level = -sign * _rounded_up(-reached)
    if level is None:
        return f"the runs reach no common level of {by}"
    times = np.array([[_first_crossing(r, by, level, sign) for r in row] for row in grid])
    return _Crossings(by, level, levels_of(runs), grid, times)


def _rounded_up(loss: float) -> float:
    """The next number of two significant digits; what is zero or less has none below its own value."""
    if loss <= 0:
        return loss
    unit = 10.0 ** (math.floor(math.log10(loss)) - 1)
    return float(f"{math.ceil(loss / unit - 1e-9) * unit:.2g}")


def _matched(crossings: _Crossings | str) -> Matched | str:
    """The range of the validation metric at the crossings; else why there is none."""
    if isinstance(crossings, str):
        return crossings
    metric = next(filter(crossings.have, HELD_OUT), None)
    if metric is None:
        return "no validation metric was recorded epoch by epoch"
    values = crossings.at(metric)
    usable = np.asarray(np.isfinite(values).all(axis=0))  # (scale,)
    if usable.sum() < 2:
        at = f"{100 * crossings.level:g}%" if crossings.by == "train_accuracy" else f"{crossings.level:g}"
        return f"{crossings.by} {at}, the common level, is reached before validation can be used"
    shown = metric_of(metric)
    values = shown.factor * values[:, usable]
    ranges, means = spread(values, bound=shown.widest), values.mean(axis=0)
    return Matched(
        by=crossings.by,
        level=crossings.level,
        metric=metric,
        memory=float(np.ptp(means)),
        low=ranges.low,
        high=ranges.high,
        p=ranges.p,
        scales=tuple(level for level, used in zip(crossings.scales, usable.tolist(), strict=True) if used),
        means=tuple(means.tolist()),
        n_seeds=len(values),
        early=int((crossings.times[:, usable] < 1).sum()),
    )


def fit_notes(records: Sequence[RunRecord], metric: str, fit: Fit | None, *, equal: bool) -> list[str]:
    """What is known about the fit, where that is not simply equal."""
    if fit is None:
        own = _counterpart(metric)
        if metric_of(own).better is None and any(record.metric(own) is not None for record in records):
            return [UNCLEAR.format(own)]
        return [
            "no train metric was recorded, so memory cannot be told from undertraining "
            "(record train_accuracy or train_loss in every epoch)"
        ]
    match = fit.matched
    if isinstance(match, str):
        return [] if equal else [f"no memory at matched fit: {match}"]
    notes = []
    if match.early:
        runs = count(match.early, "run")
        notes.append(f"{runs} reached the level of matched fit before the first validation")
    if len(match.scales) < len(fit.scales) and not equal:
        compared = ", ".join(map(level_text, match.scales))
        notes.append(
            f"matched fit compares the scales {compared}: the others reached it too early to be validated"
        )
    return notes


def cold_epochs(record: RunRecord) -> int:
    """How many epochs a run was validated with moving averages that still contain their starting values.

    The moving variance starts at 1, and after k updates that value has the weight 0.99^k. The variance that
    it should show is about the square of the scale. An epoch is cold while the rest of the starting value is
    more than 2% of that.
    """
    recipe = record.run.recipe
    if not isinstance(recipe, Recipe) or not has_moving_averages(recipe):
        return 0
    needed = math.log(STARTING_SHARE * min(1.0, record.run.scale) ** 2) / math.log(MOVING_AVERAGE)
    return math.ceil(needed / _updates_per_epoch(record, recipe)) - 1


def has_moving_averages(recipe: AnyRecipe) -> bool:
    """Whether batch norm is evaluated with moving averages."""
    return (
        isinstance(recipe, Recipe)
        and not recipe.is_module
        and recipe.norm == "batch"
        and recipe.batch_statistics == "moving"
        and not is_schedule_free(recipe.optimizer)  # theirs are always re-estimated
    )


def cold_until(records: Sequence[RunRecord]) -> int:
    """The last epoch that is cold at some scale; 0: none is."""
    return max((cold_epochs(record) for record in plain(records)), default=0)


def cold_remarks(records: Sequence[RunRecord]) -> list[str]:
    """The epochs that measures over time leave out, if any."""
    last = cold_until(records)
    why = "the moving averages of batch norm still contained their starting values"
    how = 'batch_statistics = "re-estimated" avoids that'
    return [f"epochs 1 to {last} are left out: {why} ({how})"] if last else []


def _updates_per_epoch(record: RunRecord, recipe: Recipe) -> float:
    """From the sum of learning rates over the first epoch, so that the dataset need not be here."""
    clock = record.history.get("clock_adaptive")
    if clock is None or not len(clock):
        return 1.0
    total = float(clock[0])
    count = min(max(1.0, total / recipe.learning_rate), MOST_UPDATES)
    for _ in range(20):  # the mean rate of the first epoch depends a little on its number of updates
        rates = epoch_rates(recipe, round(count) * recipe.batch_size, 1)
        count = min(max(1.0, total / float(rates.mean())), MOST_UPDATES)
    return count


def _split(train: Profile, test: Profile) -> tuple[Limits, Limits | None, Limits | None]:
    """The changes of the train metric, the test metric and their gap, over the seeds that have both."""
    seeds = [seed for seed in train.seeds if seed in test.seeds]
    if not seeds or train.scales != test.scales:
        return _change(train.values), None, None
    fitted, tested = (side.values[[side.seeds.index(seed) for seed in seeds]] for side in (train, test))
    return _change(fitted), _change(tested), _change(fitted - tested)


def _change(values: Array) -> Limits:
    """The mean change from the smallest to the largest scale, of values (seed, scale), paired over seeds."""
    return mean_limits(values[:, -1] - values[:, 0])


def _positions(record: RunRecord) -> Array:
    """When the values of a train metric were taken, in epochs; shape (epoch,)."""
    recipe = record.run.recipe
    end = isinstance(recipe, Recipe) and recipe.train_eval
    return np.arange(1.0, record.summary.epochs + 1) - (0.0 if end else 0.5)


def _first_crossing(record: RunRecord, by: str, level: float, sign: float) -> float:
    """When a run first reaches a level, in epochs; 0: before the first measurement."""
    column, positions = sign * record.history[by], _positions(record)
    first = int((column >= sign * level).argmax())
    if first == 0:
        return 0.0
    around = slice(first - 1, first + 1)
    return float(np.interp(sign * level, column[around], positions[around]))


def _at(record: RunRecord, name: str, time: float) -> float:
    """A validation metric at some time; NaN: not known, or it would rest on a cold epoch.

    It is measured at the ends of epochs, so that before the first end it is that of the first epoch.
    """
    column = record.history[name]
    if time == 0.0 or max(math.floor(time), 1) <= cold_epochs(record):
        return math.nan
    return float(np.interp(time, np.arange(1.0, len(column) + 1), column))


def _time_to_fit(crossings: _Crossings) -> TimeToFit:
    """A crossing before the first measurement counts as one at that time."""
    first = np.array([[_positions(run)[0] for run in row] for row in crossings.runs])
    logs = np.log(np.maximum(crossings.times, first))
    ranges = spread(logs)
    low, high = (None if end is None else math.exp(end) for end in (ranges.low, ranges.high))
    means = np.exp(logs.mean(axis=0))
    return TimeToFit(
        crossings.level, float(means.max() / means.min()), low, high, ranges.p, tuple(means.tolist())
    )


def _rises_late(crossings: _Crossings) -> bool:
    """Whether validation accuracy rose by far after the data had been fitted, as in grokking."""
    if crossings.by != "train_accuracy" or crossings.level < FITTED or not crossings.have("val_accuracy"):
        return False
    best = np.array([[run.summary.val_accuracy_best for run in row] for row in crossings.runs], dtype=float)
    rises = best - crossings.at("val_accuracy")
    return bool(np.isfinite(rises).any()) and float(np.nanmean(rises)) > LATE


def _in_last_epoch(train: Profile, records: Sequence[RunRecord], name: str) -> tuple[float, ...]:
    runs = [r for r in plain(records) if r.run.seed in train.seeds and len(r.history.get(name, ()))]
    rows = complete(runs, train.scales)
    if len(rows) < len(train.seeds):
        return ()
    last = np.array([[record.history[name][-1] for record in row] for row in rows])
    return tuple((metric_of(name).factor * last.mean(axis=0)).tolist())
