"""The linear lab: why initialization is remembered, and what erases it.

This module is its core: linear networks W = W_L ... W_1 in float64, their losses, their imbalance, gradient
flow and descent. The experiments have modules of their own. Importing the package loads neither scipy nor
torch nor matplotlib.

    >>> from itertools import repeat
    >>> from initmem.theory import descend, imbalances, network, optimizer, square
    >>> path = descend(network([[6.0]], [[1.0]]), repeat(square([[1.0]])), optimizer("sgd"), 0.04, 20)
    >>> print(f"D = {-imbalances(path)[0][-1].item():.2f}")
    D = -3.07

Every array may have leading axes, written `...`, with one entry per trajectory, so that a whole sweep is
computed at once. Factors are listed from input to output, W_1 first; the two-factor network W = U V is the
pair `(V, U)`. A recorded path is a network as well, whose first axis is time; from the time at which a
trajectory diverges, its factors are NaN.

What initialization leaves behind in such a network is its *imbalance*: the difference of the two Gram
matrices at a hidden layer. Gradient flow cannot change it. `propositions` shows which mechanisms can, and on
which clock.

A loss is a function of the product W. The gradients of the layers follow from that of the product by the
chain rule, which is why the first-order terms in the change of the imbalance cancel. Nothing but its gradient
moves a network, so here the gradient represents the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from itertools import accumulate, pairwise
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from initmem.errors import ConfigError
from initmem.recipe import Recipe

if TYPE_CHECKING:
    import torch

Array = NDArray[np.float64]
Factors = tuple[Array, ...]
# The gradient of a loss with respect to the product, (..., d_out, d_in), of the same shape.
Loss = Callable[[Array], Array]


def require(holds: bool, message: str) -> None:
    """Raise a `ConfigError` with this message unless the condition holds."""
    if not holds:
        raise ConfigError(message)


def square(target: ArrayLike) -> Loss:
    """The squared Frobenius distance between the product and `target`, (..., d_out, d_in)."""
    goal = np.asarray(target, dtype=np.float64)
    return lambda product: 2.0 * (product - goal)


def regression(inputs: Array, outputs: Array) -> Loss:
    """Half the mean squared error of W x against y: (..., sample, d_in) and (..., sample, d_out)."""
    return lambda product: (_predicted(product, inputs, outputs) - outputs).mT @ inputs / inputs.shape[-2]


def logistic(inputs: Array, labels: Array) -> Loss:
    """Mean logistic loss of W x for labels -1 and +1, summed over the outputs.

    `inputs` is (..., sample, d_in) and `labels` (..., sample, d_out).
    """
    require(bool(np.all(np.abs(labels) == 1)), "labels: allowed: -1 and +1")

    def loss(product: Array) -> Array:
        # The sigmoid by way of tanh, which does not overflow at large margins.
        wrong: Array = 0.5 * (1.0 - np.tanh(labels * _predicted(product, inputs, labels) / 2))
        gradient: Array = -(labels * wrong).mT @ inputs / inputs.shape[-2]
        return gradient

    return loss


def _predicted(product: Array, inputs: Array, outputs: Array) -> Array:
    """W x for every sample, (..., sample, d_out)."""
    predicted: Array = inputs @ product.mT
    sizes = predicted.shape[-2:], outputs.shape[-2:]
    require(sizes[0] == sizes[1], f"loss: outputs {sizes[0]} of the network and {sizes[1]} of the data")
    return predicted


def network(*factors: ArrayLike) -> Factors:
    """Check W_1, ..., W_L and return them as float64 arrays with equal leading axes."""
    arrays = tuple(np.asarray(factor, dtype=np.float64) for factor in factors)
    shapes = [array.shape for array in arrays]
    allowed = "two or more of (..., d_j, d_{j-1}), from W_1 to W_L, each with as many columns as rows below"
    chained = len(shapes) >= 2 and min(map(len, shapes)) >= 2
    chained = chained and all(upper[-1] == lower[-2] for lower, upper in pairwise(shapes))
    require(chained, f"factors: shapes {shapes}; allowed: {allowed}")
    lead = np.broadcast_shapes(*(shape[:-2] for shape in shapes))
    return tuple(np.array(np.broadcast_to(a, lead + a.shape[-2:]), order="C") for a in arrays)


def random_network(
    dims: Sequence[int], *, rng: np.random.Generator, scale: ArrayLike = 1.0, lead: tuple[int, ...] = ()
) -> Factors:
    """Draw W_j ~ N(0, scale^2 / d_{j-1}) for dims d_0 ... d_L; `scale` broadcasts over `lead`."""
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
    shape = (*factors[0].shape[:-2], factors[-1].shape[-2], factors[0].shape[-1])
    require(
        np.shape(gradient) == shape,
        f"gradient: shape {np.shape(gradient)}; allowed: {shape}, the shape of the product",
    )
    below = accumulate(factors[:-1], lambda inner, factor: factor @ inner)  # B_2 ... B_L
    gradients: list[Array] = []
    for factor, inner in zip(reversed(factors[1:]), reversed(list(below)), strict=True):
        gradients.append(gradient @ inner.mT)
        gradient = factor.mT @ gradient
    return (gradient, *reversed(gradients))


def gradient_flow(factors: Factors, loss: Loss, times: ArrayLike, *, decay: float = 0.0) -> Factors:
    """Integrate dW_j/dt = -H_j - decay W_j and record the factors at `times`, (time,).

    The solver is an explicit Runge-Kutta method of order 8 with error control, with one step size for all
    trajectories.
    """
    from scipy.integrate import solve_ivp

    factors = network(*factors)
    moments = np.atleast_1d(np.asarray(times, dtype=np.float64))
    require(
        moments.size > 0 and moments[0] >= 0 < moments[-1] and bool(np.all(np.diff(moments) > 0)),
        f"times: {times!r}; allowed: increasing numbers >= 0, the last one > 0",
    )
    shapes = [factor.shape for factor in factors]
    ends = np.cumsum([factor.size for factor in factors])[:-1]

    def pack(layers: Factors) -> Array:
        return np.concatenate([layer.ravel() for layer in layers])

    def unpack(flat: Array) -> Factors:
        return tuple(p.reshape(s) for p, s in zip(np.split(flat, ends), shapes, strict=True))

    def velocity(_: float, flat: Array) -> Array:
        layers = unpack(flat)
        return -pack(layer_gradients(layers, loss(product(layers)))) - decay * flat

    with np.errstate(all="ignore"):
        span, start = (0.0, float(moments[-1])), pack(factors)
        solution = solve_ivp(velocity, span, start, method="DOP853", t_eval=moments, rtol=1e-12, atol=1e-12)
    # A solution that ends early has diverged: the times it did not reach are NaN.
    states = np.full((len(moments), len(start)), np.nan)
    states[: solution.y.shape[1]] = solution.y.T
    return tuple(np.stack(layer) for layer in zip(*map(unpack, states), strict=True))


def has_diverged(factors: Factors) -> NDArray[np.bool_]:
    """Which trajectories, (...), have an entry that is not finite, or beyond 1e100."""
    # `not <=` rather than `>`, so that NaN counts as diverged.
    beyond = [~(np.abs(factor).max(axis=(-2, -1)) <= 1e100) for factor in factors]
    return np.asarray(np.logical_or.reduce(beyond))


def optimizer(name: str, **settings: Any) -> Recipe:
    """An optimizer of `initmem.train` by its name, with its settings as in a recipe.

    For instance `optimizer("adam", beta2=0.99)`. Decoupled weight decay is zero unless given.
    """
    return Recipe.parse({"optimizer": name, "weight_decay": 0.0} | settings)


def _tensors(arrays: Iterable[Array]) -> list[torch.Tensor]:
    """Views of (..., rows, columns) in the layout of a pack, (trajectory * rows, columns)."""
    import torch

    return [torch.from_numpy(array.reshape(-1, array.shape[-1])) for array in arrays]


def descend(
    factors: Factors,
    losses: Iterable[Loss],
    rule: Recipe,
    rates: ArrayLike,
    steps: int,
    *,
    decay: ArrayLike = 0.0,
    every: int = 1,
) -> Factors:
    """Make `steps` updates; record the factors at the start, every `every` updates and at the end.

    `losses` holds a loss for every update, `repeat(loss)` for always the same. `rule` is an `optimizer`.
    `rates` is one learning rate, or one per step, (step,). `decay`, a number or one per trajectory, (...), is
    coupled: it adds decay W_j to the gradient of layer j, so that plain gradient descent multiplies W_j by
    (1 - rate decay). A trajectory that diverges does not affect the others.
    """
    from initmem.train.optimizers import optimizer_for

    factors = network(*factors)
    require(steps >= 1 and every >= 1, f"steps: {steps}, every: {every}; allowed: 1 or more")
    schedule, shrink = _checked("rates", rates, (steps,)), _checked("decay", decay, factors[0].shape[:-2])
    chosen = optimizer_for(rule, _tensors(factors), prod(factors[0].shape[:-2]))
    diverged = has_diverged(factors)
    k, kept = -1, [tuple(factor.copy() for factor in factors)]
    with np.errstate(all="ignore"):
        for k, loss in zip(range(steps), losses, strict=False):
            gradients = layer_gradients(factors, loss(product(factors)))
            pulled = (h + shrink[..., None, None] * w for h, w in zip(gradients, factors, strict=True))
            chosen.step(_tensors(pulled), float(schedule[k]), k + 1)
            if (k + 1) % every == 0 or k + 1 == steps:
                diverged = diverged | has_diverged(factors)
                kept.append(tuple(np.where(diverged[..., None, None], np.nan, factor) for factor in factors))
    require(k + 1 == steps, f"losses: {k + 1}; allowed: one for each of the {steps} steps")
    return tuple(np.stack(layer) for layer in zip(*kept, strict=True))


def _checked(name: str, value: ArrayLike, shape: tuple[int, ...]) -> Array:
    """One number, or numbers of this shape, none negative."""
    array = np.asarray(value, dtype=np.float64)
    require(bool(np.all(array >= 0)), f"{name}: {array.tolist()}; allowed: numbers >= 0")
    try:
        return np.broadcast_to(array, shape)
    except ValueError:
        raise ConfigError(f"{name}: shape {array.shape}; allowed: one number, or {shape}") from None
