"""Which parameters of a model are kernels, which are biases, and which are neither.

A kernel is what the initialization scale multiplies and the recorded norm counts. Every parameter of a
model gets a role, so that nothing is skipped in silence.
"""

from __future__ import annotations

import fnmatch
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from initmem.errors import ModelError, allowed
from initmem.train.init import Layout

Role = Literal["kernel", "bias", "norm", "frozen", "other", "stuck"]

# A function of (name, parameter, its module): the fan-in of a kernel, True for the usual fan-in, or False.
Chooser = Callable[[str, Any, Any], float | bool | None]  # True: a kernel whose fan-in follows from its layer
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


def layout_of(variables: Sequence[Variable]) -> Layout:
    """The variables of a model, for `scaled` to choose from."""
    names = {role: [(v.name, *v.also) for v in variables if v.role == role] for role in ("kernel", "bias")}
    fan_ins = [v.fan_in or 1.0 for v in variables if v.role == "kernel"]
    (output,) = [(v.name, *v.also) for v in variables if v.is_output]
    return Layout(dict(zip(names["kernel"], fan_ins, strict=True)), names["bias"], output)


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
        return self.plain(value) if usual is None else float(usual)

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
