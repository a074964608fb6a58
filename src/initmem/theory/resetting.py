"""Stochastic resetting: forgetting by starting over at random times.

Least squares under gradient flow, dw/dt = -(A w - c) with A = X'X / n and c = X'y / n, keeps the component of
its initial point that the data do not constrain. Reset w to zero at the events of a Poisson process with rate
r. The time since the last event is then exponential, and the stationary mean is the flow from zero averaged
over that time,

    E w = integral of r exp(-r t) w(t) dt = (A + r I)^-1 c,

which is ridge regression with penalty r. The initial point of a run matters only until its first reset: the
memory of it decays as exp(-r t), even in directions that the data do not constrain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from initmem.plots.model import Entry, Panel, Plot, Series, Style
from initmem.plots.styles import ORDERED
from initmem.theory import Array

RATES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)


@dataclass(frozen=True)
class Resetting:
    """Monte Carlo estimates and the closed form, at each rate of resetting.

    The data are `x`, (sample, feature), and `y`, (sample,). `rates` is (rate,); `mean`, its standard `error`
    and `closed_form` are (rate, feature); `runs` is the number of independent processes behind each mean.
    """

    x: Array
    y: Array
    rates: Array
    mean: Array
    error: Array
    closed_form: Array
    runs: int

    @property
    def z(self) -> Array:
        """Mean minus closed form, in standard errors, (rate, feature)."""
        return (self.mean - self.closed_form) / self.error


def ridge(x: Array, y: Array, penalty: float) -> Array:
    """The minimizer of |X w - y|^2 / (2 n) + penalty |w|^2 / 2, (feature,)."""
    n, d = x.shape
    w: Array = np.linalg.solve(x.T @ x / n + penalty * np.eye(d), x.T @ y / n)
    return w


def flow(x: Array, y: Array, start: Array, times: ArrayLike) -> Array:
    """Least-squares gradient flow in closed form: (run, feature), from `start` and `times` (run,)."""
    values, basis = np.linalg.eigh(x.T @ x / len(x))
    values = np.maximum(values, 0.0)
    age = np.asarray(times, dtype=np.float64)[:, None]
    spent = -np.expm1(-values * age)
    # Directions that the data do not constrain do not move.
    gained = np.where(values > 1e-12, spent / np.maximum(values, 1e-12), 0.0)
    pull = (y @ x / len(x)) @ basis
    moved: Array = ((start @ basis) * np.exp(-values * age) + pull * gained) @ basis.T
    return moved


def simulate(
    x: Array,
    y: Array,
    rate: float,
    time: float,
    *,
    rng: np.random.Generator,
    runs: int,
    start: ArrayLike = 0.0,
) -> Array:
    """Simulate independent processes from `start` up to `time`, event by event: (run, feature).

    `start` broadcasts to (run, feature).
    """
    last = np.zeros(runs)
    upcoming = rng.exponential(1 / rate, size=runs)
    while np.any(alive := upcoming <= time):
        last[alive] = upcoming[alive]
        upcoming[alive] += rng.exponential(1 / rate, size=int(alive.sum()))
    # Between events the flow is deterministic, so only the time since the last one matters.
    origin = np.where(last[:, None] > 0, 0.0, np.broadcast_to(start, (runs, x.shape[1])))
    return flow(x, y, origin, time - last)


def stationary_mean(
    x: Array, y: Array, rates: Sequence[float], *, seed: int, runs: int = 20_000
) -> Resetting:
    """Estimate the stationary mean at each rate and compare it with ridge regression of that penalty.

    Each process runs for thirty mean intervals between resets; a fraction exp(-30) is never reset.
    """
    rng = np.random.default_rng(seed)
    ends = [simulate(x, y, r, 30 / r, rng=rng, runs=runs) for r in rates]
    return Resetting(
        x,
        y,
        np.array(rates),
        mean=np.stack([w.mean(axis=0) for w in ends]),
        error=np.stack([w.std(axis=0, ddof=1) / np.sqrt(runs) for w in ends]),
        closed_form=np.stack([ridge(x, y, r) for r in rates]),
        runs=runs,
    )


def compute(seed: int) -> Resetting:
    """The example at all rates."""
    return stationary_mean(*example(seed=seed), RATES, seed=seed)


def example(*, seed: int) -> tuple[Array, Array]:
    """A small regression problem with correlated features: inputs (40, 6), outputs (40,)."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(40, 6)) @ np.diag(np.geomspace(1.0, 0.1, 6)) @ rng.normal(size=(6, 6))
    return x, x @ rng.normal(size=6) + 0.5 * rng.normal(size=40)


def rows(means: Resetting) -> list[dict[str, float]]:
    """One row per rate: the distance to ridge regression, its standard error, and the largest |z|."""
    columns = {
        "r": means.rates,
        "distance": np.linalg.norm(means.mean - means.closed_form, axis=1),
        "error": np.linalg.norm(means.error, axis=1),
        "ridge_norm": np.linalg.norm(means.closed_form, axis=1),
        "largest_z": np.abs(means.z).max(axis=1),
    }
    return [{name: float(values[i]) for name, values in columns.items()} for i in range(len(means.rates))]


def plot(means: Resetting) -> Plot:
    """Coefficients against the rate of resetting, and their distance from ridge in standard errors."""
    penalties = np.geomspace(0.008, 3.8, 80)
    paths = np.stack([ridge(means.x, means.y, p) for p in penalties]).T  # (feature, penalty)
    points = [style._replace(dash="none", size=5) for style in ORDERED[: len(paths)]]
    low, high = means.mean - 2 * means.error, means.mean + 2 * means.error
    left = Panel(
        title="",
        x_title="rate of resetting r = ridge coefficient",
        y_title="coefficient",
        series=[
            Series("", style, means.rates.tolist(), *(v[:, i].tolist() for v in (means.mean, low, high)))
            for i, style in enumerate(points)
        ],
        guides=[
            Series("", Style(style.color), penalties.tolist(), path.tolist())
            for style, path in zip(points, paths, strict=True)
        ],
        log_x=True,
    )
    limit = max(3.5, 1.1 * float(np.abs(means.z).max()))
    # Side by side, not on top of each other.
    shifted = [means.rates * 1.03 ** (i - 2.5) for i in range(len(points))]
    right = Panel(
        title="",
        x_title=left.x_title,
        y_title="(mean − ridge) / standard error",
        series=[Series("", s, shifted[i].tolist(), means.z[:, i].tolist()) for i, s in enumerate(points)],
        log_x=True,
        levels=(0,),
        span=(-2, 2),
        y_limits=(-limit, limit),
    )
    entries = [
        Entry("ridge regression", Style("0.4")),
        Entry(f"resetting: mean of {means.runs:,} processes, 2 standard errors", Style("0.4", "o", "none")),
    ]
    return Plot([[left, right]], [entries], row_height=3.0, lettered=False)
