"""Stochastic resetting: forgetting by starting over at random times.

Least squares under gradient flow, dw/dt = -(A w - c) with A = X'X / n and c = X'y / n, keeps the component of
its initial point that the data do not constrain. Reset w to a fixed point `home` at the events of a Poisson
process with rate r. The time since the last event is then exponential, and the stationary mean is the flow
from home averaged over that time,

    E w = integral of r exp(-r t) w(t) dt = (A + r I)^-1 (c + r home),

which for home = 0 is ridge regression with penalty r. The initial point of a run matters only until its first
reset: the memory of it decays as exp(-r t), even in directions that the data do not constrain.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from initmem.theory._arrays import Array, require


@dataclass(frozen=True)
class Resetting:
    """Monte Carlo estimates and the closed form, at each rate of resetting.

    `rates` is (rate,); `mean`, its standard `error` and `closed_form` are (rate, feature);
    `runs` is the number of independent processes behind each mean.
    """

    rates: Array
    mean: Array
    error: Array
    closed_form: Array
    runs: int

    @property
    def z(self) -> Array:
        """Mean minus closed form, in standard errors, (rate, feature)."""
        return (self.mean - self.closed_form) / self.error

    def rows(self) -> list[dict[str, float]]:
        """One row per rate: the distance to ridge regression, its standard error, and the largest |z|."""
        gap = np.sqrt(np.sum((self.mean - self.closed_form) ** 2, axis=1))
        chance = np.sqrt(np.sum(self.error**2, axis=1))
        norm = np.sqrt(np.sum(self.closed_form**2, axis=1))
        worst = np.abs(self.z).max(axis=1)
        names = ("r", "distance", "error", "ridge_norm", "largest_z")
        columns = zip(self.rates, gap, chance, norm, worst, strict=True)
        return [dict(zip(names, map(float, row), strict=True)) for row in columns]


def ridge(x: ArrayLike, y: ArrayLike, penalty: float, center: ArrayLike = 0.0) -> Array:
    """The minimizer of |X w - y|^2 / (2 n) + penalty |w - center|^2 / 2, (feature,)."""
    inputs, outputs = _data(x, y)
    n, d = inputs.shape
    pull = penalty * np.broadcast_to(np.asarray(center, dtype=np.float64), (d,))
    w: Array = np.linalg.solve(inputs.T @ inputs / n + penalty * np.eye(d), inputs.T @ outputs / n + pull)
    return w


def flow(x: ArrayLike, y: ArrayLike, start: Array, times: ArrayLike) -> Array:
    """Least-squares gradient flow in closed form: (run, feature), from `start` and `times` (run,)."""
    inputs, outputs = _data(x, y)
    n = len(inputs)
    values, basis = np.linalg.eigh(inputs.T @ inputs / n)
    values = np.maximum(values, 0.0)
    age = np.asarray(times, dtype=np.float64)[:, None]
    spent = -np.expm1(-values * age)
    # Directions that the data do not constrain do not move.
    gained = np.where(values > 1e-12, spent / np.maximum(values, 1e-12), 0.0)
    pull = (outputs @ inputs / n) @ basis
    moved: Array = ((start @ basis) * np.exp(-values * age) + pull * gained) @ basis.T
    return moved


def simulate(
    x: ArrayLike,
    y: ArrayLike,
    rate: float,
    time: float,
    *,
    rng: np.random.Generator,
    runs: int,
    start: ArrayLike = 0.0,
    home: ArrayLike = 0.0,
) -> Array:
    """Simulate independent processes from `start` up to `time`, event by event: (run, feature).

    `start` and `home` broadcast to (run, feature).
    """
    inputs, _ = _data(x, y)
    require(rate > 0 and time > 0, f"rate: {rate}, time: {time}; allowed: > 0")
    require(runs >= 2, f"runs: {runs}; allowed: 2 or more")
    origin, base = (
        np.broadcast_to(np.asarray(point, dtype=np.float64), (runs, inputs.shape[1]))
        for point in (start, home)
    )
    last = np.zeros(runs)
    upcoming = rng.exponential(1 / rate, size=runs)
    while np.any(alive := upcoming <= time):
        last[alive] = upcoming[alive]
        upcoming[alive] += rng.exponential(1 / rate, size=int(alive.sum()))
    # Between events the flow is deterministic, so only the time since the last one matters.
    return flow(x, y, np.where(last[:, None] > 0, base, origin), time - last)


def stationary_mean(
    x: ArrayLike,
    y: ArrayLike,
    rates: ArrayLike,
    *,
    seed: int,
    runs: int = 20_000,
    home: ArrayLike = 0.0,
) -> Resetting:
    """Estimate the stationary mean at each rate and compare it with ridge regression of that penalty.

    Each process runs for thirty mean intervals between resets; a fraction exp(-30) is never reset.
    """
    speeds = np.atleast_1d(np.asarray(rates, dtype=np.float64))
    require(bool(np.all(speeds > 0)), f"rates: {rates!r}; allowed: > 0")
    rng = np.random.default_rng(seed)
    ends = [simulate(x, y, r, 30 / r, rng=rng, runs=runs, home=home) for r in speeds]
    return Resetting(
        speeds,
        np.stack([w.mean(axis=0) for w in ends]),
        np.stack([w.std(axis=0, ddof=1) / np.sqrt(runs) for w in ends]),
        np.stack([ridge(x, y, r, home) for r in speeds]),
        runs,
    )


def example(*, seed: int) -> tuple[Array, Array]:
    """A small regression problem with correlated features: inputs (40, 6), outputs (40,)."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(40, 6)) @ np.diag(np.geomspace(1.0, 0.1, 6)) @ rng.normal(size=(6, 6))
    return x, x @ rng.normal(size=6) + 0.5 * rng.normal(size=40)


def _data(x: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
    inputs, outputs = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    require(
        inputs.ndim == 2 and outputs.shape == (len(inputs),),
        f"data: inputs {inputs.shape}, outputs {outputs.shape}; allowed: (sample, feature) and (sample,)",
    )
    return inputs, outputs
