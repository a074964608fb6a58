"""The parameters of a Keras model, whatever its backend: which are kernels, and with what fan-in."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from initmem.errors import ModelError
from initmem.train.variables import Choice, Kernels, Place, Role, Variable, choice

DEPTHWISE = (keras.layers.DepthwiseConv1D, keras.layers.DepthwiseConv2D)
TRANSPOSED = (keras.layers.Conv1DTranspose, keras.layers.Conv2DTranspose, keras.layers.Conv3DTranspose)


@dataclass(frozen=True, slots=True)
class KerasPlace(Place):
    """A variable of Keras."""

    variable: Any

    @property
    def parameters(self) -> tuple[Any, ...]:
        """The variable itself."""
        return (self.variable,)

    def value(self) -> Tensor:
        """Its values, copied from wherever the backend keeps them."""
        values = keras.ops.convert_to_numpy(keras.ops.cast(self.variable, "float32"))
        return torch.from_numpy(np.array(values))

    def set(self, values: NDArray[np.float64]) -> None:
        """Draw it anew."""
        self.variable.assign(values)

    def rescale(self, factor: float) -> None:
        """Multiply it."""
        self.variable.assign(self.variable * factor)

    def follow(self, model: Any) -> None:
        """Nothing to do: parameters change in place."""


def keras_variables(model: Any, kernels: Kernels = None) -> list[Variable]:
    """Every trained variable of a Keras model once; names have dots where Keras has slashes."""
    if not model.built:
        raise ModelError(f"{model.name} has no variables yet (allowed: build it, or call it on one batch)")
    choose = choice(kernels, _usual, _plain)
    by_id: dict[int, Variable] = {}
    last = None
    for layer in model._flatten_layers():
        for variable in _of_layer(layer, f"{model.name}.", choose, explicit=kernels is not None):
            key = id(variable.place.parameters[0])
            by_id.setdefault(key, variable)
            last = key if variable.role == "kernel" else last
    choose.check(v.name for v in by_id.values())
    return [replace(v, is_output=key == last) for key, v in by_id.items()]


def _of_layer(layer: Any, prefix: str, choose: Choice, *, explicit: bool) -> Iterator[Variable]:
    own = [(variable, _name(variable, prefix)) for variable in layer._trainable_variables]
    fan_ins = {name: choose(name, variable, layer) for variable, name in own}
    has_kernel = any(fan_in is not None for fan_in in fan_ins.values())
    for variable, name in own:
        role, note = _role(layer, variable, fan_ins[name], has_kernel=has_kernel, explicit=explicit)
        fan_in = fan_ins[name] if role == "kernel" else None
        yield Variable(name, tuple(variable.shape), role, fan_in, note, KerasPlace(variable))


def _role(
    layer: Any, variable: Any, fan_in: float | None, *, has_kernel: bool, explicit: bool
) -> tuple[Role, str]:
    frozen = not (variable.trainable and layer.trainable)
    if fan_in is not None:
        if frozen and not explicit:
            return "frozen", "left as it is: not trained (name it in `kernels` to redraw it)"
        return "kernel", ""
    if "norm" in type(layer).__name__.lower():
        return "norm", "left as it is"
    if has_kernel and "bias" in variable.name:
        return ("frozen", "left as it is: not trained") if frozen else ("bias", "")
    kind = type(layer).__name__
    return "other", f"left as it is: no rule for {kind}.{variable.name} (name it in `kernels` to redraw it)"


def _name(variable: Any, prefix: str) -> str:
    """Without the name of the model, which Keras counts up from one to the next."""
    return str(variable.path).replace("/", ".").removeprefix(prefix)


def _usual(name: str, variable: Any, layer: Any) -> float | None:
    """How many inputs feed one output through a kernel; None: this is no kernel of a known layer."""
    shape = tuple(variable.shape)
    match variable.name:
        case "embeddings":
            return 1.0  # one row is looked up, not a sum over rows
        case "recurrent_kernel":
            return float(shape[0])
        case "depthwise_kernel":
            return float(math.prod(shape[:-2]))
        case "pointwise_kernel":
            return _plain(variable)
        case "kernel":
            return _kernel_fan_in(layer, shape)
        case _:
            return None


def _kernel_fan_in(layer: Any, shape: tuple[int, ...]) -> float:
    if isinstance(layer, keras.layers.EinsumDense):  # what is summed over: letters that the output lacks
        inputs, output = layer.equation.split("->")
        letters = inputs.split(",")[1].strip()
        return float(math.prod(n for letter, n in zip(letters, shape, strict=True) if letter not in output))
    if isinstance(layer, DEPTHWISE):
        return float(math.prod(shape[:-2]))
    if isinstance(layer, TRANSPOSED):  # (..., out, in): a stride spreads the inputs thinner
        return float(shape[-1] * max(math.prod(shape[:-2]) / math.prod(layer.strides), 1.0))
    return float(math.prod(shape[:-1]))


def _plain(variable: Any) -> float:
    return float(math.prod(variable.shape[:-1]))
