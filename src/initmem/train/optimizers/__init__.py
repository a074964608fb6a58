"""Optimizers: their update rules, and the one that a recipe names.

The rules of the paper are as Keras 3 defines them. All operate on lists of tensors at once; sgd, momentum and
adam do so in C where it is available.

Every state tensor is replica-major, (replica * n, ...), so that a checkpoint splits states by replica exactly
as it splits variables. A state tensor without axes is common to all replicas.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from initmem.recipe import ALONE, Recipe
from initmem.train import native

ROW_EPSILON = 1e-10  # as published for NorMuon


class Optimizer(ABC):
    """The base class: `step` changes the variables in place, once per update k = 1, 2, ..."""

    average: Sequence[Tensor] = ()  # variables to evaluate instead of the iterates, if there are such

    @abstractmethod
    def step(self, gradients: list[Tensor], rate: float, k: int) -> None:
        """Apply update k at learning rate `rate`; the gradients may be overwritten."""

    @abstractmethod
    def state(self, names: Sequence[str]) -> dict[str, Tensor]:
        """The state by name; `names` are those of the variables, in order."""


class Rule(Optimizer):
    """An update rule written here. `slots` holds the state: for each name, one tensor per variable.

    `scalars` holds what all variables and replicas have in common, as tensors without axes.
    """

    def __init__(self, variables: Sequence[Tensor], slots: Sequence[str]) -> None:
        self.variables = list(variables)
        self.slots = {name: [torch.zeros_like(v) for v in self.variables] for name in slots}
        self.scalars: dict[str, Tensor] = {}

    @cached_property
    def together(self) -> native.Together:
        """Variables and slots, for an update in C."""
        return native.Together(self.variables, *self.slots.values())

    def state(self, names: Sequence[str]) -> dict[str, Tensor]:
        """The slots, each named after its variable, and the scalars."""
        slots = {
            f"{slot}/{name}": tensor
            for slot, tensors in self.slots.items()
            for name, tensor in zip(names, tensors, strict=True)
        }
        return slots | self.scalars


class Decoupled(Optimizer):
    """Another rule after decoupled weight decay, w <- w - rate * decay * w for the variables in `decayed`."""

    def __init__(self, rule: Optimizer, decayed: Sequence[Tensor], decay: float) -> None:
        self.rule, self.decayed, self.decay = rule, list(decayed), decay
        self.together = native.Together(self.decayed)

    def step(self, gradients: list[Tensor], rate: float, k: int) -> None:
        """Apply one update."""
        factor = 1 - rate * self.decay
        if self.together.ready:
            self.together.scale(factor)
        else:
            torch._foreach_mul_(self.decayed, factor)
        self.rule.step(gradients, rate, k)

    def state(self, names: Sequence[str]) -> dict[str, Tensor]:
        """That of the rule: the decay has none."""
        return self.rule.state(names)


class PerReplica(Optimizer):
    """Another rule, with a learning rate and a decoupled decay of its own for every replica.

    The rule must not look at the variables, its steps be proportional to the rate, and its state not depend
    on the rate. `ratios`, of the rates to the one that is given, and `decays` have shape (replica,).
    `decayed` holds the indices of the variables that decay.
    """

    def __init__(
        self,
        rule: Optimizer,
        variables: Sequence[Tensor],
        decayed: Sequence[int],
        ratios: Tensor,
        decays: Tensor,
    ) -> None:
        self.rule, self.variables, self.ratios, self.decays = rule, list(variables), ratios, decays
        self.decayed = set(decayed)

    def step(self, gradients: list[Tensor], rate: float, k: int) -> None:
        """Apply one update."""
        before = torch._foreach_clone(self.variables)
        torch._foreach_zero_(self.variables)  # from zero, a step is not rounded to the size of a weight
        self.rule.step(gradients, rate, k)
        for i, (variable, old) in enumerate(zip(self.variables, before, strict=True)):
            kept = times(old, 1 - rate * self.ratios * self.decays) if i in self.decayed else old
            torch.add(kept, times(variable, self.ratios), out=variable)

    def state(self, names: Sequence[str]) -> dict[str, Tensor]:
        """That of the rule, which is the one that a replica has alone."""
        return self.rule.state(names)


def times(tensor: Tensor, factors: Tensor) -> Tensor:
    """Multiply each replica's part of a tensor (replica * n, ...) by its factor."""
    parts = tensor.reshape(len(factors), -1)
    return (parts * factors[:, None]).view(tensor.shape)


class SGD(Rule):
    """w <- w - rate * g."""

    def __init__(self, variables: Sequence[Tensor]) -> None:
        super().__init__(variables, ())

    def step(self, gradients: list[Tensor], rate: float, k: int) -> None:
        """Apply one update."""
        if self.together.ready:
            self.together.step("add_scaled", gradients, -rate)
        else:
            torch._foreach_add_(self.variables, gradients, alpha=-rate)


class Momentum(Rule):
    """v <- momentum * v - rate * g; w <- w + v. The learning rate is part of the velocity."""

    def __init__(self, variables: Sequence[Tensor], momentum: float) -> None:
        super().__init__(variables, ("velocity",))
        self.momentum = momentum

    def step(self, gradients: list[Tensor], rate: float, k: int) -> None:
        """Apply one update."""
        if self.together.ready:
            self.together.step("momentum_step", gradients, self.momentum, rate)
            return
        velocity = self.slots["velocity"]
        torch._foreach_mul_(velocity, self.momentum)
        torch._foreach_add_(velocity, gradients, alpha=-rate)
        torch._foreach_add_(self.variables, velocity)


class Adam(Rule):
    """w <- w - rate * sqrt(1 - beta2^k) / (1 - beta1^k) * m / (sqrt(v) + epsilon)."""

    def __init__(self, variables: Sequence[Tensor], beta1: float, beta2: float, epsilon: float) -> None:
        super().__init__(variables, ("mean", "square"))
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon

    def step(self, gradients: list[Tensor], rate: float, k: int) -> None:
        """Apply one update."""
        size = rate * math.sqrt(1 - self.beta2**k) / (1 - self.beta1**k)
        if self.together.ready:
            self.together.step("adam_step", gradients, self.beta1, self.beta2, self.epsilon, size)
            return
        mean, square = self.slots["mean"], self.slots["square"]
        torch._foreach_lerp_(mean, gradients, 1 - self.beta1)
        torch._foreach_mul_(square, self.beta2)
        torch._foreach_addcmul_(square, gradients, gradients, 1 - self.beta2)
        # Unlike in torch.optim, epsilon is added to the square root without bias correction.
        root = torch._foreach_sqrt(square)
        torch._foreach_add_(root, self.epsilon)
        torch._foreach_addcdiv_(self.variables, mean, root, -size)


class Lion(Rule):
    """w <- w - rate * sign(beta1 * m + (1 - beta1) * g); then m <- beta2 * m + (1 - beta2) * g."""

    def __init__(self, variables: Sequence[Tensor], beta1: float, beta2: float) -> None:
        super().__init__(variables, ("mean",))
        self.beta1, self.beta2 = beta1, beta2

    def step(self, gradients: list[Tensor], rate: float, k: int) -> None:
        """Apply one update."""
        mean = self.slots["mean"]
        mixed = torch._foreach_lerp(mean, gradients, 1 - self.beta1)
        torch._foreach_add_(self.variables, torch._foreach_sign(mixed), alpha=-rate)
        torch._foreach_lerp_(mean, gradients, 1 - self.beta2)


class Muon(Rule):
    """Orthogonalized momentum for the variables listed in `matrices`, Adam for all others.

    m <- momentum * m + g. The update is the Nesterov average g + momentum * m with its singular values driven
    towards 1, times 0.2 * sqrt(max(rows, columns)), which gives it the size of an Adam step. `matrices` holds
    pairs (index of the variable, rows of one replica's matrix).

    With `by_row` it is NorMuon: the rows of the orthogonalized update are divided by the root of a moving
    average of their mean squares, and the update keeps the Frobenius norm that it had.
    """

    def __init__(
        self,
        variables: Sequence[Tensor],
        matrices: Sequence[tuple[int, int]],
        recipe: Recipe,
        *,
        by_row: bool = False,
    ) -> None:
        super().__init__(variables, ("mean", "square"))
        self.matrices, self.momentum = list(matrices), recipe.momentum
        self.by_row, self.beta2 = by_row, recipe.beta2
        for index, _ in self.matrices if by_row else ():
            self.slots["square"][index] = row_state(self.variables[index])
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
            update = orthogonalize(matrix)
            if self.by_row:
                before = torch.linalg.matrix_norm(update, keepdim=True)
                update = normalize_rows(update, self.slots["square"][index], self.beta2)
                update *= before / (torch.linalg.matrix_norm(update, keepdim=True) + ROW_EPSILON)
            self.variables[index].add_(update.reshape(gradient.shape), alpha=-rate * size)


def row_state(variable: Tensor) -> Tensor:
    """The state of `normalize_rows` for a variable: a number per row, shape (replica * row,)."""
    return variable.new_zeros(len(variable))


def normalize_rows(update: Tensor, square: Tensor, beta2: float) -> Tensor:
    """Divide rows by the root of the moving average `square` of their mean squares, after updating it.

    The update has shape (replica, row, column), the average (replica * row,).
    """
    square.lerp_(update.square().mean(2).flatten(), 1 - beta2)
    return update / (square.sqrt() + ROW_EPSILON).view(*update.shape[:2], 1)


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


def optimizer_for(
    recipe: Recipe, variables: Sequence[Tensor], replicas: int = 1, decayed: Sequence[int] | None = None
) -> Optimizer:
    """The optimizer of a recipe; `decayed` holds the indices of the variables that decay, by default all."""
    if replicas > 1 and recipe.optimizer in ALONE:
        raise ValueError(f"optimizer = {recipe.optimizer!r} trains one replica at a time")
    chosen = list(range(len(variables))) if decayed is None else list(decayed)
    if recipe.optimizer.startswith("torch:") or recipe.has_own_optimizer:
        from initmem.train.optimizers.from_torch import from_torch

        return from_torch(recipe, variables, chosen)
    if recipe.optimizer in ("schedule-free-sgd", "schedule-free-adamw", "sf-normuon"):
        return _schedule_free(recipe, variables, replicas, chosen)
    rule = _rule(recipe, variables, replicas)
    points = [variables[i] for i in chosen]
    return Decoupled(rule, points, recipe.weight_decay) if recipe.weight_decay and points else rule


def _rule(recipe: Recipe, variables: Sequence[Tensor], replicas: int) -> Optimizer:
    """The rule without its decoupled decay, so adamw is adam here."""
    match recipe.optimizer:
        case "sgd":
            return SGD(variables)
        case "momentum":
            return Momentum(variables, recipe.momentum)
        case "adam" | "adamw":
            return Adam(variables, recipe.beta1, recipe.beta2, recipe.epsilon)
        case "lion":
            return Lion(variables, recipe.beta1, recipe.beta2)
        case "muon":
            # Muon in Keras 3 handles only 2-D variables (here: dense kernels) and leaves conv kernels to
            # Adam; muon-conv handles both, as its author intended.
            return Muon(variables, _matrices(variables, replicas, (2,)), recipe)
        case "muon-conv" | "normuon":
            matrices = _matrices(variables, replicas, (2, 4))
            return Muon(variables, matrices, recipe, by_row=recipe.optimizer == "normuon")
        case unknown:
            raise ValueError(f"optimizer = {unknown!r} has no update rule")


def _schedule_free(
    recipe: Recipe, variables: Sequence[Tensor], replicas: int, decayed: Sequence[int]
) -> Optimizer:
    from initmem.train.optimizers import schedule_free

    if recipe.optimizer == "sf-normuon":
        matrices = _matrices(variables, replicas, (2, 4))
        return schedule_free.ScheduleFreeNorMuon(variables, matrices, recipe, decayed)
    if recipe.optimizer == "schedule-free-sgd":
        return schedule_free.ScheduleFreeSGD(variables, recipe, decayed)
    return schedule_free.ScheduleFreeAdamW(variables, recipe, decayed)


def _matrices(variables: Sequence[Tensor], replicas: int, axes: Sequence[int]) -> list[tuple[int, int]]:
    """Variables with this many axes, as pairs (index, rows of one replica's matrix)."""
    return [(i, len(v) // replicas) for i, v in enumerate(variables) if v.ndim in axes]
