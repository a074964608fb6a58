"""Any optimizer of torch.optim as an update rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from initmem.recipe import TORCH_OPTIMIZERS, Recipe
from initmem.train.optimizers import Optimizer


class FromTorch(Optimizer):
    """An optimizer of torch.optim. The learning rate of every update comes from the schedule.

    Variables without an index in `decayed` get no weight decay. The optimizer must work elementwise, or the
    pack have one replica: a variable holds those of all replicas.
    """

    def __init__(
        self,
        build: Callable[[list[dict[str, Any]]], torch.optim.Optimizer],
        variables: Sequence[Tensor],
        decayed: Sequence[int],
    ) -> None:
        self.variables, chosen = list(variables), set(decayed)
        groups: list[dict[str, Any]] = [{"params": [self.variables[i] for i in sorted(chosen)]}]
        spared = [v for i, v in enumerate(self.variables) if i not in chosen]
        if spared:
            groups.append({"params": spared, "weight_decay": 0.0})
        self.optimizer = build([group for group in groups if group["params"]])

    def step(self, gradients: list[Tensor], rate: float, k: int) -> None:
        """Apply one update."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        for variable, gradient in zip(self.variables, gradients, strict=True):
            variable.grad = gradient
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self, names: Sequence[str]) -> dict[str, Tensor]:
        """What the optimizer has allocated so far: most of them allocate in their first step."""
        return {
            f"{key}/{name}": value
            for name, variable in zip(names, self.variables, strict=True)
            for key, value in self.optimizer.state[variable].items()
            if isinstance(value, Tensor)
        }


def from_torch(recipe: Recipe, variables: Sequence[Tensor], decayed: Sequence[int]) -> FromTorch:
    """The optimizer that a recipe names as torch:NAME."""
    kind = getattr(torch.optim, recipe.optimizer.removeprefix("torch:"))
    fields = TORCH_OPTIMIZERS[recipe.optimizer]
    options: dict[str, Any] = {"lr": recipe.learning_rate}
    options |= {name: getattr(recipe, name) for name in ("momentum", "weight_decay") if name in fields}
    if "beta1" in fields:
        options["betas"] = (recipe.beta1, recipe.beta2)
    if "epsilon" in fields:
        options["eps"] = recipe.epsilon
    return FromTorch(lambda groups: kind(groups, **options), variables, decayed)
