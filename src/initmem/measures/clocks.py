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
