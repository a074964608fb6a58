"""Diagonal linear networks w = u^2 - v^2: the initialization scale selects the solution.

With more features than samples, many w fit the data. From u = v = alpha, gradient flow conserves every
product u_i v_i at alpha^2 and ends at the interpolating solution of least hypentropy (Woodworth et al.,
2020): close to the least l1 norm if alpha is small, to the least l2 norm if it is large. The memory of alpha
is thus known in closed form, and so is its erasure. Whatever shrinks u_i v_i acts like a smaller alpha: decay
takes it to alpha exp(-lambda t), and a step with learning rate eta multiplies u_i v_i by exactly
(1 - 4 eta^2 g_i^2), where g is the gradient with respect to w; fresh label noise keeps g from vanishing.

Each method below has a first phase (nothing, decay, SGD, SGD with label noise), followed by plain flow to a
perfect fit, which reveals the selected solution.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from initmem.errors import InitmemError
from initmem.plots.model import Entry, Panel, Plot, Series, Style, Text
from initmem.plots.styles import OPTIMIZERS, SEQUENCE
from initmem.theory import Array, require

FIT = 1e-9  # how closely a flow has to fit y, relative to its largest entry


class Problem(NamedTuple):
    """Regression with more features than samples: `x` is (sample, feature), `y` is (sample,)."""

    x: Array
    y: Array

    def gradient(self, w: Array) -> Array:
        """The gradient of |X w - y|^2 / (2 n) at w, (..., feature)."""
        return (w @ self.x.T - self.y) @ self.x / len(self.y)


class Outcome(NamedTuple):
    """The solutions that one method reached, one per scale.

    `scales` is (scale,). `solution`, its closed-form prediction `predicted` and the `effective` scale
    sqrt(u v) behind the prediction are (scale, feature). Scales that diverged are NaN.
    """

    method: str
    scales: Array
    solution: Array
    predicted: Array
    effective: Array

    @property
    def mean_effective(self) -> Array:
        """The geometric mean of the effective scale over the features, (scale,)."""
        mean: Array = np.exp(np.log(self.effective).mean(axis=1))
        return mean


class Diagonal(NamedTuple):
    """The outcome of every method, and the two solutions between which they lie, (feature,) each."""

    problem: Problem
    outcomes: tuple[Outcome, ...]
    least_l1: Array
    least_l2: Array

    def position(self, solution: Array) -> Array:
        """The relative l1 norm of (..., feature): 0 at the least-l1 solution, 1 at the least-l2 solution."""
        low, high = np.abs(self.least_l1).sum(), np.abs(self.least_l2).sum()
        relative: Array = (np.abs(solution).sum(axis=-1) - low) / (high - low)
        return relative


def sparse_problem(*, seed: int, samples: int = 20, features: int = 40) -> Problem:
    """Gaussian inputs, and outputs that depend only on the first three features."""
    x = np.random.default_rng(seed).normal(size=(samples, features))
    truth = np.zeros(features)
    truth[:3] = (1.0, -1.0, 0.5)
    return Problem(x, x @ truth)


def least_l1(problem: Problem) -> Array:
    """The interpolating solution of least l1 norm (basis pursuit), by linear programming."""
    from scipy.optimize import linprog

    x, d = problem.x, problem.x.shape[1]
    result = linprog(np.ones(2 * d), A_eq=np.hstack([x, -x]), b_eq=problem.y, method="highs")
    if result.x is None:
        raise InitmemError(f"least l1: no solution found ({result.message})")
    return np.asarray(result.x[:d] - result.x[d:], dtype=np.float64)


def least_l2(problem: Problem) -> Array:
    """The interpolating solution of least l2 norm."""
    return np.linalg.pinv(problem.x) @ problem.y


def closed_form(problem: Problem, scale: ArrayLike) -> Array:
    """The interpolating solution of least hypentropy: w = 2 scale^2 sinh(X' nu) with X w = y.

    `scale` is one number or one per feature. nu minimizes sum 2 s cosh(X' nu) - y' nu, a convex function with
    one variable per sample, by Newton steps kept short enough for sinh to be nearly linear along them.
    """
    x, y = problem.x, problem.y
    s = np.broadcast_to(np.asarray(scale, dtype=np.float64) ** 2, x.shape[1:])
    nu = np.zeros(len(y))
    for _ in range(1000):
        angle = x.T @ nu
        residual = x @ (2 * s * np.sinh(angle)) - y
        step = np.linalg.solve((x * (2 * s * np.cosh(angle))) @ x.T, residual)
        change = float(np.abs(x.T @ step).max())  # of the angle
        nu = nu - step / max(1.0, change)
        if change < 1e-9:  # relative to w, because adding to the angle multiplies sinh
            break
    # In an ill-conditioned problem rounding keeps the change above the tolerance, but small.
    if not change <= 1e-6:
        raise InitmemError(f"closed form: no convergence at scale {scale!r}")
    return 2 * s * np.sinh(x.T @ nu)


def flow(
    problem: Problem, u: Array, v: Array, *, decay: float = 0.0, time: float | None = None
) -> tuple[Array, Array]:
    """Gradient flow on (u, v), each (feature,): for `time`, or until y is fitted.

    The solver works on log |u| and log |v|, in which all scales look alike and u v is conserved to rounding.
    At small scales the last directions are fitted very slowly, so the solver is one for stiff systems.
    """
    from scipy.integrate import solve_ivp

    require(bool(np.all(u * v != 0)), "u, v: allowed: nonzero entries (an entry at zero never moves)")
    d, x, y = len(u), problem.x, problem.y
    goal = FIT * max(1.0, float(np.abs(y).max()))
    start = np.log(np.abs(np.concatenate([u, v])))

    def weights(state: Array) -> Array:
        return np.exp(2 * state[:d]) - np.exp(2 * state[d:])

    def velocity(_: float, state: Array) -> Array:
        g = 2 * problem.gradient(weights(state))
        return np.concatenate([-g, g]) - decay

    def jacobian(_: float, state: Array) -> Array:
        sign = np.repeat((1.0, -1.0), d)
        curvature: Array = np.tile(4 * x.T @ x / len(y), (2, 2)) * sign * np.exp(2 * state)
        return -sign[:, None] * curvature

    def residual(_: float, state: Array) -> float:
        return float(np.abs(x @ weights(state) - y).max()) - goal

    if time is None and residual(0.0, start) <= 0:
        return np.abs(u), np.abs(v)  # already fitted: the event below would never fire
    residual.terminal = True  # type: ignore[attr-defined]
    with warnings.catch_warnings(action="ignore"):  # the status is checked instead
        span, event = ((0.0, 1e15), residual) if time is None else ((0.0, time), None)
        result = solve_ivp(
            velocity, span, start, method="LSODA", jac=jacobian, rtol=1e-12, atol=1e-12, events=event
        )
    if result.status != (1 if time is None else 0):
        raise InitmemError(f"flow: the solver stopped before the end ({result.message})")
    end = np.exp(result.y[:, -1])
    return end[:d], end[d:]


def sgd(
    problem: Problem,
    u: Array,
    v: Array,
    *,
    rate: float,
    steps: int,
    label_noise: float = 0.0,
    rng: np.random.Generator,
) -> tuple[Array, Array]:
    """SGD with one sample per step on (u, v), each (..., feature); all trajectories see the same order.

    At every step, `label_noise` is added to the label of the sample with a fresh random sign.
    """
    rows = rng.integers(len(problem.y), size=steps)
    noise = label_noise * rng.choice((-1.0, 1.0), size=steps)
    with np.errstate(all="ignore"):
        for x, y in zip(problem.x[rows], problem.y[rows] + noise, strict=True):
            g = 2 * rate * ((u * u - v * v) @ x - y)[..., None] * x
            u, v = u - g * u, v + g * v
    return u, v


def compute(
    seed: int, scales: Sequence[float] = (1e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0), steps: int = 40_000
) -> Diagonal:
    """Run every method from every scale and compare each solution with its closed form."""
    problem = sparse_problem(seed=seed)
    start = np.repeat(np.array(scales)[:, None], problem.x.shape[1], axis=1)
    noisy = partial(sgd, problem, start, start, rng=np.random.default_rng(seed), rate=4e-3, steps=steps)
    phases: dict[str, tuple[Array, Array] | Array] = {
        "flow": (start, start),
        "decay": np.stack([flow(problem, a, a, decay=0.1, time=50.0) for a in start], axis=1),
        "sgd": noisy(),
        "sgd with label noise": noisy(label_noise=2.0),
    }
    outcomes = tuple(_outcome(problem, name, start[:, 0], *phase) for name, phase in phases.items())
    return Diagonal(problem, outcomes, least_l1(problem), least_l2(problem))


def _outcome(problem: Problem, method: str, scales: Array, u: Array, v: Array) -> Outcome:
    """Flow from (u, v), each (scale, feature), to a perfect fit, with the closed form predicted from u v."""
    solution, predicted, effective = (np.full_like(u, np.nan) for _ in range(3))
    for i in np.flatnonzero(np.isfinite(u * v).all(axis=1)):
        effective[i] = np.sqrt(np.abs(u[i] * v[i]))
        predicted[i] = closed_form(problem, effective[i])
        a, b = flow(problem, u[i], v[i])
        solution[i] = a * a - b * b
    return Outcome(method, scales, solution, predicted, effective)


def rows(reached: Diagonal) -> list[dict[str, object]]:
    """One row per method and scale: norms, relative l1 norm, and distances to the reference solutions."""
    return [
        {
            "method": outcome.method,
            "scale": float(scale),
            "diverged": bool(np.isnan(w).any()),
            "effective_scale": float(outcome.mean_effective[i]),
            "l1_norm": float(np.abs(w).sum()),
            "l2_norm": float(np.linalg.norm(w)),
            "place": float(reached.position(w)),
            "to_closed_form": float(np.abs(w - outcome.predicted[i]).max()),
            "to_least_l1": float(np.abs(w - reached.least_l1).max()),
            "to_least_l2": float(np.abs(w - reached.least_l2).max()),
        }
        for outcome in reached.outcomes
        for i, (scale, w) in enumerate(zip(outcome.scales, outcome.solution, strict=True))
    ]


# -- the picture ------------------------------------------------------------------------------------------

# Two methods often end at one point: the first of each pair is hollow and holds the second.
CLOSED_FORM = Style("0.75", "", "-", width=4.0)
METHOD_STYLES = {
    "flow": Style(SEQUENCE[0], "o", "none", hollow=True, size=10),
    "decay": Style(SEQUENCE[2], "s", "none", hollow=True, size=9),
    "sgd": Style(OPTIMIZERS["sgd"].color, "D", "none", size=4.5),
    "sgd with label noise": Style(OPTIMIZERS["sgd"].hue, "^", "none", size=5.5, shade=-0.5),
}


def plot(reached: Diagonal) -> Plot:
    """Where each solution lies between least l1 and least l2, against two scales."""
    scales = np.geomspace(3e-6, 2.0, 60)
    closed = reached.position(np.stack([closed_form(reached.problem, scale) for scale in scales]))

    def panel(x_title: str, of_outcomes: list[Array], least: float, texts: Sequence[Text] = ()) -> Panel:
        shown = scales >= least
        return Panel(
            title="",
            x_title=x_title,
            y_title="where the solution lies",
            series=[
                Series(o.method, METHOD_STYLES[o.method], x.tolist(), reached.position(o.solution).tolist())
                for o, x in zip(reached.outcomes, of_outcomes, strict=True)
            ],
            guides=[Series("", CLOSED_FORM, scales[shown].tolist(), closed[shown].tolist())],
            levels=(0, 1),
            log_x=True,
            y_ticks={0: "least ℓ₁", 0.5: "half-way", 1: "least ℓ₂"},
            texts=texts,
        )

    words = [Text(0.45, 0.6, "remembered"), Text(0.97, 0.1, "forgotten")]
    initial, remaining = [o.scales for o in reached.outcomes], [o.mean_effective for o in reached.outcomes]
    left = panel("scale of initialization α", initial, 6e-4, words)
    right = panel("remaining scale, geometric mean of √(u v)", remaining, 0.0)
    methods = [Entry(o.method, METHOD_STYLES[o.method]) for o in reached.outcomes]
    entries = [Entry("closed form", CLOSED_FORM), *methods]
    return Plot([[left, right]], [entries], row_height=3.0, lettered=False)
