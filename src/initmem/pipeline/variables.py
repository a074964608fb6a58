"""The parameters of a model of any framework, each with its role."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from initmem.errors import ModelError
from initmem.train.variables import Choice, Kernels, Role, Variable, torch_variables


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
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            raise ModelError(f"{name} is on the meta device (allowed: model.to_empty(device=...) first)")
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


def role_of(
    name: str,
    fan_in: float | None,
    *,
    is_norm: bool,
    is_bias: bool,
    is_frozen: bool = False,
    explicit: bool,
) -> tuple[Role, str]:
    """The role of a parameter, and what there is to know about it; `explicit`: the user named the kernels."""
    if fan_in is not None and (explicit or not is_frozen):
        return "kernel", ""
    if fan_in is not None:
        return "frozen", "left as it is: not trained (name it in `kernels` to redraw it)"
    if is_norm:
        return "norm", "left as it is"
    if is_bias:
        return ("frozen", "left as it is: not trained") if is_frozen else ("bias", "")
    if explicit:
        return "other", "left as it is: not chosen as a kernel"
    return "other", f"left as it is: no rule for {name} (name it in `kernels` to redraw it)"
