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

import torch
from torch import Tensor

from initmem.recipe import Recipe
from initmem.train.optimizers import Rule, normalize_rows, orthogonalize, row_state


class ScheduleFree(Rule):
    """z <- z - rate * (direction + decay * p); x <- (1 - c) * x + c * z; y <- beta * x + (1 - beta) * z.

    beta is beta1 of the recipe. The decay acts on the variables with an index in `decayed`; p is y, or z with
    `decay_fast`. c is the share of this update in the sum of squared rates; with `largest`, of the largest
    rate up to each update, as published, which differs only if a rate decays.
    """

    def __init__(
        self,
        variables: Sequence[Tensor],
        slots: Sequence[str],
        recipe: Recipe,
        decayed: Sequence[int],
        *,
        decay_fast: bool = False,
        largest: bool = True,
    ) -> None:
        super().__init__(variables, ("fast", "average", *slots))
        self.recipe, self.largest = recipe, largest
        self.fast, self.average = self.slots["fast"], self.slots["average"]
        for copies in (self.fast, self.average):
            torch._foreach_copy_(copies, self.variables)
        points = self.fast if decay_fast else self.variables
        self.decayed, self.points = [self.fast[i] for i in decayed], [points[i] for i in decayed]
        # Of all variables and replicas. In float64 on the CPU, since factors are made of them.
        self.scalars = {name: torch.zeros((), dtype=torch.float64) for name in ("largest_rate", "weight_sum")}

    @abstractmethod
    def directions(self, gradients: list[Tensor], k: int) -> list[Tensor]:
        """The directions of update k, one per variable; the gradients may be overwritten."""

    def step(self, gradients: list[Tensor], rate: float, k: int) -> None:
        """Apply one update."""
        if self.recipe.weight_decay and self.decayed:
            torch._foreach_add_(self.decayed, self.points, alpha=-rate * self.recipe.weight_decay)
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

    def __init__(self, variables: Sequence[Tensor], recipe: Recipe, decayed: Sequence[int]) -> None:
        super().__init__(variables, (), recipe, decayed)

    def directions(self, gradients: list[Tensor], k: int) -> list[Tensor]:
        """The gradients themselves."""
        return gradients


class ScheduleFreeAdamW(ScheduleFree):
    """The direction is g / (sqrt(v / (1 - beta2^k)) + epsilon), with v <- beta2 * v + (1 - beta2) * g^2."""

    def __init__(self, variables: Sequence[Tensor], recipe: Recipe, decayed: Sequence[int]) -> None:
        super().__init__(variables, ("square",), recipe, decayed)

    def directions(self, gradients: list[Tensor], k: int) -> list[Tensor]:
        """The gradients, divided by the root of their mean square."""
        return _scaled(gradients, self.slots["square"], k, self.recipe)


class ScheduleFreeNorMuon(ScheduleFree):
    """NorMuon without Nesterov for the variables listed in `matrices`, Schedule-Free AdamW for all others.

    m <- momentum * m + (1 - momentum) * g. The direction is m orthogonalized, its rows normalized as in
    NorMuon, and brought to a root mean square of 0.2. The decay acts at z, which its authors call essential.
    """

    def __init__(
        self,
        variables: Sequence[Tensor],
        matrices: Sequence[tuple[int, int]],
        recipe: Recipe,
        decayed: Sequence[int],
    ) -> None:
        super().__init__(variables, ("mean", "square"), recipe, decayed, decay_fast=True, largest=False)
        self.matrices = list(matrices)
        chosen = {index for index, _ in self.matrices}
        self.others = [i for i in range(len(self.variables)) if i not in chosen]
        for index in chosen:
            self.slots["square"][index] = row_state(self.variables[index])

    def directions(self, gradients: list[Tensor], k: int) -> list[Tensor]:
        """Orthogonalized for matrices, scaled by the mean square for all others."""
        square, directions = self.slots["square"], list(gradients)
        for index, rows in self.matrices:
            mean = self.slots["mean"][index].lerp_(gradients[index], 1 - self.recipe.momentum)
            matrix = mean.reshape(-1, rows, mean[0].numel())
            update = normalize_rows(orthogonalize(matrix), square[index], self.recipe.beta2)
            size = 0.2 * math.sqrt(update[0].numel()) / torch.linalg.matrix_norm(update, keepdim=True)
            directions[index] = (size * update).reshape(mean.shape)
        others = _scaled(
            [gradients[i] for i in self.others], [square[i] for i in self.others], k, self.recipe
        )
        for index, direction in zip(self.others, others, strict=True):
            directions[index] = direction
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
