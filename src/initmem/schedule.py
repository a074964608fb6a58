"""The learning rate of every update, from a recipe alone."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from initmem.recipe import Recipe


def updates_per_epoch(recipe: Recipe, n_train: int) -> int:
    """The last, smaller batch of an epoch is kept."""
    return math.ceil(n_train / recipe.batch_size)


def epoch_rates(recipe: Recipe, n_train: int, epoch: int) -> NDArray[np.float64]:
    """Learning rates of the updates of one epoch (counted from 1), shape (update,)."""
    per_epoch = updates_per_epoch(recipe, n_train)
    if recipe.schedule == "constant":
        return np.full(per_epoch, recipe.learning_rate)
    k = np.arange((epoch - 1) * per_epoch, epoch * per_epoch)
    wave = (1 + np.cos(np.pi * k / (recipe.epochs * per_epoch))) / 2
    return np.asarray(recipe.learning_rate * (recipe.floor + (1 - recipe.floor) * wave))
