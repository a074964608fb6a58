"""The linear lab: why initialization is remembered, and what erases it.

This module is its core: linear networks W = W_L ... W_1 in float64, their losses, their imbalance, gradient
flow and descent. The experiments have modules of their own. Importing the package loads neither scipy nor
torch nor matplotlib.

    >>> from initmem.theory import descend, network, optimizer, square
    >>> path = descend(network([[6.0]], [[1.0]]), square([[1.0]]), optimizer("sgd"), 0.04, 20)
    >>> print(f"D = {-path.imbalances[0][-1].item():.2f}")
    D = -3.07

Every array may have leading axes, written `...`, with one entry per trajectory, so that a whole sweep is
computed at once. Factors are listed from input to output, W_1 first; the two-factor network W = U V is the
pair `(V, U)`.

What initialization leaves behind in such a network is its *imbalance*: the difference of the two Gram
matrices at a hidden layer. Gradient flow cannot change it. `propositions` shows which mechanisms can, and on
which clock.

A loss is a function of the product W. The gradients of the layers follow from that of the product by the
chain rule, which is why the first-order terms in the change of the imbalance cancel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from initmem.errors import ConfigError
from initmem.recipe import Recipe

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Factors = tuple[Array, ...]
# A gradient with respect to the product, exact or estimated, at update k.
Estimate = Callable[[int, Array], Array]


def require(holds: bool, message: str) -> None:
    """Raise a `ConfigError` with this message unless the condition holds."""
    if not holds:
        raise ConfigError(message)


def matrix_sum(matrices: Array) -> Array:
    """Sum over the last two axes: (..., rows, columns) to (...)."""
    return np.asarray(np.sum(matrices, axis=(-2, -1)))


@dataclass(frozen=True)
class Loss:
    """A differentiable function of the product.

    `value` maps (..., d_out, d_in) to (...); `gradient` maps it to an array of the same shape.
    """

    value: Callable[[Array], Array]
    gradient: Callable[[Array], Array]

    def __call__(self, k: int, product: Array) -> Array:
        """The gradient at update k: a loss is an estimate without noise."""
        return self.gradient(product)


def square(target: ArrayLike) -> Loss:
    """The squared Frobenius distance between the product and `target`, (..., d_out, d_in)."""
    goal = np.asarray(target, dtype=np.float64)
    return Loss(
        lambda product: matrix_sum((product - goal) ** 2),
        lambda product: 2.0 * (product - goal),
    )


def regression(inputs: ArrayLike, outputs: ArrayLike) -> Loss:
    """Half the mean squared error of W x against y.

    `inputs` is (..., sample, d_in) and `outputs` (..., sample, d_out).
    """
    x, y = _samples(inputs, outputs)
    count: int = x.shape[-2]

    def residual(product: Array) -> Array:
        return _predicted(product, x, y) - y

    return Loss(
        lambda product: matrix_sum(residual(product) ** 2) / (2 * count),
        lambda product: residual(product).mT @ x / count,
    )


def logistic(inputs: ArrayLike, labels: ArrayLike) -> Loss:
    """Mean logistic loss of W x for labels -1 and +1, summed over the outputs.

    `inputs` is (..., sample, d_in) and `labels` (..., sample, d_out).
    """
    x, y = _samples(inputs, labels)
    require(bool(np.all(np.abs(y) == 1)), "labels: allowed: -1 and +1")
    count: int = x.shape[-2]

    def value(product: Array) -> Array:
        return matrix_sum(np.logaddexp(0.0, -y * _predicted(product, x, y))) / count

    def gradient(product: Array) -> Array:
        # The sigmoid by way of tanh, which does not overflow at large margins.
        wrong: Array = 0.5 * (1.0 - np.tanh(y * _predicted(product, x, y) / 2))
        return -(y * wrong).mT @ x / count

    return Loss(value, gradient)


def minibatch(loss_of: Callable[[Integers], Loss], batches: Sequence[Integers] | Integers) -> Estimate:
    """A gradient estimate that uses only the samples `batches[k]` at update k.

    Each entry of `batches` is (..., sample), as in `rng.integers(n, size=(steps, b))`: leading axes give
    every trajectory its own batch.
    """

    def estimate(k: int, product: Array) -> Array:
        require(k < len(batches), f"steps: update {k} has no minibatch; {len(batches)} were given")
        return loss_of(batches[k]).gradient(product)

    return estimate


def _samples(inputs: ArrayLike, outputs: ArrayLike) -> tuple[Array, Array]:
    x, y = np.asarray(inputs, dtype=np.float64), np.asarray(outputs, dtype=np.float64)
    require(
        x.ndim >= 2 and y.ndim >= 2 and x.shape[-2] == y.shape[-2] > 0,
        f"loss: inputs {x.shape} and outputs {y.shape}; "
        "allowed: (..., sample, d_in) and (..., sample, d_out) with equal numbers of samples",
    )
    return x, y


def _predicted(product: Array, x: Array, y: Array) -> Array:
    """W x for every sample, (..., sample, d_out)."""
    shape = (y.shape[-1], x.shape[-1])
    require(
        product.shape[-2:] == shape,
        f"product: shape {product.shape}; allowed: (..., {shape[0]}, {shape[1]}) for these data",
    )
    return x @ product.mT


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
    moments = np.atleast_1d(np.asarray(times, dtype=np.float64))
    require(
        moments.size > 0 and moments[0] >= 0 < moments[-1] and bool(np.all(np.diff(moments) > 0)),
        f"times: {times!r}; allowed: increasing numbers >= 0, the last one > 0",
    )
    require(decay >= 0, f"decay: {decay}; allowed: >= 0")
    shapes = [factor.shape for factor in factors]
    ends = np.cumsum([factor.size for factor in factors])[:-1]

    def pack(layers: Factors) -> Array:
        return np.concatenate([layer.ravel() for layer in layers])

    def unpack(flat: Array) -> Factors:
        return tuple(p.reshape(s) for p, s in zip(np.split(flat, ends), shapes, strict=True))

    def velocity(_: float, flat: Array) -> Array:
        layers = unpack(flat)
        gradient = checked_gradient(loss.gradient, product(layers))
        return -pack(layer_gradients(layers, gradient)) - decay * flat

    with np.errstate(all="ignore"):
        solution = solve_ivp(
            velocity,
            (0.0, float(moments[-1])),
            pack(factors),
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
    return np.asarray(np.logical_or.reduce(beyond))


# Applies update k, from 0, in place: its arguments are the gradients of the layers, the learning rate and k.
Step = Callable[[Factors, float, int], None]
# An optimizer: it starts at the factors, which its steps then change.
Rule = Callable[[Factors], Step]


def optimizer(name: str, **settings: Any) -> Rule:
    """An optimizer of `initmem.train` by its name, with its settings as in a recipe.

    For instance `optimizer("adam", beta2=0.99)`. Decoupled weight decay is zero unless given.
    """
    recipe = Recipe.parse({"optimizer": name, "weight_decay": 0.0} | settings)

    def start(factors: Factors) -> Step:
        import torch

        from initmem.train.optimizers import optimizer_for

        def tensors(arrays: Factors) -> list[torch.Tensor]:
            """Views of (..., rows, columns) in the layout of a pack, (trajectory * rows, columns)."""
            return [torch.from_numpy(array.reshape(-1, array.shape[-1])) for array in arrays]

        trajectories = prod(factors[0].shape[:-2])
        chosen = optimizer_for(recipe, tensors(factors), trajectories)
        return lambda gradients, rate, k: chosen.step(tensors(gradients), rate, k + 1)

    return start


def preconditioned(precondition: Callable[[int, Array], Array]) -> Rule:
    """W_j <- W_j - rate P(j, H_j) for a given map P; j counts from 1."""

    def start(factors: Factors) -> Step:
        def step(gradients: Factors, rate: float, k: int) -> None:
            for j, (w, h) in enumerate(zip(factors, gradients, strict=True), start=1):
                q = precondition(j, h)
                require(
                    np.shape(q) == h.shape,
                    f"precondition: shape {np.shape(q)} for layer {j}; allowed: {h.shape}",
                )
                w -= rate * q

        return step

    return start


def descend(
    factors: Factors,
    gradient: Estimate,
    rule: Rule,
    rates: ArrayLike,
    steps: int,
    *,
    decay: ArrayLike = 0.0,
    every: int = 1,
    watch: Callable[[int, Factors], None] | None = None,
) -> Path:
    """Make `steps` updates; record the factors at the start, every `every` updates and at the end.

    `gradient` is a loss, or an estimate of the gradient of the product at update k. `rates` is one learning
    rate, or one per step, (step,). `decay`, a number or one per trajectory, (...), is coupled: it adds
    decay W_j to the gradient of layer j, so that plain gradient descent multiplies W_j by (1 - rate decay). A
    trajectory that diverges is marked in `diverged` and does not affect the others. `watch(k, factors)` is
    called before every update k, which then changes the factors, and may raise to stop.
    """
    factors = network(*factors)
    require(steps >= 1 and every >= 1, f"steps: {steps}, every: {every}; allowed: 1 or more")
    schedule, shrink = _checked("rates", rates, (steps,)), _checked("decay", decay, factors[0].shape[:-2])
    step, diverged = rule(factors), has_diverged(factors)
    times, kept = [0], [tuple(factor.copy() for factor in factors)]
    with np.errstate(all="ignore"):
        for k in range(steps):
            if watch is not None:
                watch(k, factors)
            of_product = checked_gradient(partial(gradient, k), product(factors))
            of_layers = layer_gradients(factors, of_product)
            pulled = (h + shrink[..., None, None] * w for h, w in zip(of_layers, factors, strict=True))
            step(tuple(pulled), float(schedule[k]), k)
            if (k + 1) % every == 0 or k + 1 == steps:
                diverged = diverged | has_diverged(factors)
                times.append(k + 1)
                kept.append(tuple(np.where(diverged[..., None, None], np.nan, factor) for factor in factors))
    recorded = tuple(np.stack(layer) for layer in zip(*kept, strict=True))
    return Path(np.array(times, dtype=np.float64), recorded, diverged)


def _checked(name: str, value: ArrayLike, shape: tuple[int, ...]) -> Array:
    """One number, or numbers of this shape, none negative."""
    array = np.asarray(value, dtype=np.float64)
    require(bool(np.all(array >= 0)), f"{name}: {array.tolist()}; allowed: numbers >= 0")
    try:
        return np.broadcast_to(array, shape)
    except ValueError:
        raise ConfigError(f"{name}: shape {array.shape}; allowed: one number, or {shape}") from None
