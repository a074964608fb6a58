"""Update rules, in the form of the original stack (Keras 3). All of them work on lists of tensors at once.

Every state tensor has the shape of its variable, replica-major, so that a checkpoint takes states apart by
replica exactly as it does variables.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from initmem.errors import ConfigError, allowed
from initmem.recipe import Recipe


class Optimizer(ABC):
    """The contract: `step` changes the variables in place, once per update k = 1, 2, ...

    `slots` names the state: for each name one tensor per variable.
    """

    def __init__(self, variables: Sequence[Tensor], slots: Sequence[str]) -> None:
        self.variables = list(variables)
        self.slots = {name: [torch.zeros_like(v) for v in self.variables] for name in slots}

    @abstractmethod
    def step(self, gradients: list[Tensor], rate: float, k: int) -> None:
        """Apply one update; the gradients may be overwritten."""


class SGD(Optimizer):
    """w <- w - rate * g."""

    def __init__(self, variables: Sequence[Tensor]) -> None:
        super().__init__(variables, ())

    def step(self, gradients: list[Tensor], rate: float, k: int) -> None:
        """Apply one update."""
        torch._foreach_add_(self.variables, gradients, alpha=-rate)


class Momentum(Optimizer):
    """v <- momentum * v - rate * g; w <- w + v. The rate is inside the velocity."""

    def __init__(self, variables: Sequence[Tensor], momentum: float) -> None:
        super().__init__(variables, ("velocity",))
        self.momentum = momentum

    def step(self, gradients: list[Tensor], rate: float, k: int) -> None:
        """Apply one update."""
        velocity = self.slots["velocity"]
        torch._foreach_mul_(velocity, self.momentum)
        torch._foreach_add_(velocity, gradients, alpha=-rate)
        torch._foreach_add_(self.variables, velocity)


class Adam(Optimizer):
    """w <- w - rate * sqrt(1 - beta2^k) / (1 - beta1^k) * m / (sqrt(v) + epsilon)."""

    def __init__(self, variables: Sequence[Tensor], beta1: float, beta2: float, epsilon: float) -> None:
        super().__init__(variables, ("mean", "square"))
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon

    def step(self, gradients: list[Tensor], rate: float, k: int) -> None:
        """Apply one update."""
        mean, square = self.slots["mean"], self.slots["square"]
        torch._foreach_lerp_(mean, gradients, 1 - self.beta1)
        torch._foreach_mul_(square, self.beta2)
        torch._foreach_addcmul_(square, gradients, gradients, 1 - self.beta2)
        size = rate * math.sqrt(1 - self.beta2**k) / (1 - self.beta1**k)
        # epsilon stands beside the uncorrected root, unlike in torch.optim.
        root = torch._foreach_sqrt(square)
        torch._foreach_add_(root, self.epsilon)
        torch._foreach_addcdiv_(self.variables, mean, root, -size)


def optimizer_for(recipe: Recipe, variables: Sequence[Tensor]) -> Optimizer:
    """The update rule of a recipe."""
    match recipe.optimizer:
        case "sgd":
            return SGD(variables)
        case "momentum":
            return Momentum(variables, recipe.momentum)
        case "adam":
            return Adam(variables, recipe.beta1, recipe.beta2, recipe.epsilon)
    raise ConfigError(f"optimizer = {recipe.optimizer!r} ({allowed(['sgd', 'momentum', 'adam'])})")
