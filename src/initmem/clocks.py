"""Learning-rate schedules and optimizer clocks, defined here and nowhere else.

A clock is a sum over updates k with learning rate eta_k, batch size b, L2 coefficient l2, weight decay wd and
momentum mu:

    sgd        (1/b) sum eta_k^2               minibatch noise of finite steps
    l2         (l2 + wd / 2) sum eta_k         explicit norm control: see `decay_rate`
    adaptive   sum eta_k                       the sum of learning rates: movement of preconditioned steps
    momentum   (1/b) sum (eta_k / (1 - mu))^2  the sgd clock at the effective learning rate of momentum
    angular    sum eta_k / ||W_k||^2           measured during training, since it depends on the kernels

For the Schedule-Free optimizers eta_k is the rate of the steps that the fast iterate z takes, and W_k the
kernels at which the gradient was taken.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from initmem.catalog import steps_of

if TYPE_CHECKING:  # NumPy is imported lazily: commands that only need the names must start fast
    import numpy as np
    from numpy.typing import NDArray

    from initmem.recipe import AnyRecipe, Recipe

CLOCKS = ("sgd", "l2", "adaptive", "momentum", "angular")
# What people read, where it is not the name that programs use.
CLOCK_NAMES = {"adaptive": "sum of learning rates"}
FAMILY_NAMES = {
    "sgd": "SGD without L2",
    "l2": "L2 or weight decay",
    "adaptive": "adaptive",
    "sgd+l2": "SGD with or without L2",
}
# The decay rate from which on an adaptive optimizer belongs to the family `l2`. Below it the sum of learning
# rates has passed its half (about 1.7) before the L2 clock comes near its own (about 0.11).
LEAST_DECAY = 0.01

T = TypeVar("T", float, "NDArray[np.float64]")


@dataclass(slots=True, eq=False)
class RateSums(Generic[T]):
    """Sums over updates, each a number or an array of partial sums: they give all clocks but `angular`."""

    eta: T  # sum of eta
    eta2: T  # sum of eta^2
    corrected: T  # sum of (eta / (1 - momentum))^2
    decay: T  # sum of (l2 + weight decay / 2) * eta

    @classmethod
    def of_recipe(cls, recipe: Recipe, eta: T, eta2: T) -> RateSums[T]:
        """The sums of a recipe's updates."""
        decay = decay_rate(recipe.l2, recipe.weight_decay)
        return cls(eta, eta2, eta2 / (1 - step_momentum(recipe)) ** 2, decay * eta)

    def clocks(self, batch_size: int) -> dict[str, T]:
        """The clocks by name."""
        return {
            "sgd": self.eta2 / batch_size,
            "l2": self.decay,
            "adaptive": self.eta,
            "momentum": self.corrected / batch_size,
        }


def decay_rate(l2: float, weight_decay: float) -> float:
    """How fast the weights shrink per unit of learning rate, in the unit of L2.

    The gradient of l2 * sum(W^2) is 2 * l2 * W, that of a coupled weight decay is weight_decay * W, and a
    decoupled one subtracts eta * weight_decay * W: a weight decay counts as an L2 of half its size.
    """
    return l2 + weight_decay / 2


class Clocks(NamedTuple):
    """Cumulative clocks at the end of every epoch, each of shape (epoch,)."""

    updates: NDArray[np.int64]
    sgd: NDArray[np.float64]
    l2: NDArray[np.float64]
    adaptive: NDArray[np.float64]
    momentum: NDArray[np.float64]

    def at_end(self) -> dict[str, float]:
        """The clocks at the horizon, by name."""
        return {name: column[-1].item() for name, column in self._asdict().items()}


def clocks(recipe: Recipe, n_train: int) -> Clocks:
    """The clocks of a recipe at the end of every epoch, computed from its schedule before any training.

    All sums are exact; the `angular` clock is missing, since it depends on the weights.

    Args:
        recipe: its learning rate, schedule, batch size, L2 and weight decay determine the clocks.
        n_train: number of training examples; with the batch size it gives the updates per epoch.
    """
    import numpy as np

    per_epoch = updates_per_epoch(recipe, n_train)
    rates = [epoch_rates(recipe, n_train, epoch) for epoch in range(1, recipe.epochs + 1)]
    eta = np.cumsum([each.sum() for each in rates])
    eta2 = np.cumsum([np.square(each).sum() for each in rates])
    ticks = RateSums.of_recipe(recipe, eta, eta2).clocks(recipe.batch_size)
    return Clocks(updates=np.arange(1, recipe.epochs + 1) * per_epoch, **ticks)


def horizon_sums(recipe: Recipe, n_train: int) -> RateSums[float]:
    """The sums over an entire run, in closed form unless there is a warmup.

    With c_k = cos(pi k / K) over k < K: sum c_k = 1, and sum c_k^2 = K / 2 (for K = 1: 1).
    """
    k = recipe.epochs * updates_per_epoch(recipe, n_train)
    if recipe.warmup:
        rates = [epoch_rates(recipe, n_train, epoch) for epoch in range(1, recipe.epochs + 1)]
        eta, eta2 = (sum(float((each**power).sum()) for each in rates) for power in (1, 2))
        return RateSums.of_recipe(recipe, eta, eta2)
    floor = 1.0 if recipe.schedule == "constant" else recipe.lr_floor
    level, swing = recipe.learning_rate * (1 + floor) / 2, recipe.learning_rate * (1 - floor) / 2
    eta2 = level**2 * k + 2 * level * swing + swing**2 * max(k / 2, 1.0)
    return RateSums.of_recipe(recipe, level * k + swing, eta2)


def updates_per_epoch(recipe: Recipe, n_train: int) -> int:
    """The number of updates per epoch; the last, smaller batch is kept."""
    return math.ceil(n_train / recipe.batch_size)


def epoch_rates(recipe: Recipe, n_train: int, epoch: int) -> NDArray[np.float64]:
    """The learning rates of the updates in one epoch (counted from 1), shape (update,).

    Update k of K has the learning rate of the schedule at k, multiplied by (k + 1) / warmup during warmup.
    """
    import numpy as np

    per_epoch = updates_per_epoch(recipe, n_train)
    k = np.arange((epoch - 1) * per_epoch, epoch * per_epoch)
    wave = (1 + np.cos(np.pi * k / (recipe.epochs * per_epoch))) / 2 if recipe.schedule == "cosine" else 1.0
    rates = recipe.learning_rate * (recipe.lr_floor + (1 - recipe.lr_floor) * wave) * np.ones(per_epoch)
    return rates * np.minimum(1.0, (k + 1) / recipe.warmup) if recipe.warmup else rates


def is_adaptive(optimizer: str) -> bool:
    """Whether the steps of an optimizer are normalized, so that the sum of learning rates counts them."""
    return steps_of(optimizer) == "normalized"


def family_of(recipe: AnyRecipe) -> str | None:
    """The clock that acts on a recipe, `sgd`, `l2` or `adaptive`; None: its optimizer was not declared."""
    if (optimizer := recipe.get("optimizer")) is None:
        return None
    decay = decay_rate(recipe.get("l2") or 0.0, recipe.get("weight_decay") or 0.0)
    if is_adaptive(str(optimizer)):
        return "l2" if decay >= LEAST_DECAY else "adaptive"
    return "l2" if decay else "sgd"


def shrinks_by_clock(recipe: AnyRecipe) -> bool:
    """Whether the decay shrinks weights as exp(-2 T) on the (effective) L2 clock, if nothing else acts.

    Adaptive optimizers normalize a decay that is part of the gradient; only a decoupled one shrinks weights.
    """
    optimizer, l2 = str(recipe.get("optimizer")), recipe.get("l2") or 0.0
    if not is_adaptive(optimizer):
        return bool(l2 or recipe.get("weight_decay")) and steps_of(optimizer) is not None
    decoupled = not optimizer.startswith("torch:") or optimizer == "torch:AdamW"
    return decoupled and not l2 and bool(recipe.get("weight_decay"))


def effective_clocks(recipe: AnyRecipe, ticks: Mapping[str, float]) -> dict[str, float]:
    """Clocks at the effective learning rate eta / (1 - momentum) of heavy ball; {}: not known.

    `sgd` is then the clock `momentum`. Heavy ball does not amplify the decoupled decay of `momentum`.
    """
    if not ticks.get("sgd") or "momentum" not in ticks:
        return {}
    factor = math.sqrt(ticks["momentum"] / ticks["sgd"])  # these two are sums of squared rates
    effective = {name: factor * value for name, value in ticks.items()}
    if recipe.get("optimizer") == "momentum" and "l2" in ticks:
        decoupled = decay_rate(0.0, recipe.get("weight_decay") or 0.0) * ticks["adaptive"]
        effective["l2"] = decoupled + factor * (ticks["l2"] - decoupled)
    return effective | dict.fromkeys(("sgd", "momentum"), ticks["momentum"])


def step_momentum(recipe: Recipe) -> float:
    """The momentum that amplifies the steps of a recipe: only that of heavy ball; Adam and Muon normalize."""
    return recipe.momentum if steps_of(recipe.optimizer) == "heavy ball" else 0.0
