"""Whether replicas of a plain module can be trained as one pack: tried, not guessed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from initmem.data import Dataset, Examples, Sizes
from initmem.recipe import Recipe
from initmem.register import in_a_line
from initmem.store.record import COLUMNS
from initmem.study import Run
from initmem.train.modules import builder, check_module
from initmem.train.pack import Pack

SCALES = (0.5, 1.0, 2.0)
BATCH, BATCHES, EPOCHS = 4, 2, 2
TOLERANCE = 1e-8  # relative, in float64: that of the tests of bundled networks


def notes(recipe: Recipe, sizes: Sizes) -> list[str]:
    """What a user should know before training: why there are no packs, and what the scale leaves alone."""
    reason = obstacle(recipe, sizes)
    left = [variable.name for variable in check_module(recipe, sizes) if variable.role == "other"]
    found = [f"trains alone: {reason}"] if reason else []
    return found + ([f"as the builder made them: {', '.join(left)}"] if left else [])


def obstacle(recipe: Recipe, sizes: Sizes) -> str:
    """Why runs of a recipe's module cannot share a pack; empty if they can.

    A few updates are made in a pack and alone, in float64: every replica has to follow the trajectory that it
    follows alone. The optimizers keep replicas apart by construction, so one trial speaks for all of them.
    """
    fields = {"model": recipe.model, "width": recipe.width, "learning_rate": 0.01, "batch_size": BATCH}
    options = {"options": recipe.options} if recipe.options else {}
    trial = Recipe.parse({**fields, **options, "dataset": "synthetic", "epochs": EPOCHS})
    return _tried(trial, sizes._replace(n_train=0, n_val=0, n_test=0), builder(recipe))


@lru_cache(maxsize=64)
def _tried(recipe: Recipe, sizes: Sizes, build: Callable[..., Any]) -> str:
    """The trial, remembered for as long as the name stands for the same builder."""
    data = noise(sizes, n_train=BATCH * BATCHES, n_val=BATCH)
    runs = [Run(recipe, scale, seed) for seed, scale in enumerate(SCALES)]
    try:
        alone = [_history([run], data)[0] for run in runs]
    except Exception as error:  # whatever the module raises; if float32 does not help, training will tell
        return f"it cannot be tried in float64 ({in_a_line(error)})"
    try:
        with warnings.catch_warnings():
            # A warning of vmap says that an operation is done replica by replica: a pack would not pay.
            warnings.filterwarnings("error", message="There is a performance drop")
            packed = _history(runs, data)
    except Exception as error:  # whatever the module or vmap raises
        return _in_words(error)
    if all(_same(one, other) for one, other in zip(packed, alone, strict=True)):
        return ""
    return "in a pack its replicas do not follow the trajectories they follow alone"


def _history(runs: list[Run], data: Dataset) -> list[dict[str, list[float]]]:
    pack = Pack(runs, data, dtype=torch.float64)
    while not pack.finished:
        pack.train_epoch()
    return pack.history


def _same(one: dict[str, list[float]], other: dict[str, list[float]]) -> bool:
    return all(
        len(one[name]) == len(other[name]) and np.allclose(one[name], other[name], rtol=TOLERANCE, atol=1e-12)
        for name in COLUMNS
        if name != "seconds"
    )


def _in_words(error: Exception) -> str:
    text = str(error)
    if "randomness" in text:
        return "it draws random numbers in training (dropout?)"
    if "performance drop" in text:
        return "it uses an operation that torch.func does not batch"
    if "in-place" in text or "inplace" in text:
        return "it changes a buffer in training (batch statistics?)"
    if "data-dependent control flow" in text or ".item()" in text:
        return "its control flow depends on the data"
    return f"torch.func raised {in_a_line(error)}"


def noise(sizes: Sizes, *, n_train: int, n_val: int, n_test: int = 1) -> Dataset:
    """Random inputs and labels of the shape of a dataset."""
    rng = np.random.default_rng(0)

    def examples(n: int) -> Examples:
        shape = (n, sizes.height, sizes.width, sizes.channels)
        labels = n if sizes.labels == 1 else (n, sizes.labels)
        tokens = sizes.vocabulary > 0
        x: Any = rng.integers(0, sizes.vocabulary, shape) if tokens else rng.random(shape, dtype=np.float32)
        return Examples(x, rng.integers(0, sizes.classes, labels))

    train, val, test = (examples(n) for n in (n_train, n_val, n_test))
    return Dataset("noise", train, val, test, sizes.classes, sizes.vocabulary)
