"""Discrete dynamics: how optimizers move a linear network, for many trajectories at once.

A rule turns the gradients of the layers into increments and keeps its own state. Rules follow the same
conventions as the optimizers in `initmem.train`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from initmem.theory._arrays import Array, Factors, Flags, frobenius, require
from initmem.theory.linear import (
    Path,
    checked_gradient,
    has_diverged,
    layer_gradients,
    network,
    product,
)
from initmem.theory.losses import Estimate, Loss

# The state of a rule between updates: tuples of arrays shaped like the factors.
State = tuple[Factors, ...]
Schedule = float | Array | Callable[[int], ArrayLike]


class Rule(Protocol):
    """An optimizer: `start` creates its state, `step` returns increments and the next state."""

    def start(self, factors: Factors) -> State:
        """The state before the first update."""

    def step(self, state: State, gradients: Factors, rate: Array, k: int) -> tuple[Factors, State]:
        """The increment of every layer at update k, and the state after it.

        `rate` broadcasts against a layer: (..., 1, 1).
        """


@dataclass(frozen=True)
class GradientDescent:
    """W <- W - rate H: plain gradient descent, or SGD when the gradient is a minibatch's."""

    def start(self, factors: Factors) -> State:
        """No state."""
        return ()

    def step(self, state: State, gradients: Factors, rate: Array, k: int) -> tuple[Factors, State]:
        """See `Rule.step`."""
        return tuple(-rate * h for h in gradients), state


@dataclass(frozen=True)
class HeavyBall:
    """v <- momentum v - rate H; W <- W + v."""

    momentum: float = 0.9

    def start(self, factors: Factors) -> State:
        """Zero velocity."""
        return (_zeros(factors),)

    def step(self, state: State, gradients: Factors, rate: Array, k: int) -> tuple[Factors, State]:
        """See `Rule.step`."""
        (velocity,) = state
        moved = _each(lambda v, h: self.momentum * v - rate * h, velocity, gradients)
        return moved, (moved,)


@dataclass(frozen=True)
class Adam:
    """Adam with `epsilon` added to the square root before the bias correction."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-7

    def start(self, factors: Factors) -> State:
        """Zero moments."""
        return _zeros(factors), _zeros(factors)

    def step(self, state: State, gradients: Factors, rate: Array, k: int) -> tuple[Factors, State]:
        """See `Rule.step`."""
        first = _each(lambda m, h: m + (1 - self.beta1) * (h - m), state[0], gradients)
        second = _each(lambda v, h: v + (1 - self.beta2) * (h * h - v), state[1], gradients)
        corrected = rate * np.sqrt(1 - self.beta2 ** (k + 1)) / (1 - self.beta1 ** (k + 1))
        moved = _each(lambda m, v: -corrected * m / (np.sqrt(v) + self.epsilon), first, second)
        return moved, (first, second)


@dataclass(frozen=True)
class Muon:
    """Momentum whose Nesterov step is orthogonalized, scaled by 0.2 sqrt(max(rows, columns))."""

    momentum: float = 0.95

    def start(self, factors: Factors) -> State:
        """Zero momentum."""
        return (_zeros(factors),)

    def step(self, state: State, gradients: Factors, rate: Array, k: int) -> tuple[Factors, State]:
        """See `Rule.step`."""
        momenta = _each(lambda m, h: self.momentum * m + h, state[0], gradients)
        ahead = _each(lambda m, h: h + self.momentum * m, momenta, gradients)
        moved = tuple(-rate * 0.2 * np.sqrt(max(a.shape[-2:])) * orthogonalize(a) for a in ahead)
        return moved, (momenta,)


@dataclass(frozen=True)
class Preconditioned:
    """W_j <- W_j - rate P(j, H_j) for a given map P; j counts from 1."""

    precondition: Callable[[int, Array], Array]

    def start(self, factors: Factors) -> State:
        """No state."""
        return ()

    def step(self, state: State, gradients: Factors, rate: Array, k: int) -> tuple[Factors, State]:
        """See `Rule.step`."""
        moved = []
        for j, h in enumerate(gradients, start=1):
            q = self.precondition(j, h)
            require(
                np.shape(q) == h.shape,
                f"precondition: shape {np.shape(q)} for layer {j}; allowed: {h.shape}",
            )
            moved.append(-rate * q)
        return tuple(moved), state


def orthogonalize(matrix: Array, steps: int = 5) -> Array:
    """Drive the singular values of (..., rows, columns) towards one by Newton-Schulz steps."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix / (frobenius(matrix)[..., None, None] + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


def descend(
    factors: Factors,
    gradient: Loss | Estimate,
    rule: Rule,
    rates: Schedule,
    steps: int,
    *,
    decay: ArrayLike = 0.0,
    every: int = 1,
    watch: Callable[[int, Factors], None] | None = None,
) -> Path:
    """Make `steps` updates; record the factors at the start, every `every` updates and at the end.

    `gradient` is a loss, or an estimate of the gradient of the product at update k. `rates` is one number, an
    array (step,) or (step, ...) with a learning rate per trajectory, or a function of k. `decay`, a number or
    (...), is coupled: it adds decay W_j to the gradient of layer j, so that plain gradient descent multiplies
    W_j by (1 - rate decay). A trajectory that diverges is marked in `diverged` and does not affect the
    others. `watch(k, factors)` is called before every update k and may raise to stop.
    """
    factors = network(*factors)
    require(steps >= 1 and every >= 1, f"steps: {steps}, every: {every}; allowed: 1 or more")
    estimate = _estimate(gradient)
    lead = factors[0].shape[:-2]
    rate_at = _schedule(rates, steps, lead)
    shrink = _per_trajectory("decay", decay, lead)
    state = rule.start(factors)
    times, kept = [0], [factors]
    with np.errstate(all="ignore"):
        diverged = has_diverged(factors)
        for k in range(steps):
            if watch is not None:
                watch(k, factors)
            of_product = checked_gradient(partial(estimate, k), product(factors))
            gradients = layer_gradients(factors, of_product)
            gradients = _each(lambda h, w: h + shrink * w, gradients, factors)
            moved, state = rule.step(state, gradients, rate_at(k), k)
            factors = _each(np.add, factors, moved)
            if (k + 1) % every == 0 or k + 1 == steps:
                diverged = diverged | has_diverged(factors)
                times.append(k + 1)
                kept.append(_blank(factors, diverged))
    recorded = tuple(np.stack(layer) for layer in zip(*kept, strict=True))
    return Path(np.array(times, dtype=np.float64), recorded, diverged)


def _estimate(gradient: Loss | Estimate) -> Estimate:
    if isinstance(gradient, Loss):
        exact = gradient.gradient
        return lambda _, product: exact(product)
    require(callable(gradient), f"gradient: {gradient!r}; allowed: a loss or a function of (k, W)")
    return gradient


def _schedule(rates: Schedule, steps: int, lead: tuple[int, ...]) -> Callable[[int], Array]:
    """The learning rate of update k, shaped to multiply matrices with leading axes `lead`."""
    if callable(rates):
        return lambda k: _per_trajectory("rates", rates(k), lead)
    table = np.asarray(rates, dtype=np.float64)
    if table.ndim == 0:
        constant = _per_trajectory("rates", table, lead)
        return lambda _: constant
    require(
        len(table) == steps,
        f"rates: {len(table)} given for {steps} steps; allowed: one number, or one per step",
    )
    _per_trajectory("rates", table.min(axis=0), lead)  # if the smallest are valid, all are
    ready = table[..., None, None]
    return lambda k: ready[k]


def _per_trajectory(name: str, value: ArrayLike, lead: tuple[int, ...]) -> Array:
    """Check a number, or numbers (...), and reshape to (..., 1, 1), to multiply matrices."""
    array = np.asarray(value, dtype=np.float64)
    require(bool(np.all(array >= 0)), f"{name}: {array.tolist()}; allowed: numbers >= 0")
    fits = array.ndim <= len(lead) and all(
        mine in (1, theirs) for mine, theirs in zip(array.shape[::-1], lead[::-1], strict=False)
    )
    require(fits, f"{name}: shape {array.shape}; allowed: one number, or {lead}, one per trajectory")
    return array[..., None, None]


def _each(function: Callable[[Array, Array], Array], left: Factors, right: Factors) -> Factors:
    return tuple(function(a, b) for a, b in zip(left, right, strict=True))


def _zeros(factors: Factors) -> Factors:
    return tuple(np.zeros_like(factor) for factor in factors)


def _blank(factors: Factors, diverged: Flags) -> Factors:
    """The factors with every diverged trajectory replaced by NaN."""
    return tuple(np.where(diverged[..., None, None], np.nan, factor) for factor in factors)
