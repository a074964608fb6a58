"""The parameters of a model of any framework, each with its role."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from initmem.errors import ModelError, allowed
from initmem.train.variables import Choice, Kernels, Variable


def variables(model: Any, kernels: Kernels = None) -> list[Variable]:
    """Every parameter of a model once, in the order in which initialization draws them.

    `kernels` says which parameters count as kernels: module types and patterns of parameter names in any
    mixture (`[nn.Linear, "blocks.*.mixing"]`), or a function. Without it: the kernels of the layers that
    the framework has, as far as they are trained.
    """
    if is_keras(model):
        from initmem.pipeline.keras import keras_variables

        return keras_variables(model, kernels)
    from initmem.pipeline.jax import is_pytree, jax_variables

    if is_pytree(model):
        return jax_variables(model, kernels)
    from initmem.train.variables import torch_variables

    return torch_variables(model, kernels)


def kernel_variables(model: Any, kernels: Kernels = None) -> list[Variable]:
    """The kernels of a model alone."""
    return [variable for variable in variables(model, kernels) if variable.role == "kernel"]


def is_keras(model: Any) -> bool:
    """Whether a model is one of Keras; with its torch backend it is a torch module as well."""
    kinds = type(model).__mro__
    return any(kind.__module__.startswith("keras.") and kind.__name__ == "Layer" for kind in kinds)


def distinct(variables: Iterable[Variable], choose: Choice) -> list[Variable]:
    """Each variable once, the last kernel marked as that of the output; patterns have to match some name."""
    by_id: dict[int, Variable] = {}
    output = None
    for variable in variables:
        key = id(variable.place.parameters[0])
        by_id.setdefault(key, variable)
        output = key if variable.role == "kernel" else output
    choose.check(variable.name for variable in by_id.values())
    return [replace(variable, is_output=key == output) for key, variable in by_id.items()]


def fan_in_of_all_but_last(value: Any) -> float:
    """The fan-in of a kernel of shape (in, ..., out), as in `x @ kernel`."""
    return float(math.prod(value.shape[:-1]))


def materialize(model: nn.Module, device: str | torch.device | None = None) -> None:
    """Move a model off the meta device, each layer reset to its own defaults; ties between weights are kept.

    A model that is not on the meta device is left as it is. A layer without `reset_parameters` is refused:
    nobody else knows what values it starts from.
    """
    if not any(tensor.is_meta for tensor in itertools.chain(model.parameters(), model.buffers())):
        return
    resets, lost = [], []
    owners: dict[int, list[tuple[nn.Module, str]]] = {}
    for path, module in model.named_modules():
        reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
        own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        if reset is not None:
            resets.append(reset)
        else:
            lost += [f"{path}.{name}".lstrip(".") for name, _ in own]
        for name, parameter in module._parameters.items():
            if parameter is not None:
                owners.setdefault(id(parameter), []).append((module, name))
    if lost:
        raise ModelError(
            f"a model on the meta device: {', '.join(lost)} would be left without values "
            f"({allowed(['a model built on a real device', 'layers with reset_parameters()'])})"
        )
    model.to_empty(device=device or "cpu")
    for (owner, name), *others in owners.values():
        for module, other in others:
            module._parameters[other] = owner._parameters[name]
    for reset in resets:
        reset()
