"""The optimizer that a recipe names: an update rule written here, or any `torch.optim.Optimizer`.

A rule is one class here and one row in `initmem.catalog`.

The rules of the paper are as Keras 3 defines them. All operate on lists of tensors at once; sgd, momentum and
adam do so in C where it is available.

Every state tensor is replica-major, (replica * n, ...), so that a checkpoint splits states by replica exactly
as it splits variables. A state tensor without axes is common to all replicas.

Schedule-Free optimizers (Defazio et al. 2024): evaluation at an average instead of a decaying rate.

There are three sequences: z takes the steps, x is a weighted average of all z, and gradients are taken at
y = beta * x + (1 - beta) * z. In training the variables of the network are y. Evaluation takes place at x,
after the statistics of batch normalization have been recomputed there. The first step has weight 1: x forgets
the initial point at once, z does not.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from initmem.catalog import OPTIMIZERS
from initmem.errors import ModelError
from initmem.recipe import Recipe
from initmem.register import optimizers, plugin_code
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


@dataclass(eq=False)
class Rule(Optimizer):
    """An update rule, with the settings of a recipe. Its class names the state that it keeps per variable.

    Before the update, weight decay is applied: w <- w - rate * decay * w for the variables in `decayed`.

    `slots` holds that state: for each name, one tensor per variable. `scalars` holds what all variables and
    replicas have in common, as tensors without axes.
    """

    by_name: ClassVar[dict[str, type[Rule]]] = {}  # every rule, as the catalog names it
    names: ClassVar[tuple[str, ...]] = ()  # of the slots
    decays: ClassVar[bool] = False  # whether `update` includes the weight decay

    variables: list[Tensor]
    recipe: Recipe
    replicas: int = 1
    decayed: Sequence[int] = ()  # the indices of the variables that decay
    axes: Sequence[int] = ()  # variables with so many axes are matrices to a rule that orthogonalizes
    by_row: bool = False  # the squares of matrices are those of `normalize_rows`: one per row

    def __init_subclass__(cls) -> None:
        cls.by_name[cls.__name__] = cls

    def __post_init__(self) -> None:
        self.matrices = [i for i, variable in enumerate(self.variables) if variable.ndim in self.axes]
        self.others = [i for i, variable in enumerate(self.variables) if variable.ndim not in self.axes]
        self.slots = {name: [torch.zeros_like(v) for v in self.variables] for name in self.names}
        for i in self.matrices if self.by_row else ():
            self.slots["square"][i] = self.variables[i].new_zeros(len(self.variables[i]))
        self.scalars: dict[str, Tensor] = {}

    def step(self, gradients: list[Tensor], rate: float, k: int) -> None:
        """Decay the weights, then apply the update."""
        if self.recipe.weight_decay and self.decayed and not self.decays:
            decayed = [self.variables[i] for i in self.decayed]
            torch._foreach_mul_(decayed, 1 - rate * self.recipe.weight_decay)
        self.update(gradients, rate, k)

    @abstractmethod
    def update(self, gradients: list[Tensor], rate: float, k: int) -> None:
        """Apply update k at learning rate `rate`; the gradients may be overwritten."""

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


@dataclass(eq=False)
class PerReplica(Optimizer):
    """Another rule, with a learning rate and a decoupled decay of its own for every replica, and layer.

    The rule must not look at the variables, its steps be proportional to the rate, and its state not depend
    on the rate. `ratios`, of the rates to the one that is given, and `decays` have shape (replica,).
    `decayed` holds the indices of the variables that decay, `factors` those of the steps of every variable.
    """

    rule: Rule
    decayed: Sequence[int]
    ratios: Tensor
    decays: Tensor
    factors: Sequence[float] | None = None

    def __post_init__(self) -> None:
        variables = self.rule.variables
        self.steps = [self.ratios * factor for factor in self.factors or [1.0] * len(variables)]

    def step(self, gradients: list[Tensor], rate: float, k: int) -> None:
        """Apply one update."""
        variables = self.rule.variables
        before = torch._foreach_clone(variables)
        torch._foreach_zero_(variables)  # from zero, a step is not rounded to the size of a weight
        self.rule.update(gradients, rate, k)
        for i, (variable, old) in enumerate(zip(variables, before, strict=True)):
            kept = times(old, 1 - rate * self.ratios * self.decays) if i in self.decayed else old
            torch.add(kept, times(variable, self.steps[i]), out=variable)

    def state(self, names: Sequence[str]) -> dict[str, Tensor]:
        """That of the rule, which is the one that a replica has alone."""
        return self.rule.state(names)


def times(tensor: Tensor, factors: Tensor) -> Tensor:
    """Multiply each replica's part of a tensor (replica * n, ...) by its factor."""
    parts = tensor.reshape(len(factors), -1)
    return (parts * factors[:, None]).view(tensor.shape)


class SGD(Rule):
    """w <- w - rate * g."""

    def update(self, gradients: list[Tensor], rate: float, k: int) -> None:
        """Apply update k."""
        if self.together.ready:
            self.together.step("add_scaled", gradients, -rate)
        else:
            torch._foreach_add_(self.variables, gradients, alpha=-rate)


class Momentum(Rule):
    """v <- momentum * v - rate * g; w <- w + v. The learning rate is part of the velocity."""

    names = ("velocity",)

    def update(self, gradients: list[Tensor], rate: float, k: int) -> None:
        """Apply update k."""
        if self.together.ready:
            self.together.step("momentum_step", gradients, self.recipe.momentum, rate)
            return
        velocity = self.slots["velocity"]
        torch._foreach_mul_(velocity, self.recipe.momentum)
        torch._foreach_add_(velocity, gradients, alpha=-rate)
        torch._foreach_add_(self.variables, velocity)


class Adam(Rule):
    """w <- w - rate * sqrt(1 - beta2^k) / (1 - beta1^k) * m / (sqrt(v) + epsilon)."""

    names = ("mean", "square")

    def update(self, gradients: list[Tensor], rate: float, k: int) -> None:
        """Apply update k."""
        beta1, beta2, epsilon = self.recipe.beta1, self.recipe.beta2, self.recipe.epsilon
        size = rate * math.sqrt(1 - beta2**k) / (1 - beta1**k)
        if self.together.ready:
            self.together.step("adam_step", gradients, beta1, beta2, epsilon, size)
            return
        mean, square = self.slots["mean"], self.slots["square"]
        torch._foreach_lerp_(mean, gradients, 1 - beta1)
        torch._foreach_mul_(square, beta2)
        torch._foreach_addcmul_(square, gradients, gradients, 1 - beta2)
        # Unlike in torch.optim, epsilon is added to the square root without bias correction.
        root = torch._foreach_sqrt(square)
        torch._foreach_add_(root, epsilon)
        torch._foreach_addcdiv_(self.variables, mean, root, -size)


class Lion(Rule):
    """w <- w - rate * sign(beta1 * m + (1 - beta1) * g); then m <- beta2 * m + (1 - beta2) * g."""

    names = ("mean",)

    def update(self, gradients: list[Tensor], rate: float, k: int) -> None:
        """Apply update k."""
        mean = self.slots["mean"]
        mixed = torch._foreach_lerp(mean, gradients, 1 - self.recipe.beta1)
        torch._foreach_add_(self.variables, torch._foreach_sign(mixed), alpha=-rate)
        torch._foreach_lerp_(mean, gradients, 1 - self.recipe.beta2)


class Muon(Rule):
    """Orthogonalized momentum for variables with so many axes, Adam for all others.

    m <- momentum * m + g. The update is the Nesterov average g + momentum * m with its singular values driven
    towards 1, times 0.2 * sqrt(max(rows, columns)), which gives it the size of an Adam step.

    With `by_row` it is NorMuon: the rows of the orthogonalized update are divided by the root of a moving
    average of their mean squares, and the update keeps the Frobenius norm that it had.
    """

    names = ("mean", "square")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.adam = Adam([self.variables[i] for i in self.others], self.recipe)
        # One set of slots: Adam works on its share, a checkpoint sees all of them.
        self.adam.slots = {name: [slot[i] for i in self.others] for name, slot in self.slots.items()}

    def update(self, gradients: list[Tensor], rate: float, k: int) -> None:
        """Apply update k."""
        if self.others:
            self.adam.update([gradients[i] for i in self.others], rate, k)
        for i in self.matrices:
            gradient, mean = gradients[i], self.slots["mean"][i]
            mean.mul_(self.recipe.momentum).add_(gradient)
            nesterov = gradient.add(mean, alpha=self.recipe.momentum)
            # All replicas at once: (replica, rows, columns). A conv kernel is flattened to (out, in * k * k).
            matrix = nesterov.reshape(self.replicas, -1, nesterov[0].numel())
            size = 0.2 * math.sqrt(max(matrix.shape[1:]))
            update = orthogonalize(matrix)
            if self.by_row:
                before = torch.linalg.matrix_norm(update, keepdim=True)
                update = normalize_rows(update, self.slots["square"][i], self.recipe.beta2)
                update *= before / (torch.linalg.matrix_norm(update, keepdim=True) + ROW_EPSILON)
            self.variables[i].add_(update.reshape(gradient.shape), alpha=-rate * size)


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

    def __post_init__(self) -> None:
        super().__post_init__()
        self.fast, self.average = self.slots["fast"], self.slots["average"]
        for copies in (self.fast, self.average):
            torch._foreach_copy_(copies, self.variables)
        # Of all variables and replicas. In float64 on the CPU, since factors are made of them.
        self.scalars = {name: torch.zeros((), dtype=torch.float64) for name in ("largest_rate", "weight_sum")}

    @abstractmethod
    def directions(self, gradients: list[Tensor], k: int) -> list[Tensor]:
        """The directions of update k, one per variable; the gradients may be overwritten."""

    def update(self, gradients: list[Tensor], rate: float, k: int) -> None:
        """Apply update k."""
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


def optimizer_for(
    recipe: Recipe, variables: Sequence[Tensor], replicas: int = 1, decayed: Sequence[int] | None = None
) -> Optimizer:
    """The optimizer of a recipe; `decayed` holds the indices of the variables that decay, by default all."""
    row = OPTIMIZERS.get(recipe.optimizer)
    if replicas > 1 and row is not None and not row.packed:
        raise ValueError(f"optimizer = {recipe.optimizer!r} trains one replica at a time")
    chosen = list(range(len(variables))) if decayed is None else list(decayed)
    if row is None or row.rule == "torch":
        return FromTorch(recipe, variables, chosen)
    return Rule.by_name[row.rule](list(variables), recipe, replicas, chosen, **row.arguments)


class FromTorch(Optimizer):
    """A `torch.optim.Optimizer`. The learning rate of every update comes from the schedule.

    Variables without an index in `decayed` get no weight decay. The optimizer must work elementwise, or the
    pack have one replica: a variable holds those of all replicas. Plain numbers that a registered optimizer
    keeps are part of its state; those of torch.optim are constants.
    """

    def __init__(self, recipe: Recipe, variables: Sequence[Tensor], decayed: Sequence[int]) -> None:
        self.variables = list(variables)
        groups: list[dict[str, Any]] = [{"params": [self.variables[i] for i in sorted(decayed)]}]
        spared = [v for i, v in enumerate(self.variables) if i not in decayed]
        groups.append({"params": spared, "weight_decay": 0.0})
        self.optimizer = _built(recipe, [group for group in groups if group["params"]])
        self.has_numbers = recipe.has_own_optimizer
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


def _built(recipe: Recipe, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """The optimizer that a recipe names as torch:NAME, or by the name under which it was registered."""
    name, field = recipe.optimizer, f"optimizer = {recipe.optimizer!r}"
    build: Callable[..., Any]
    if not recipe.has_own_optimizer:
        build, fields = getattr(torch.optim, name.removeprefix("torch:")), OPTIMIZERS[name].fields
    elif (registered := optimizers.find(name)) is not None:
        build, fields = registered.build, registered.fields
    else:
        raise ModelError(f"{field}: no plugin that registers it is loaded (--plugin MODULE)")
    options: dict[str, Any] = {"lr": recipe.learning_rate}
    options |= {name: getattr(recipe, name) for name in ("momentum", "weight_decay") if name in fields}
    if "beta1" in fields:
        options["betas"] = (recipe.beta1, recipe.beta2)
    if "epsilon" in fields:
        options["eps"] = recipe.epsilon
    with plugin_code(f"{field}: it"):
        optimizer = build(groups, **options)
    if not isinstance(optimizer, torch.optim.Optimizer):
        kind = type(optimizer).__name__
        raise ModelError(
            f"{field}: its builder returned an object of type {kind} (needed: a torch.optim.Optimizer)"
        )
    if not all("lr" in group for group in optimizer.param_groups):
        raise ModelError(f"{field}: a parameter group of it has no lr")
    return optimizer
