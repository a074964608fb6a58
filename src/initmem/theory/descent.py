"""Discrete dynamics: how optimizers move a linear network, for many trajectories at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from initmem.errors import ConfigError
from initmem.recipe import Recipe
from initmem.theory.linear import Path, checked_gradient, has_diverged, layer_gradients, network, product
from initmem.theory.losses import Array, Estimate, Factors, require

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
