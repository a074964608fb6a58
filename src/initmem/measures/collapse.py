"""The collapse score: against which clock do the |beta| curves of different batch sizes agree?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from initmem.clocks import CLOCKS
from initmem.measures.beta import BetaCurve, beta_curve, resampled_beta
from initmem.store.record import RunRecord

Array = NDArray[np.float64]
GRID = 200  # places on an axis where curves are compared
DRAWS = 200  # of seeds
SMALLEST = 1e-6  # |beta| below this is zero for all practical purposes


class ClockScore(NamedTuple):
    """How well curves agree against one axis. None: no two of them are ever at the same place on it."""

    axis: str  # "epochs" or a clock
    disagreement: float | None  # root mean square distance between curves, in decades of |beta|
    score: float | None  # 1: curves collapse on this axis; 0: no better than epochs; -1: epochs are right
    low: float | None
    high: float | None
    wins: float  # share of resampled studies in which this axis has the least disagreement


class Collapse(NamedTuple):
    """The scores of all axes, and the one against which curves agree best."""

    scores: list[ClockScore]
    winner: str
    n_curves: int


def collapse(
    groups: Sequence[Sequence[RunRecord]], metric: str = "val_accuracy", *, seed: int = 0
) -> Collapse:
    """Compare the curves of several recipes, one group of records each, against epochs and every clock."""
    rng = np.random.default_rng(seed)
    curves = [beta_curve(records, metric) for records in groups]
    axes = _axes(curves)
    floors = _floors(curves)
    observed = {name: disagreement([c.beta for c in curves], axes[name], floors) for name in axes}
    drawn = [resampled_beta(records, metric, rng=rng, draws=DRAWS) for records in groups]
    resampled = {
        name: np.array([disagreement([d[k] for d in drawn], axis, floors) for k in range(DRAWS)])
        for name, axis in axes.items()
    }
    names = list(axes)
    table = np.stack([resampled[name] for name in names])  # (axis, draw)
    best = np.argmin(table, axis=0)
    scores = []
    for i, name in enumerate(names):
        if not np.isfinite(observed[name]):
            scores.append(ClockScore(name, None, None, None, None, 0.0))
            continue
        low, high = np.quantile(_score(table[i], table[0]), [0.025, 0.975])
        point = float(_score(np.array(observed[name]), np.array(observed["epochs"])))
        # Resampling adds noise, and noise adds disagreement: the point can lie beyond the drawn scores.
        limits = min(float(low), point), max(float(high), point)
        scores.append(ClockScore(name, observed[name], point, *limits, float((best == i).mean())))
    return Collapse(scores, min(observed, key=observed.__getitem__), len(curves))


def disagreement(betas: Sequence[Array], axis: Sequence[Array], floors: Sequence[float]) -> float:
    """Root mean square distance in log10 |beta| between curves, where at least two of them are there.

    Every curve is interpolated on a grid that is even in the logarithm of the axis, as clocks of different
    batch sizes differ by orders of magnitude. |beta| below its own standard error is taken as that.
    """
    start = max(min(x[0] for x in axis), 1e-300)
    grid = np.geomspace(start, max(x[-1] for x in axis), GRID)
    table = np.full((len(betas), GRID), np.nan)
    for row, beta, x, floor in zip(table, betas, axis, floors, strict=True):
        there = np.isfinite(beta)
        height = np.log10(np.maximum(np.abs(beta[there]), floor))
        inside = (grid >= x[there][0]) & (grid <= x[there][-1])
        row[inside] = np.interp(np.log(grid[inside]), np.log(x[there]), height)
    n = np.isfinite(table).sum(axis=0)
    several = n >= 2
    if not several.any():
        return float("inf")  # curves that never meet say nothing
    columns = table[:, several]
    spread = np.nanvar(columns, axis=0, ddof=1)
    return float(np.sqrt(spread.mean()))


def _axes(curves: Sequence[BetaCurve]) -> dict[str, list[Array]]:
    """Epochs and every clock that moves in all curves."""
    axes = {"epochs": [curve.epochs for curve in curves]}
    for name in CLOCKS:
        ticks = [curve.clocks[name] for curve in curves]
        if all(len(x) and x[0] > 0 and (np.diff(x) > 0).all() for x in ticks):
            axes[name] = ticks
    return axes


def _floors(curves: Sequence[BetaCurve]) -> list[float]:
    floors = []
    for curve in curves:
        errors = (curve.high - curve.low) / 4  # about one standard error
        known = errors[np.isfinite(errors)]
        floors.append(max(SMALLEST, float(np.median(known)) if len(known) else 0.0))
    return floors


def _score(value: Array, against_epochs: Array) -> Array:
    """(E - C) / (E + C) of the squared disagreements against epochs and against a clock."""
    clock, epochs = np.minimum(value, 1e9) ** 2, np.minimum(against_epochs, 1e9) ** 2
    total = clock + epochs
    return np.asarray((epochs - clock) / np.where(total > 0, total, 1.0))
