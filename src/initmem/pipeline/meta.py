"""Models on the meta device have shapes but no values: give them some, as their layers would have."""

from __future__ import annotations

import itertools

import torch
from torch import nn

from initmem.errors import ModelError, allowed


def materialise(model: nn.Module, device: str | torch.device | None = None) -> None:
    """Move a model off the meta device, each layer reset to its own defaults; ties between weights are kept.

    A model that is not on the meta device is left as it is.
    """
    if not any(tensor.is_meta for tensor in itertools.chain(model.parameters(), model.buffers())):
        return
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                places.setdefault(id(parameter), []).append((module, name))
    _refuse_without_reset(model)
    model.to_empty(device=device or "cpu")
    for (owner, name), *others in places.values():
        for module, again in others:
            module._parameters[again] = owner._parameters[name]
    for module in model.modules():
        reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
        if reset is not None:
            reset()


def _refuse_without_reset(model: nn.Module) -> None:
    """Only a layer that can reset itself knows what values it starts from."""
    lost = []
    for path, module in model.named_modules():
        own = [name for name, _ in itertools.chain(
            module.named_parameters(recurse=False), module.named_buffers(recurse=False)
        )]  # fmt: skip
        if own and not (hasattr(module, "reset_parameters") or hasattr(module, "_reset_parameters")):
            lost += [f"{path}.{name}".lstrip(".") for name in own]
    if lost:
        raise ModelError(
            f"a model on the meta device: {', '.join(lost)} would be left without values "
            f"({allowed(['a model built on a real device', 'layers with reset_parameters()'])})"
        )
