"""Sharpness along training, beside the limit up to which gradient descent is stable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from initmem.clocks import stability_limit
from initmem.measures.design import plain
from initmem.recipe import Recipe
from initmem.record import SHARPNESS, RunRecord

Array = NDArray[np.float64]


class SharpnessCurve(NamedTuple):
    """The sharpness of some runs of one recipe at the epochs after which it was measured."""

    epochs: Array  # (epoch,)
    values: Array  # (run, epoch); NaN where a run has no value
    limits: Array  # (epoch,): 2 / eta, 2 (1 + momentum) / eta with momentum; NaN for other optimizers

    @property
    def mean(self) -> Array:
        """The mean over runs, shape (epoch,)."""
        mean: Array = np.nanmean(self.values, axis=0)
        return mean


class Sharpness(NamedTuple):
    """How sharp the minimum became, means over runs. None: the optimizer has no limit."""

    first: float  # after the first epoch that was measured
    last: float
    epoch: int  # of the last measurement
    limit: float | None  # at the learning rate of that epoch
    ratio: float | None  # last / limit
    largest_ratio: float | None  # over all epochs that were measured
    n: int


def sharpness_curve(records: Sequence[RunRecord]) -> SharpnessCurve | None:
    """The measurements of one recipe; None if there are none."""
    asked = [record for record in plain(records) if record.run.recipe.get("sharpness_every")]
    runs = [record for record in asked if all(name in record.history for name in SHARPNESS)]
    measured = [_measured(record) for record in runs]
    epochs = sorted({epoch for one in measured for epoch in one})
    if not epochs:
        return None
    values = np.array([[one.get(epoch, np.nan) for epoch in epochs] for one in measured if one])
    longest = max(runs, key=lambda record: record.summary.epochs)
    return SharpnessCurve(np.array(epochs, float), values, _limits(longest, epochs))


def sharpness(records: Sequence[RunRecord]) -> Sharpness | None:
    """The first and the last measurement of one recipe, and how near the limit it came."""
    curve = sharpness_curve(records)
    if curve is None:
        return None
    mean, limit = curve.mean, float(curve.limits[-1])
    known = bool(np.isfinite(limit))
    return Sharpness(
        first=float(mean[0]),
        last=float(mean[-1]),
        epoch=int(curve.epochs[-1]),
        limit=limit if known else None,
        ratio=float(mean[-1]) / limit if known else None,
        largest_ratio=float((mean / curve.limits).max()) if known else None,
        n=int(np.isfinite(curve.values[:, -1]).sum()),
    )


def _measured(record: RunRecord) -> dict[int, float]:
    """The values by epoch; in between, a history repeats the latest one."""
    values, when = (record.history[name] for name in SHARPNESS)
    return {
        i: float(value) for i, (value, epoch) in enumerate(zip(values, when, strict=True), 1) if epoch == i
    }


def _limits(record: RunRecord, epochs: Sequence[int]) -> Array:
    """The limit at the last learning rate of each epoch."""
    recipe, rates = record.run.recipe, record.history["learning_rate"]
    if not isinstance(recipe, Recipe):
        return np.full(len(epochs), np.nan)
    limits = (stability_limit(recipe, float(rates[epoch - 1])) for epoch in epochs)
    return np.array([np.nan if limit is None else limit for limit in limits])
