"""Whether runs with code of a plugin can share a pack, and be resumed: tried, not guessed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from initmem import register
from initmem.data.dataset import Dataset, Examples, Sizes
from initmem.errors import ModelError
from initmem.recipe import Recipe
from initmem.record import COLUMNS
from initmem.register import in_a_line
from initmem.study import Run
from initmem.train.loop import train_epoch
from initmem.train.modules import builder, check_module
from initmem.train.pack import Pack

SCALES = (0.5, 1.0, 2.0)
BATCH, BATCHES, EPOCHS = 4, 2, 2
TOLERANCE = 1e-8  # relative, in float64: that of the tests of bundled networks


def notes(recipe: Recipe, sizes: Sizes) -> list[str]:
    """What a user should know before training: why there are no packs, and what the scale leaves alone."""
    reason = obstacle(recipe, sizes)
    variables = check_module(recipe, sizes) if recipe.is_module else []
    left = [variable.name for variable in variables if variable.role == "other"]
    alone = [f"trains alone: {reason}"] if reason else []
    return alone + ([f"as the builder made them: {', '.join(left)}"] if left else [])


def obstacle(recipe: Recipe, sizes: Sizes) -> str:
    """Why runs of a recipe cannot share a pack; empty if they can.

    A few updates are made in a pack and alone, in float64: every replica has to follow the trajectory that it
    follows alone. The optimizers of initmem keep replicas apart by construction, so one trial speaks for all
    of them; a registered one is tried itself.
    """
    trial, code = _trial(recipe)
    return _tried(trial, sizes._replace(n_train=0, n_val=0, n_test=0), code)


def _trial(recipe: Recipe) -> tuple[Recipe, tuple[Callable[..., Any], ...]]:
    """A short recipe with the network and the registered optimizer of another, and the code of both."""
    fields: dict[str, Any] = {"model": recipe.model, "width": recipe.width, "norm": recipe.norm}
    fields |= {"options": recipe.options} if recipe.options else {}
    code = (builder(recipe),) if recipe.is_module else ()
    if (own := register.optimizers.find(recipe.optimizer)) is not None:
        fields |= {"optimizer": recipe.optimizer, "decay_on": recipe.decay_on}
        fields |= {name: getattr(recipe, name) for name in own.fields}
        code = (*code, own.build)
    rest = {"dataset": "synthetic", "epochs": EPOCHS, "learning_rate": 0.01, "batch_size": BATCH}
    return Recipe.parse(fields | rest), code


def check_optimizer(recipe: Recipe, sizes: Sizes) -> None:
    """Make a few updates with a registered optimizer, and again with a resumption between them."""
    trial, _ = _trial(recipe)
    data, runs = noise(sizes, n_train=BATCH * BATCHES, n_val=BATCH), [Run(trial, 1.0, 0)]
    told = f"optimizer = {recipe.optimizer!r}"
    whole, resumed = Pack(runs, data), Pack(runs, data)
    try:
        train_epoch(whole)
        resumed.restore(whole.checkpoint())
        for pack in (whole, resumed):
            train_epoch(pack)
    except Exception as error:  # a plugin may raise anything
        raise ModelError(f"{told}: an update raised {in_a_line(error)}") from None
    if not _same(whole.history[0], resumed.history[0], tolerance=0.0):
        raise ModelError(
            f"{told}: a resumed run takes other steps (needed: all that changes is in its state or "
            "param_groups, as tensors or numbers)"
        )


@lru_cache(maxsize=64)
def _tried(recipe: Recipe, sizes: Sizes, code: tuple[Callable[..., Any], ...]) -> str:
    """The trial, remembered for as long as the names stand for the same code."""
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
        train_epoch(pack)
    pack.checkpoint()  # which splits the state of the optimizer by replica
    return pack.history


def _same(
    one: dict[str, list[float]], other: dict[str, list[float]], *, tolerance: float = TOLERANCE
) -> bool:
    return all(
        len(one[name]) == len(other[name])
        and np.allclose(one[name], other[name], rtol=tolerance, atol=1e-4 * tolerance)
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
