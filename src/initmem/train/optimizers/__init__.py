"""The optimizer that a recipe names: an update rule written here, or any `torch.optim.Optimizer`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from initmem.catalog import OPTIMIZERS
from initmem.errors import InitmemError, ModelError
from initmem.recipe import Recipe
from initmem.register import find_optimizer, in_a_line
from initmem.train.optimizers import rules
from initmem.train.optimizers.rules import Decoupled, Optimizer, Rule


def optimizer_for(
    recipe: Recipe, variables: Sequence[Tensor], replicas: int = 1, decayed: Sequence[int] | None = None
) -> Optimizer:
    """The optimizer of a recipe; `decayed` holds the indices of the variables that decay, by default all."""
    row = OPTIMIZERS.get(recipe.optimizer)
    if replicas > 1 and row is not None and not row.packed:
        raise ValueError(f"optimizer = {recipe.optimizer!r} trains one replica at a time")
    chosen = list(range(len(variables))) if decayed is None else list(decayed)
    if row is None or row.rule == "torch":
        return from_torch(recipe, variables, chosen)
    kind: type[Rule] = getattr(rules, row.rule)
    rule = kind(variables, recipe, replicas, chosen, **row.arguments)
    if rule.decays or not recipe.weight_decay or not chosen:
        return rule
    return Decoupled(rule, [variables[i] for i in chosen], recipe.weight_decay)


class FromTorch(Optimizer):
    """A `torch.optim.Optimizer`. The learning rate of every update comes from the schedule.

    Variables without an index in `decayed` get no weight decay. The optimizer must work elementwise, or the
    pack have one replica: a variable holds those of all replicas. With `numbers`, plain numbers that it keeps
    are part of its state; those of torch.optim are constants.
    """

    def __init__(
        self,
        build: Callable[[list[dict[str, Any]]], torch.optim.Optimizer],
        variables: Sequence[Tensor],
        decayed: Sequence[int],
        *,
        numbers: bool,
    ) -> None:
        self.variables, chosen = list(variables), set(decayed)
        groups: list[dict[str, Any]] = [{"params": [self.variables[i] for i in sorted(chosen)]}]
        spared = [v for i, v in enumerate(self.variables) if i not in chosen]
        if spared:
            groups.append({"params": spared, "weight_decay": 0.0})
        self.optimizer = build([group for group in groups if group["params"]])
        self.has_numbers = numbers
        self.numbers: dict[str, Tensor] = {}  # copies of them: a checkpoint holds tensors only

    def step(self, gradients: list[Tensor], rate: float, k: int) -> None:
        """Apply one update."""
        for holder, key, name in self._numbers():
            if name in self.numbers:
                holder[key] = type(holder[key])(self.numbers[name].item())
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        for variable, gradient in zip(self.variables, gradients, strict=True):
            variable.grad = gradient
        self.optimizer.step()
        self.optimizer.zero_grad()
        for holder, key, name in self._numbers():
            self.numbers.setdefault(name, torch.zeros((), dtype=torch.float64)).fill_(holder[key])

    def _numbers(self) -> list[tuple[dict[str, Any], str, str]]:
        """Plain numbers that updates may change: where each is, its key there, and a name of its own."""
        if not self.has_numbers:
            return []
        holders = {f"group{i}": group for i, group in enumerate(self.optimizer.param_groups)}
        holders |= {f"variable{i}": self.optimizer.state[v] for i, v in enumerate(self.variables)}
        return [
            (holder, key, f"{key}/{where}")
            for where, holder in holders.items()
            for key, value in holder.items()
            if type(value) in (int, float) and key != "lr"
        ]

    def state(self, names: Sequence[str]) -> dict[str, Tensor]:
        """What the optimizer has allocated so far: most of them allocate in their first step."""
        return self.numbers | {
            f"{key}/{name}": value
            for name, variable in zip(names, self.variables, strict=True)
            for key, value in self.optimizer.state[variable].items()
            if isinstance(value, Tensor)
        }


def from_torch(recipe: Recipe, variables: Sequence[Tensor], decayed: Sequence[int]) -> FromTorch:
    """The optimizer that a recipe names as torch:NAME, or by the name under which it was registered."""
    kind: Callable[..., Any]
    fields: Mapping[str, Any]
    if not recipe.has_own_optimizer:
        kind = getattr(torch.optim, recipe.optimizer.removeprefix("torch:"))
        fields = OPTIMIZERS[recipe.optimizer].fields
    elif (registered := find_optimizer(recipe.optimizer)) is not None:
        kind, fields = registered.build, registered.fields
    else:
        raise ModelError(
            f"optimizer = {recipe.optimizer!r}: no plugin that registers it is loaded (--plugin MODULE)"
        )
    options: dict[str, Any] = {"lr": recipe.learning_rate}
    options |= {name: getattr(recipe, name) for name in ("momentum", "weight_decay") if name in fields}
    if "beta1" in fields:
        options["betas"] = (recipe.beta1, recipe.beta2)
    if "epsilon" in fields:
        options["eps"] = recipe.epsilon

    def build(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        try:
            made = kind(groups, **options)
        except InitmemError:
            raise
        except Exception as error:  # a plugin may raise anything
            raise ModelError(f"optimizer = {recipe.optimizer!r}: it raised {in_a_line(error)}") from None
        if not isinstance(made, torch.optim.Optimizer):
            returned = type(made).__name__
            raise ModelError(
                f"optimizer = {recipe.optimizer!r}: its builder returned an object of type {returned} "
                "(needed: a torch.optim.Optimizer)"
            )
        if not all("lr" in group for group in made.param_groups):
            raise ModelError(f"optimizer = {recipe.optimizer!r}: a parameter group of it has no lr")
        return made

    return FromTorch(build, variables, decayed, numbers=recipe.has_own_optimizer)
