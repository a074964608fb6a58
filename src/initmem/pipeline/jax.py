"""For training loops in JAX with optax, and models that are pytrees: flax, equinox, dicts, lists of (w, b).

    def train(init, tracker):
        params = init.apply(make_params())               # a new pytree, for this scale and seed
        optimizer = optax.inject_hyperparams(optax.sgd)(learning_rate=schedule)
        state = optimizer.init(params)
        tracker.attach(params, batch_size=32)
        for epoch in range(10):
            for batch in batches:
                params, state = update(params, state, batch)
                tracker.step(learning_rate(state), model=params)
            tracker.end_epoch(val_loss=...)

`tracker.step` also takes an array of rates, for updates that were made within `jax.lax.scan`. A pytree is
immutable: `Init.apply` returns a new one, and the tracker is shown the newest after an update.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from initmem.errors import ConfigError
from initmem.train.variables import Kernels, Parameter, Place, Variable, classified, looks_like_norm

KERNELS = ("kernel", "w", "W", "weight", "weights")  # of flax and of plain dicts: (in, ..., out)
BIASES = ("bias", "b", "biases")
PROJECTIONS = ("query", "key", "value")  # of attention in flax: (in, heads, features)


def learning_rate(state: Any) -> float:
    """The learning rate of the last update, from the state of an `optax.inject_hyperparams` optimizer."""
    waiting = [state]
    while waiting:
        part = waiting.pop(0)
        hyperparams = getattr(part, "hyperparams", None)
        if isinstance(hyperparams, dict) and "learning_rate" in hyperparams:
            return float(hyperparams["learning_rate"])
        waiting[:0] = part if isinstance(part, tuple | list) else ()
    raise ConfigError("state: no learning rate in it (allowed: optax.inject_hyperparams(optimizer)(...))")


def has_parameters(tree: Any) -> bool:
    """Whether a pytree has arrays of floating-point numbers in it."""
    return any(_is_parameter(leaf) for leaf in sys.modules["jax"].tree.leaves(tree))


def jax_variables(tree: Any, kernels: Kernels = None) -> list[Variable]:
    """Every array of floating-point numbers in a pytree once."""
    leaves, parameters = Leaves(tree), []
    for index, (path, name, value) in enumerate(zip(leaves.paths, leaves.names, leaves.values, strict=True)):
        if not _is_parameter(value):
            continue
        parent, key = _at(tree, path[:-1]), name.rpartition(".")[2]
        has_scale = isinstance(parent, Mapping) and "scale" in parent and "kernel" not in parent
        parameters.append(
            Parameter(
                name,
                value,
                layer=parent,
                label=name,
                is_norm=_is_norm(parent) or key == "scale" or has_scale,
                is_bias=key in BIASES or "bias" in key or _is_listed_bias(parent, key, value),
                is_frozen=False,
                place=PytreePlace(leaves, index),
            )
        )
    return classified(parameters, kernels, _usual_fan_in)


def rebuilt(variables: Sequence[Variable]) -> Any:
    """The pytree of variables that were set."""
    import jax

    leaves = cast("PytreePlace", variables[0].place).leaves
    return jax.tree.unflatten(leaves.structure, leaves.values)


class Leaves:
    """The leaves of a pytree by name; what is set stays here until the tree is put together again."""

    def __init__(self, tree: Any) -> None:
        import jax

        paths, self.structure = jax.tree_util.tree_flatten_with_path(tree)
        self.paths = [path for path, _ in paths]
        self.names = [".".join(str(_key(key)) for key in path) for path in self.paths]
        self.values = [value for _, value in paths]
        self.newest: Any = None  # a newer tree, read when somebody asks for a value

    def value(self, index: int) -> Any:
        """The present value of a leaf."""
        if self.newest is not None:
            newest, self.newest = Leaves(self.newest), None
            by_name = dict(zip(newest.names, newest.values, strict=True))
            for i, name in enumerate(self.names):
                if _is_parameter(self.values[i]) and name not in by_name:
                    raise ConfigError(f"model: it has no {name} (allowed: the tree given to attach)")
                self.values[i] = by_name.get(name, self.values[i])
        return self.values[index]


@dataclass(frozen=True, slots=True)
class PytreePlace(Place):
    """A leaf of a pytree."""

    leaves: Leaves
    index: int

    @property
    def parameters(self) -> tuple[Any, ...]:
        """The array itself."""
        return (self.leaves.values[self.index],)

    def value(self) -> Tensor:
        """Its values, copied from wherever JAX keeps them."""
        return torch.from_numpy(np.array(self.leaves.value(self.index), dtype=np.float32))

    def set(self, values: NDArray[np.float64]) -> None:
        """Redraw it; an array of NumPy stays one."""
        import jax.numpy as jnp

        now = self.leaves.values[self.index]
        drawn = values.reshape(now.shape).astype(now.dtype)
        self.leaves.values[self.index] = drawn if isinstance(now, np.ndarray) else jnp.asarray(drawn)

    def rescale(self, factor: float | NDArray[np.float64]) -> None:
        """Multiply it."""
        now = self.leaves.values[self.index]
        by = factor if isinstance(factor, float) else factor.astype(now.dtype)
        self.leaves.values[self.index] = (now * by).astype(now.dtype)

    def follow(self, model: Any) -> None:
        """Look at a newer tree from now on."""
        self.leaves.newest = model


def _usual_fan_in(name: str, value: Any, parent: Any) -> float | None:
    """How many inputs feed one output through a kernel; None: this is no kernel of a known layer."""
    *path, key = name.split(".")
    shape = tuple(value.shape)
    if _is_norm(parent):
        return None
    if (kind := _equinox_layer(parent)) is not None:  # (out, in, ...)
        if "Embedding" in kind.__name__:
            return 1.0 if key == "weight" else None
        return float(math.prod(shape[1:])) if key.startswith("weight") and len(shape) > 1 else None
    if not isinstance(parent, Mapping | list | tuple):
        return None  # a class of user code: only the user knows its axes
    if key == "embedding":
        return 1.0  # one row is looked up, not a sum over rows
    listed = key.isdigit() and not _is_listed_bias(parent, key, value)  # as in stax: (kernel, bias)
    if len(shape) < 2 or not (listed or key in KERNELS):
        return None
    if len(shape) == 3 and path and path[-1] in PROJECTIONS:
        return float(shape[0])
    return float(math.prod(shape[:-1]))  # (in, ..., out), as in `x @ kernel`


def _is_listed_bias(parent: Any, key: str, value: Any) -> bool:
    """Whether an array that follows a kernel in a list is its bias: of one axis, but for axes of length 1."""
    if not isinstance(parent, list | tuple) or not key.isdigit():
        return False
    return len(value.shape) < 2 or (key != "0" and len(value.shape) > 2 and math.prod(value.shape[:-1]) == 1)


def _equinox_layer(parent: Any) -> type | None:
    """The layer of equinox that something is, or inherits from."""
    return next((kind for kind in type(parent).__mro__ if kind.__module__.startswith("equinox.nn")), None)


def _is_norm(parent: Any) -> bool:
    if isinstance(parent, Mapping | list | tuple):
        return False
    if (kind := _equinox_layer(parent)) is not None:
        return kind.__name__.endswith("Norm")
    shapes = [tuple(leaf.shape) for leaf in sys.modules["jax"].tree.leaves(parent) if _is_parameter(leaf)]
    return looks_like_norm(type(parent), shapes)


def _is_parameter(leaf: Any) -> bool:
    jax = sys.modules["jax"]
    return isinstance(leaf, jax.Array | np.ndarray) and jax.dtypes.issubdtype(leaf.dtype, np.floating)


def _at(tree: Any, path: tuple[Any, ...]) -> Any:
    """The part of a tree at a path."""
    for key in map(_key, path):
        tree = getattr(tree, key) if isinstance(key, str) and not isinstance(tree, Mapping) else tree[key]
    return tree


def _key(key: Any) -> Any:
    """The name or number behind one of JAX's keys."""
    return getattr(key, "name", getattr(key, "key", getattr(key, "idx", key)))
