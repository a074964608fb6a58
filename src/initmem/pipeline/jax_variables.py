"""The parameters of a JAX pytree (flax, equinox, plain dicts): which are kernels, and with what fan-in.

A pytree is immutable. `Init.apply` returns a new one, and the tracker is shown the newest after an update.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from initmem.errors import ConfigError, ModelError
from initmem.train.variables import Choice, Kernels, Place, Role, Variable, choice

KERNELS = ("kernel", "w", "W", "weight", "weights")  # of flax and of plain dicts: (in, ..., out)
BIASES = ("bias", "b", "biases")
PROJECTIONS = ("query", "key", "value")  # of attention in flax: (in, heads, features)


def is_pytree(model: Any) -> bool:
    """Whether something is a pytree with parameters in it; without JAX nothing is."""
    jax = sys.modules.get("jax")
    if jax is None or isinstance(model, torch.nn.Module):
        return False
    return any(_is_parameter(leaf) for leaf in jax.tree.leaves(model))


class Leaves:
    """The leaves of a pytree by path; what is set stands here until the tree is put together again."""

    def __init__(self, tree: Any) -> None:
        import jax

        paths, self._structure = jax.tree_util.tree_flatten_with_path(tree)
        self.paths = [path for path, _ in paths]
        self.values = [value for _, value in paths]
        self._newest: Any = None  # not looked at yet

    def tree(self) -> Any:
        """The pytree with its present values."""
        import jax

        return jax.tree.unflatten(self._structure, self.values)

    def follow(self, tree: Any) -> None:
        """Take the values of a newer tree, when somebody asks for them."""
        self._newest = tree

    def value(self, index: int) -> Any:
        """The present value of a leaf."""
        if self._newest is not None:
            newest, self._newest = Leaves(self._newest), None
            known = {_name(path): value for path, value in zip(newest.paths, newest.values, strict=True)}
            for i, path in enumerate(self.paths):
                if _is_parameter(self.values[i]) and _name(path) not in known:
                    raise ConfigError(f"model: it has no {_name(path)} (allowed: the tree given to attach)")
                self.values[i] = known.get(_name(path), self.values[i])
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
        """Draw it anew."""
        import jax.numpy as jnp

        now = self.leaves.values[self.index]
        self.leaves.values[self.index] = jnp.asarray(values.reshape(now.shape), dtype=now.dtype)

    def rescale(self, factor: float) -> None:
        """Multiply it."""
        now = self.leaves.values[self.index]
        self.leaves.values[self.index] = (now * factor).astype(now.dtype)

    def follow(self, model: Any) -> None:
        """Look at a newer tree from now on."""
        self.leaves.follow(model)


def jax_variables(tree: Any, kernels: Kernels = None) -> list[Variable]:
    """Every array of floating-point numbers in a pytree once."""
    leaves = Leaves(tree)
    choose = choice(kernels, _usual, _plain)
    by_leaf: dict[int, Variable] = {}
    last = None
    for variable in _variables(tree, leaves, choose, explicit=kernels is not None):
        key = id(variable.place.parameters[0])
        by_leaf.setdefault(key, variable)
        last = key if variable.role == "kernel" else last
    choose.check(variable.name for variable in by_leaf.values())
    return [replace(v, is_output=key == last) for key, v in by_leaf.items()]


def rebuilt(variables: tuple[Variable, ...]) -> Any:
    """The pytree of variables that were set."""
    place = variables[0].place
    if not isinstance(place, PytreePlace):
        raise ModelError(f"{variables[0].name}: not a leaf of a pytree")
    return place.leaves.tree()


def _variables(tree: Any, leaves: Leaves, choose: Choice, *, explicit: bool) -> Iterator[Variable]:
    parents = [_at(tree, path[:-1]) for path in leaves.paths]
    chosen = [
        choose(_name(path), value, parent) if _is_parameter(value) else None
        for path, value, parent in zip(leaves.paths, leaves.values, parents, strict=True)
    ]
    with_kernel = {id(parent) for parent, fan_in in zip(parents, chosen, strict=True) if fan_in is not None}
    for index, (path, value, parent, fan_in) in enumerate(
        zip(leaves.paths, leaves.values, parents, chosen, strict=True)
    ):
        if not _is_parameter(value):
            continue
        name = _name(path)
        role, note = _role(name, value, parent, fan_in, id(parent) in with_kernel, explicit=explicit)
        yield Variable(name, tuple(value.shape), role, fan_in, note, PytreePlace(leaves, index))


def _role(
    name: str, value: Any, parent: Any, fan_in: float | None, has_kernel: bool, *, explicit: bool
) -> tuple[Role, str]:
    if fan_in is not None:
        return "kernel", ""
    key = _last(name)
    if "norm" in type(parent).__name__.lower() or key == "scale" or _has_scale(parent):
        return "norm", "left as it is"
    if has_kernel and (key in BIASES or "bias" in key):
        return "bias", ""
    if explicit:
        return "other", "left as it is: not chosen as a kernel"
    return "other", f"left as it is: no rule for {name} (name it in `kernels` to redraw it)"


def _usual(name: str, value: Any, parent: Any) -> float | None:
    """How many inputs feed one output through a kernel; None: this is no kernel of a known layer."""
    key, shape = _last(name), tuple(value.shape)
    kind = type(parent)
    if "norm" in kind.__name__.lower():
        return None
    if kind.__module__.startswith("equinox"):  # (out, in, ...)
        if "Embedding" in kind.__name__:
            return 1.0 if key == "weight" else None
        return float(math.prod(shape[1:])) if key.startswith("weight") and len(shape) > 1 else None
    if not isinstance(parent, Mapping | list | tuple):
        return None  # a class of user code: only the user knows its axes
    if key == "embedding":
        return 1.0  # one row is looked up, not a sum over rows
    if key not in KERNELS or len(shape) < 2:
        return None
    if len(shape) == 3 and name.split(".")[-2:-1] and name.split(".")[-2] in PROJECTIONS:
        return float(shape[0])
    return _plain(value)


def _plain(value: Any) -> float:
    """(in, ..., out): as `x @ w` has it."""
    return float(math.prod(value.shape[:-1]))


def _is_parameter(leaf: Any) -> bool:
    jax = sys.modules["jax"]
    return isinstance(leaf, jax.Array | np.ndarray) and jax.dtypes.issubdtype(leaf.dtype, np.floating)


def _has_scale(parent: Any) -> bool:
    return isinstance(parent, Mapping) and "scale" in parent and "kernel" not in parent


def _at(tree: Any, path: tuple[Any, ...]) -> Any:
    """What stands at a path."""
    for key in path:
        name = _key(key)
        tree = getattr(tree, name) if isinstance(name, str) and not isinstance(tree, Mapping) else tree[name]
    return tree


def _key(key: Any) -> Any:
    """The name or number behind one of JAX's keys."""
    return getattr(key, "name", getattr(key, "key", getattr(key, "idx", key)))


def _name(path: tuple[Any, ...]) -> str:
    return ".".join(str(_key(key)) for key in path)


def _last(name: str) -> str:
    return name.rpartition(".")[2]
