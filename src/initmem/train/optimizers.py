"""Optimizers, as Keras 3 defines them. All of them operate on lists of tensors at once.

Every state tensor has the shape of its variable, replica-major, so that a checkpoint splits states by replica
exactly as it splits variables.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from initmem.recipe import Recipe


class Optimizer(ABC):
    """The base class: `step` changes the variables in place, once per update k = 1, 2, ...

    `slots` holds the state: for each name, one tensor per variable.
    """

    def __init__(self, variables: Sequence[Tensor], slots: Sequence[str]) -> None:
        self.variables = list(variables)
        self.slots = {name: [torch.zeros_like(v) for v in self.variables] for name in slots}

    @abstractmethod
    def step(self, gradients: list[Tensor], rate: float, k: int) -> None:
        """Apply update k at learning rate `rate`; the gradients may be overwritten."""


class SGD(Optimizer):
    """w <- w - rate * g."""

    def __init__(self, variables: Sequence[Tensor]) -> None:
        super().__init__(variables, ())

    def step(self, gradients: list[Tensor], rate: float, k: int) -> None:
        """Apply one update."""
        torch._foreach_add_(self.variables, gradients, alpha=-rate)


class Momentum(Optimizer):
    """v <- momentum * v - rate * g; w <- w + v. The learning rate is part of the velocity."""

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
        # Unlike in torch.optim, epsilon is added to the square root without bias correction.
        root = torch._foreach_sqrt(square)
        torch._foreach_add_(root, self.epsilon)
        torch._foreach_addcdiv_(self.variables, mean, root, -size)


class Muon(Optimizer):
    """Orthogonalized momentum for the variables listed in `matrices`, Adam for all others.

    m <- momentum * m + g. The update is the Nesterov average g + momentum * m with its singular values driven
    towards 1, times 0.2 * sqrt(max(rows, columns)), which gives it the size of an Adam step. `matrices` holds
    pairs (index of the variable, rows of one replica's matrix).
    """

    def __init__(
        self, variables: Sequence[Tensor], matrices: Sequence[tuple[int, int]], recipe: Recipe
    ) -> None:
        super().__init__(variables, ("mean", "square"))
        self.matrices, self.momentum = list(matrices), recipe.momentum
        chosen = {index for index, _ in self.matrices}
        self.others = [i for i in range(len(self.variables)) if i not in chosen]
        self.adam = Adam([self.variables[i] for i in self.others], recipe.beta1, recipe.beta2, recipe.epsilon)
        # One set of slots: Adam works on its share, a checkpoint sees all of them.
        self.adam.slots = {name: [slot[i] for i in self.others] for name, slot in self.slots.items()}

    def step(self, gradients: list[Tensor], rate: float, k: int) -> None:
        """Apply one update."""
        if self.others:
            self.adam.step([gradients[i] for i in self.others], rate, k)
        for index, rows in self.matrices:
            gradient, mean = gradients[index], self.slots["mean"][index]
            mean.mul_(self.momentum).add_(gradient)
            nesterov = gradient.add(mean, alpha=self.momentum)
            # All replicas at once: (replica, rows, columns). A conv kernel is flattened to (out, in * k * k).
            matrix = nesterov.reshape(-1, rows, nesterov[0].numel())
            size = 0.2 * math.sqrt(max(matrix.shape[1:]))
            update = orthogonalize(matrix).reshape(gradient.shape)
            self.variables[index].add_(update, alpha=-rate * size)


def orthogonalize(matrix: Tensor) -> Tensor:
    """Approximate the nearest orthogonal matrix by five Newton-Schulz steps; shape (..., rows, columns)."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrix.shape[-2] > matrix.shape[-1]
    x = matrix.mT if tall else matrix
    x = x.reshape(-1, *x.shape[-2:])
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    for _ in range(5):
        square = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).view_as(matrix)


def optimizer_for(recipe: Recipe, variables: Sequence[Tensor], replicas: int = 1) -> Optimizer:
    """The optimizer of a recipe. The training loop applies decoupled weight decay, so adamw is adam here."""
    match recipe.optimizer:
        case "sgd":
            return SGD(variables)
        case "momentum":
            return Momentum(variables, recipe.momentum)
        case "adam" | "adamw":
            return Adam(variables, recipe.beta1, recipe.beta2, recipe.epsilon)
        case "muon" | "muon-conv":
            # Muon in Keras 3 handles only 2-D variables (here: dense kernels) and leaves conv kernels to
            # Adam; muon-conv handles both, as its author intended.
            wanted = (2,) if recipe.optimizer == "muon" else (2, 4)
            matrices = [(i, len(v) // replicas) for i, v in enumerate(variables) if v.ndim in wanted]
            return Muon(variables, matrices, recipe)
