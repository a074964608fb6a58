"""Linear networks W = W_L ... W_1 in float64: their imbalance, and gradient flow on them.

Every array may have leading axes, written `...`, with one entry per trajectory, so that a whole sweep is
computed at once. Factors are listed from input to output, W_1 first; the two-factor network W = U V is the
pair `(V, U)`.

What initialization leaves behind in such a network is its *imbalance*: the difference of the two Gram
matrices at a hidden layer. Gradient flow cannot change it. `propositions` shows which mechanisms can, and on
which clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import ArrayLike

from initmem.errors import ConfigError
from initmem.theory.losses import Array, Factors, Flags, Loss, require


@dataclass(frozen=True)
class Path:
    """Recorded trajectories of a network.

    `times` is (time,): flow time, or the number of updates. `factors` holds one array (time, ..., d_j,
    d_{j-1}) per layer. `diverged` is (...); from the time a trajectory diverges, its factors are NaN.
    """

    times: Array
    factors: Factors
    diverged: Flags

    @property
    def product(self) -> Array:
        """The product at every recorded time, (time, ..., d_out, d_in)."""
        with np.errstate(all="ignore"):
            return product(self.factors)

    @property
    def imbalances(self) -> Factors:
        """D_1 ... D_{L-1} at every recorded time, each (time, ..., d_j, d_j)."""
        with np.errstate(all="ignore"):
            return imbalances(self.factors)

    @property
    def final(self) -> Factors:
        """The factors at the last recorded time, each (..., d_j, d_{j-1})."""
        return tuple(factor[-1] for factor in self.factors)


def network(*factors: ArrayLike) -> Factors:
    """Check W_1, ..., W_L and return them as float64 arrays with equal leading axes."""
    arrays = tuple(np.asarray(factor, dtype=np.float64) for factor in factors)
    shapes = [factor.shape for factor in arrays]
    chained = all(len(shape) >= 2 for shape in shapes) and all(
        upper[-1] == lower[-2] for lower, upper in pairwise(shapes)
    )
    allowed = "two or more of (..., d_j, d_{j-1}), from W_1 to W_L, each with as many columns as rows below"
    require(len(shapes) >= 2 and chained, f"factors: shapes {shapes}; allowed: {allowed}")
    try:
        lead = np.broadcast_shapes(*(shape[:-2] for shape in shapes))
    except ValueError:
        raise ConfigError(f"factors: shapes {shapes}; allowed: leading axes that broadcast") from None
    return tuple(np.array(np.broadcast_to(f, lead + f.shape[-2:]), order="C") for f in arrays)


def random_network(
    dims: Sequence[int],
    *,
    rng: np.random.Generator,
    scale: ArrayLike = 1.0,
    lead: tuple[int, ...] = (),
) -> Factors:
    """Draw W_j ~ N(0, scale^2 / d_{j-1}) for dims d_0 ... d_L; `scale` broadcasts over `lead`."""
    require(
        len(dims) >= 3 and min(dims) >= 1,
        f"dims: {tuple(dims)}; allowed: three or more positive sizes, input to output",
    )
    spread = np.asarray(scale, dtype=np.float64)[..., None, None]
    return tuple(
        spread * rng.standard_normal((*lead, rows, columns)) / np.sqrt(columns)
        for columns, rows in pairwise(dims)
    )


def product(factors: Factors) -> Array:
    """The product W_L ... W_1, (..., d_L, d_0)."""
    return reduce(lambda below, factor: factor @ below, factors)


def imbalance(u: Array, v: Array) -> Array:
    """D = U'U - VV' of the two-factor network W = U V, (..., r, r)."""
    return u.mT @ u - v @ v.mT


def imbalances(factors: Factors) -> Factors:
    """D_j = W_j W_j' - W_{j+1}' W_{j+1} for j = 1 ... L-1, each (..., d_j, d_j)."""
    return tuple(lower @ lower.mT - upper.mT @ upper for lower, upper in pairwise(factors))


def layer_gradients(factors: Factors, gradient: Array) -> Factors:
    """H_j = A_j' G B_j', the gradient of every layer, from the gradient G of the product.

    A_j is the product of the layers above j, B_j of those below. All layers share the same G, including its
    noise, and this makes the imbalance a conserved quantity.
    """
    below = accumulate(factors[:-1], lambda inner, factor: factor @ inner)  # B_2 ... B_L
    gradients: list[Array] = []
    for factor, inner in zip(reversed(factors[1:]), reversed(list(below)), strict=True):
        gradients.append(gradient @ inner.mT)
        gradient = factor.mT @ gradient
    return (gradient, *reversed(gradients))


def gradient_flow(
    factors: Factors,
    loss: Loss,
    times: ArrayLike,
    *,
    decay: float = 0.0,
    tolerance: float = 1e-12,
) -> Path:
    """Integrate dW_j/dt = -H_j - decay W_j and record the factors at `times`, (time,).

    The solver is an explicit Runge-Kutta method of order 8 with error control; `tolerance` is its relative
    and absolute tolerance. All trajectories share the solver's step size.
    """
    from scipy.integrate import solve_ivp

    factors = network(*factors)
    moments = _moments(times)
    require(decay >= 0, f"decay: {decay}; allowed: >= 0")
    shapes = [factor.shape for factor in factors]
    ends = np.cumsum([factor.size for factor in factors])[:-1]

    def unpack(flat: Array) -> Factors:
        return tuple(p.reshape(s) for p, s in zip(np.split(flat, ends), shapes, strict=True))

    def velocity(_: float, flat: Array) -> Array:
        layers = unpack(flat)
        gradient = checked_gradient(loss.gradient, product(layers))
        return -_flatten(layer_gradients(layers, gradient)) - decay * flat

    with np.errstate(all="ignore"):
        solution = solve_ivp(
            velocity,
            (0.0, float(moments[-1])),
            _flatten(factors),
            method="DOP853",
            t_eval=moments,
            rtol=tolerance,
            atol=tolerance,
        )
    # A solution that ends early has diverged: the times it did not reach are NaN.
    states = np.full((len(moments), sum(factor.size for factor in factors)), np.nan)
    states[: solution.y.shape[1]] = solution.y.T
    layers = [unpack(state) for state in states]
    recorded = tuple(np.stack(layer) for layer in zip(*layers, strict=True))
    return Path(moments, recorded, has_diverged(tuple(layer[-1] for layer in recorded)))


def checked_gradient(gradient: Callable[[Array], Array], at: Array) -> Array:
    """Evaluate a gradient at a product, (..., d_out, d_in), and check that it has the same shape."""
    value = gradient(at)
    require(
        np.shape(value) == at.shape,
        f"gradient: shape {np.shape(value)}; allowed: {at.shape}, the shape of the product",
    )
    return value


def has_diverged(factors: Factors, limit: float = 1e100) -> Flags:
    """Which trajectories, (...), have an entry that is not finite or exceeds `limit` in absolute value."""
    # `not <=` rather than `>`, so that NaN counts as diverged.
    beyond = [~(np.abs(factor).max(axis=(-2, -1)) <= limit) for factor in factors]
    flags: Flags = np.logical_or.reduce(beyond)
    return flags


def _flatten(factors: Factors) -> Array:
    return np.concatenate([factor.ravel() for factor in factors])


def _moments(times: ArrayLike) -> Array:
    moments = np.atleast_1d(np.asarray(times, dtype=np.float64))
    increasing = moments.ndim == 1 and bool(np.all(np.diff(moments) > 0))
    require(
        increasing and len(moments) > 0 and bool(moments[0] >= 0) and bool(moments[-1] > 0),
        f"times: {times!r}; allowed: increasing numbers >= 0, the last one > 0",
    )
    return moments
