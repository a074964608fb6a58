"""Schedule-Free optimizers (Defazio et al. 2024): evaluation at an average instead of a decaying rate.

There are three sequences: z takes the steps, x is a weighted average of all z, and gradients are taken at
y = beta * x + (1 - beta) * z. In training the variables of the network are y. Evaluation takes place at x,
after the statistics of batch normalization have been recomputed there. The first step has weight 1: x forgets
the initial point at once, z does not.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from initmem.recipe import Recipe
from initmem.train.optimizers.rules import Rule, normalize_rows, orthogonalize, row_state


class ScheduleFree(Rule):
    """z <- z - rate * (direction + decay * p); x <- (1 - c) * x + c * z; y <- beta * x + (1 - beta) * z.

    beta is beta1 of the recipe. The decay acts at p, which is y, or z with `decay_fast`. c is the share of
    this update in the sum of squared rates; with `largest`, of the largest rate up to each update, as
    published, which differs only if a rate decays.
    """

    names: ClassVar[tuple[str, ...]] = ("fast", "average")
    decays = True
    decay_fast: ClassVar[bool] = False
    largest: ClassVar[bool] = True

    def __init__(
        self, variables: Sequence[Tensor], recipe: Recipe, replicas: int = 1, decayed: Sequence[int] = ()
    ) -> None:
        super().__init__(variables, recipe, replicas, decayed)
        self.fast, self.average = self.slots["fast"], self.slots["average"]
        for copies in (self.fast, self.average):
            torch._foreach_copy_(copies, self.variables)
        # Of all variables and replicas. In float64 on the CPU, since factors are made of them.
        self.scalars = {name: torch.zeros((), dtype=torch.float64) for name in ("largest_rate", "weight_sum")}

    @abstractmethod
    def directions(self, gradients: list[Tensor], k: int) -> list[Tensor]:
        """The directions of update k, one per variable; the gradients may be overwritten."""

    def step(self, gradients: list[Tensor], rate: float, k: int) -> None:
        """Apply one update."""
        if self.recipe.weight_decay and self.decayed:
            fast = [self.fast[i] for i in self.decayed]
            points = fast if self.decay_fast else [self.variables[i] for i in self.decayed]
            torch._foreach_add_(fast, points, alpha=-rate * self.recipe.weight_decay)
        torch._foreach_add_(self.fast, self.directions(gradients, k), alpha=-rate)
        torch._foreach_lerp_(list(self.average), self.fast, self._share(rate))
        torch._foreach_copy_(self.variables, list(self.average))
        torch._foreach_lerp_(self.variables, self.fast, 1 - self.recipe.beta1)

    def _share(self, rate: float) -> float:
        """c, after adding the weight of this update to the sum."""
        largest, total = self.scalars["largest_rate"], self.scalars["weight_sum"]
        largest.clamp_(min=rate)
        weight = (float(largest) if self.largest else rate) ** 2
        total += weight
        return weight / float(total)


class ScheduleFreeSGD(ScheduleFree):
    """The direction is the gradient."""

    def directions(self, gradients: list[Tensor], k: int) -> list[Tensor]:
        """The gradients themselves."""
        return gradients


class ScheduleFreeAdamW(ScheduleFree):
    """The direction is g / (sqrt(v / (1 - beta2^k)) + epsilon), with v <- beta2 * v + (1 - beta2) * g^2."""

    names = ("fast", "average", "square")

    def directions(self, gradients: list[Tensor], k: int) -> list[Tensor]:
        """The gradients, divided by the root of their mean square."""
        return _scaled(gradients, self.slots["square"], k, self.recipe)


class ScheduleFreeNorMuon(ScheduleFree):
    """NorMuon without Nesterov for variables with so many axes, Schedule-Free AdamW for all others.

    m <- momentum * m + (1 - momentum) * g. The direction is m orthogonalized, its rows normalized as in
    NorMuon, and brought to a root mean square of 0.2. The decay acts at z, which its authors call essential.
    """

    names = ("fast", "average", "mean", "square")
    decay_fast = True
    largest = False

    def __init__(
        self,
        variables: Sequence[Tensor],
        recipe: Recipe,
        replicas: int = 1,
        decayed: Sequence[int] = (),
        *,
        axes: Sequence[int],
    ) -> None:
        super().__init__(variables, recipe, replicas, decayed)
        self.matrices = [i for i, variable in enumerate(self.variables) if variable.ndim in axes]
        self.others = [i for i, variable in enumerate(self.variables) if variable.ndim not in axes]
        for i in self.matrices:
            self.slots["square"][i] = row_state(self.variables[i])

    def directions(self, gradients: list[Tensor], k: int) -> list[Tensor]:
        """Orthogonalized for matrices, scaled by the mean square for all others."""
        square, directions = self.slots["square"], list(gradients)
        for i in self.matrices:
            mean = self.slots["mean"][i].lerp_(gradients[i], 1 - self.recipe.momentum)
            matrix = mean.reshape(self.replicas, -1, mean[0].numel())
            update = normalize_rows(orthogonalize(matrix), square[i], self.recipe.beta2)
            size = 0.2 * math.sqrt(update[0].numel()) / torch.linalg.matrix_norm(update, keepdim=True)
            directions[i] = (size * update).reshape(mean.shape)
        others = _scaled(
            [gradients[i] for i in self.others], [square[i] for i in self.others], k, self.recipe
        )
        for i, direction in zip(self.others, others, strict=True):
            directions[i] = direction
        return directions


def _scaled(gradients: list[Tensor], square: list[Tensor], k: int, recipe: Recipe) -> list[Tensor]:
    """g / (sqrt(v / (1 - beta2^k)) + epsilon), after updating v."""
    if not gradients:
        return []
    torch._foreach_mul_(square, recipe.beta2)
    torch._foreach_addcmul_(square, gradients, gradients, 1 - recipe.beta2)
    root = torch._foreach_div(square, 1 - recipe.beta2**k)
    torch._foreach_sqrt_(root)
    torch._foreach_add_(root, recipe.epsilon)
    return list(torch._foreach_div(gradients, root))
