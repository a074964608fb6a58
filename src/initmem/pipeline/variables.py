"""Which parameters of a model are kernels, which are biases, and which are neither.

A kernel is what the initialization scale multiplies and the recorded norm counts. Every parameter of a
model gets a role, so that nothing is skipped in silence.
"""

from __future__ import annotations

import fnmatch
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from initmem.errors import ModelError, allowed

Role = Literal["kernel", "bias", "norm", "frozen", "other", "stuck"]

# A function of (name, parameter, its module): the fan-in of a kernel, True for the usual fan-in, or False.
Chooser = Callable[[str, Any, Any], float | None]
Kernels = Chooser | type | str | Iterable[type | str] | None


class Place(ABC):
    """Where a parameter lives: how a framework has it read and written."""

    @property
    @abstractmethod
    def parameters(self) -> tuple[Any, ...]:
        """The objects that are trained, by which a parameter is known again."""

    @abstractmethod
    def value(self) -> Tensor:
        """What the model computes with."""

    @abstractmethod
    def set(self, values: NDArray[np.float64]) -> None:
        """Give it these values, in its own precision and on its own device."""

    @abstractmethod
    def rescale(self, factor: float) -> None:
        """Multiply it."""

    @abstractmethod
    def follow(self, model: Any) -> None:
        """Look at a newer version of the model, where a framework does not change models in place."""


@dataclass(frozen=True, slots=True)
class Variable:
    """One parameter of a model, and what initialization makes of it."""

    name: str
    shape: tuple[int, ...]
    role: Role
    fan_in: float | None  # of a kernel
    note: str  # why it is left alone, or what else there is to know
    place: Place = field(repr=False)
    also: tuple[str, ...] = ()  # its other names, if it is tied
    is_output: bool = False  # the kernel of the last layer


def variables(model: Any, kernels: Kernels = None) -> list[Variable]:
    """Every parameter of a model once, in the order in which initialization draws them.

    `kernels` says which parameters count as kernels: module types and patterns of parameter names in any
    mixture (`[nn.Linear, "blocks.*.mixing"]`), or a function. Without it: the kernels of the layers that
    the framework has, as far as they are trained.
    """
    if is_keras(model):
        from initmem.pipeline.keras_variables import keras_variables

        return keras_variables(model, kernels)
    from initmem.pipeline.jax_variables import is_pytree, jax_variables
    from initmem.pipeline.torch_variables import torch_variables

    if is_pytree(model):
        return jax_variables(model, kernels)

    return torch_variables(model, kernels)


def kernel_variables(model: Any, kernels: Kernels = None) -> list[Variable]:
    """The kernels of a model alone."""
    return [variable for variable in variables(model, kernels) if variable.role == "kernel"]


@dataclass(frozen=True, slots=True)
class Choice:
    """Which parameters are kernels: called with (name, value, layer), it gives the fan-in, or None."""

    choose: Chooser
    usual: Chooser  # the fan-in in the layers that a framework has
    plain: Callable[[Any], float]  # the fan-in of a kernel that only its user knows
    patterns: tuple[str, ...]

    def __call__(self, name: str, value: Any, layer: Any) -> float | None:
        """The fan-in of a kernel; None: it is none."""
        chosen = self.choose(name, value, layer)
        if chosen is None or chosen is False:
            return None
        if chosen is not True:
            return float(chosen)
        usual = self.usual(name, value, layer)
        return self.plain(value) if usual is None else usual

    def check(self, names: Iterable[str]) -> None:
        """Refuse patterns that match nothing."""
        known = list(names)
        for pattern in self.patterns:
            if not fnmatch.filter(known, pattern):
                raise ModelError(f"kernels: no parameter is named {pattern!r} ({allowed(known)})")


def choice(kernels: Kernels, usual: Chooser, plain: Callable[[Any], float]) -> Choice:
    """Read what a user said about kernels."""
    if kernels is None:
        return Choice(usual, usual, plain, ())
    if callable(kernels) and not isinstance(kernels, type):
        return Choice(kernels, usual, plain, ())
    said = [kernels] if isinstance(kernels, str | type) else list(kernels)
    types = tuple(item for item in said if isinstance(item, type))
    patterns = tuple(item for item in said if isinstance(item, str))

    def choose(name: str, value: Any, layer: Any) -> bool:
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            return True
        if not isinstance(layer, types):
            return False
        unknown = len(value.shape) >= 2 and "bias" not in name.rpartition(".")[2]
        return usual(name, value, layer) is not None or unknown

    return Choice(choose, usual, plain, patterns)


def is_keras(model: Any) -> bool:
    """Whether a model is one of Keras; with its torch backend it is a torch module as well."""
    kinds = type(model).__mro__
    return any(kind.__module__.startswith("keras.") and kind.__name__ == "Layer" for kind in kinds)
