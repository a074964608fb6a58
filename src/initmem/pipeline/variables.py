"""The parameters of a model of any framework, each with its role."""

from __future__ import annotations

from typing import Any

from initmem.train.variables import Kernels, Variable


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
    from initmem.train.variables import torch_variables

    if is_pytree(model):
        return jax_variables(model, kernels)

    return torch_variables(model, kernels)


def kernel_variables(model: Any, kernels: Kernels = None) -> list[Variable]:
    """The kernels of a model alone."""
    return [variable for variable in variables(model, kernels) if variable.role == "kernel"]


def is_keras(model: Any) -> bool:
    """Whether a model is one of Keras; with its torch backend it is a torch module as well."""
    kinds = type(model).__mro__
    return any(kind.__module__.startswith("keras.") and kind.__name__ == "Layer" for kind in kinds)
