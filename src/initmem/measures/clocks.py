"""The clocks: cumulative optimizer time, exact over the real schedule, from a recipe alone."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from initmem.recipe import Recipe
from initmem.schedule import epoch_rates, updates_per_epoch


class Clocks(NamedTuple):
    """Cumulative clocks at the end of every epoch, each of shape (epoch,)."""

    updates: NDArray[np.int64]
    sgd: NDArray[np.float64]  # (1/b) sum eta^2: minibatch noise of finite steps
    l2: NDArray[np.float64]  # l2 * sum eta: explicit norm control
    adaptive: NDArray[np.float64]  # sum eta: movement of preconditioned steps
    momentum: NDArray[np.float64]  # the sgd clock at the rate that momentum makes of eta, eta / (1 - mu)

    def at_end(self) -> dict[str, float]:
        """The clocks at the horizon, by name."""
        return {name: column[-1].item() for name, column in self._asdict().items()}


def totals(recipe: Recipe, n_train: int) -> tuple[float, float]:
    """Sum of eta and of eta^2 over a whole run, in closed form.

    With c_k = cos(pi k / K) over k < K: sum c_k = 1, and sum c_k^2 = K / 2 (for K = 1: 1).
    """
    k = recipe.epochs * updates_per_epoch(recipe, n_train)
    if recipe.schedule == "constant":
        return recipe.learning_rate * k, recipe.learning_rate**2 * k
    level = recipe.learning_rate * (1 + recipe.floor) / 2
    swing = recipe.learning_rate * (1 - recipe.floor) / 2
    squares = max(k / 2, 1.0)
    return level * k + swing, level**2 * k + 2 * level * swing + swing**2 * squares


def clocks(recipe: Recipe, n_train: int) -> Clocks:
    """All clocks of a recipe trained on n_train examples."""
    per_epoch = updates_per_epoch(recipe, n_train)
    sums = np.empty((2, recipe.epochs))  # of eta and of eta^2, per epoch
    for i in range(recipe.epochs):
        rates = epoch_rates(recipe, n_train, i + 1)
        sums[:, i] = rates.sum(), np.square(rates).sum()
    first, second = np.cumsum(sums, axis=1)
    inertia = recipe.momentum if recipe.optimizer == "momentum" else 0.0
    return Clocks(
        updates=np.arange(1, recipe.epochs + 1) * per_epoch,
        sgd=second / recipe.batch_size,
        l2=recipe.l2 * first,
        adaptive=first,
        momentum=second / recipe.batch_size / (1 - inertia) ** 2,
    )
