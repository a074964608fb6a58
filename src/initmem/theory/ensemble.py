"""Ensembles of linear networks: the smallest complete experiment on initialization memory.

Every recipe trains the same two-factor networks from several initialization scales and seeds on
one noisy linear task. At every scale and seed the trained networks compute nearly the same
function; what the scale leaves behind is their imbalance, seen in the norm of the weights, and in
the accuracy once the weights are perturbed, which large weights do not survive.

Three families of recipes differ only in batch size, each erasing the imbalance by one mechanism:

- `sgd`: minibatch noise, on the clock T_SGD = (1/b) sum of eta^2;
- `l2`: coupled decay, on T_L2 = lambda sum of eta;
- `adaptive`: Adam, on T_adapt = sum of eta.

Within a family the memory of different batch sizes agrees against its clock and disagrees against
epochs. One limit is worth knowing: with noise at the minimum, Adam's drift along the minima is of
second order in eta, so T_adapt lines up batch sizes at one eta, but not different values of eta.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from initmem.theory._arrays import Array, Factors, Flags, Integers, frobenius, require
from initmem.theory.descent import Adam, GradientDescent, HeavyBall, Muon, Rule, descend
from initmem.theory.linear import imbalances, product, random_network
from initmem.theory.losses import minibatch, regression, sampled_batches

Clock = Literal["sgd", "l2", "adaptive"]
RULES: dict[str, Rule] = {
    "sgd": GradientDescent(),
    "momentum": HeavyBall(),
    "adam": Adam(),
    "muon": Muon(),
}


@dataclass(frozen=True)
class LinearRecipe:
    """How to train: `decay` is lambda, coupled; `clock` names the family the recipe belongs to."""

    optimizer: str
    learning_rate: float
    batch_size: int
    decay: float = 0.0
    clock: Clock = "sgd"

    def __post_init__(self) -> None:
        names = ", ".join(RULES)
        require(self.optimizer in RULES, f"optimizer: {self.optimizer!r}; allowed: {names}")
        require(self.learning_rate > 0, f"learning_rate: {self.learning_rate}; allowed: above 0")
        require(self.batch_size >= 1, f"batch_size: {self.batch_size}; allowed: one or more")
        require(self.decay >= 0, f"decay: {self.decay}; allowed: zero or more")


SCALES = (1.0, 1.5, 2.0, 2.5, 3.0)
BATCH_SIZES = (4, 8, 16)
RECIPES = (
    *(LinearRecipe("sgd", 0.01, b, clock="sgd") for b in BATCH_SIZES),
    *(LinearRecipe("sgd", 0.004, b, decay=0.2, clock="l2") for b in BATCH_SIZES),
    *(LinearRecipe("adam", 0.06, b, clock="adaptive") for b in BATCH_SIZES),
)


@dataclass(frozen=True)
class Task:
    """Noisy outputs of a linear map, and clean points to judge by.

    `x` and `y` are (sample, feature); `val_x` is (point, feature) and `labels` (point,), the
    largest output of the true map `truth`, (feature, feature), there. `shaking` perturbs weights:
    (draw, layer, feature, feature).
    """

    x: Array
    y: Array
    val_x: Array
    labels: Integers
    truth: Array
    shaking: Array


@dataclass(frozen=True)
class Ensemble:
    """What one recipe left behind at every scale, seed and epoch.

    `scales` is (scale,), `seeds` (seed,), and `epochs` and `updates` are (epoch,), from 0 at the
    start. Each of `clocks` is (epoch,): `sgd`, `l2`, `adaptive`. Each of `metrics` is
    (scale, seed, epoch): `norm`, `imbalance`, `train_loss`, `val_loss`, `val_accuracy`, and
    `shaken_accuracy`, that of perturbed weights. `diverged` is (scale, seed).
    """

    recipe: LinearRecipe
    scales: Array
    seeds: Integers
    epochs: Integers
    updates: Integers
    clocks: dict[str, Array]
    metrics: dict[str, Array]
    diverged: Flags


def linear_task(
    *, seed: int, features: int = 4, samples: int = 256, noise: float = 3.0, points: int = 128
) -> Task:
    """Draw a task whose minibatch noise is the same in all directions.

    Inputs are whitened and the true map is twice a rotation, as wide as it is high: then noise
    shrinks U'U and VV' alike, and D decays to zero rather than to another imbalance.
    """
    rng = np.random.default_rng(seed)
    x = np.linalg.qr(rng.normal(size=(samples, features))).Q * np.sqrt(samples)
    truth = 2 * np.linalg.qr(rng.normal(size=(features, features))).Q
    y = x @ truth.T + noise * rng.normal(size=(samples, features))
    val_x = rng.normal(size=(points, features))
    labels = np.argmax(val_x @ truth.T, axis=1)
    shaking = 0.25 * rng.normal(size=(12, 2, features, features))
    return Task(x, y, val_x, labels, truth, shaking)


def train(
    recipe: LinearRecipe,
    task: Task,
    *,
    seeds: Sequence[int],
    scales: Sequence[float] = SCALES,
    epochs: int = 60,
) -> Ensemble:
    """Train one network per scale and seed, all at once.

    A seed fixes the standard normal draw behind the initialization at every scale, and the
    minibatches, by a generator of its own for each.
    """
    require(len(seeds) > 0 and len(scales) > 0, "seeds, scales: allowed: one or more of each")
    require(epochs >= 1, f"epochs: {epochs}; allowed: one or more")
    n, d = task.x.shape
    per_epoch = -(-n // recipe.batch_size)
    steps = epochs * per_epoch
    sigma = np.asarray(scales, dtype=np.float64)
    drawn = [random_network((d, d, d), rng=np.random.default_rng((s, 0))) for s in seeds]
    start = tuple(sigma[:, None, None, None] * np.stack(w) for w in zip(*drawn, strict=True))
    orders = [sampled_batches(n, recipe.batch_size, steps, rng=np.random.default_rng((s, 1))) for s in seeds]
    batches = [np.stack(rows)[None] for rows in zip(*orders, strict=True)]  # (1, seed, sample)
    estimate = minibatch(lambda rows: regression(task.x[rows], task.y[rows]), batches)
    rates = np.full(steps, recipe.learning_rate)
    path = descend(
        start, estimate, RULES[recipe.optimizer], rates, steps, decay=recipe.decay, every=per_epoch
    )
    updates = per_epoch * np.arange(epochs + 1)
    return Ensemble(
        recipe,
        sigma,
        np.asarray(seeds, dtype=np.int64),
        np.arange(epochs + 1),
        updates,
        _clocks(recipe, rates, updates),
        {name: np.moveaxis(m, 0, -1) for name, m in _metrics(path.factors, task).items()},
        path.diverged,
    )


def study(
    *,
    task_seed: int,
    seeds: Sequence[int],
    scales: Sequence[float] = SCALES,
    epochs: int = 60,
    recipes: Sequence[LinearRecipe] = RECIPES,
) -> list[Ensemble]:
    """Train the ensembles of all recipes, by default those of the three families."""
    task = linear_task(seed=task_seed)
    return [train(recipe, task, seeds=seeds, scales=scales, epochs=epochs) for recipe in recipes]


def _batches(n: int, size: int, steps: int, seeds: Sequence[int]) -> list[Integers]:
    """Row numbers of every update, (1, seed, sample): each seed's own, the same at every scale."""
    orders = [sampled_batches(n, size, steps, rng=np.random.default_rng((s, 1))) for s in seeds]
    return [np.stack(rows)[None] for rows in zip(*orders, strict=True)]


def _clocks(recipe: LinearRecipe, rates: Array, updates: Integers) -> dict[str, Array]:
    """The three clocks after each epoch, from the rates of all updates."""
    first = np.concatenate([[0.0], np.cumsum(rates)])[updates]
    second = np.concatenate([[0.0], np.cumsum(rates**2)])[updates]
    return {"sgd": second / recipe.batch_size, "l2": recipe.decay * first, "adaptive": first}


def _metrics(factors: Factors, task: Task) -> dict[str, Array]:
    """Every metric of networks (epoch, scale, seed, ...): arrays (epoch, scale, seed)."""
    with np.errstate(all="ignore"):  # diverged networks are NaN throughout
        w = product(factors)
        shaken = [
            _accuracy(product(tuple(f + e for f, e in zip(factors, shake, strict=True))), task)
            for shake in task.shaking
        ]
        return {
            "norm": np.sqrt(sum((frobenius(f) ** 2 for f in factors), np.zeros(w.shape[:-2]))),
            "imbalance": frobenius(imbalances(factors)[0]),
            "train_loss": regression(task.x, task.y).value(w),
            "val_loss": regression(task.val_x, task.val_x @ task.truth.T).value(w),
            "val_accuracy": _accuracy(w, task),
            "shaken_accuracy": np.mean(shaken, axis=0),
        }


def _accuracy(w: Array, task: Task) -> Array:
    """The share of points whose largest output is the true one; NaN for a diverged network."""
    right = np.argmax(task.val_x @ w.mT, axis=-1) == task.labels
    known = np.isfinite(w).all(axis=(-2, -1))
    return np.where(known, right.mean(axis=-1), np.nan)
