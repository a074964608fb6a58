"""The linear lab as a pipeline: the smallest complete experiment on initialization memory.

A run of the pipeline `linear` is a two-factor network W = U V, trained on a noisy linear task. The networks
of all scales and seeds of a recipe are trained at once. After training they compute nearly the same function;
what the scale leaves behind is their imbalance. It shows in the norm of the weights, and in the accuracy once
the weights are perturbed, since networks with large weights are more sensitive to perturbation.

The bundled study `linear` has three families of recipes. Within a family, recipes differ only in batch size,
and each family erases the imbalance by one mechanism, on one clock:

- minibatch noise, on T_SGD = (1/b) sum of eta^2;
- L2, the penalty l2 * |W|^2, on T_L2 = l2 sum of eta: its gradient is 2 l2 W, so that the imbalance
  shrinks as exp(-4 T_L2);
- Adam, on T_adapt = sum of eta.

Within a family, the memory of different batch sizes agrees when plotted against its clock and disagrees
against epochs. One limit: with noise at the minimum, Adam's drift along the minima is of second order in eta,
so T_adapt aligns batch sizes at one eta, but not different values of eta.

The columns of a record have their usual meaning, with three differences. The loss is half the mean squared
error, so `train_half_mse`, `val_half_mse` and, in the summary, `test_loss` replace the cross-entropies.
Validation and test metrics are averages over a few small, fixed random perturbations of the weights. Training
metrics use the unperturbed weights at the end of the epoch and the noisy outputs, so no network ever
interpolates, and tau_interp is always missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from initmem.clocks import RateSums, epoch_rates
from initmem.errors import ConfigError, validated
from initmem.recipe import PipelineRecipe, Recipe
from initmem.record import RunRecord, Status, summarize
from initmem.seeds import generator
from initmem.study import Run
from initmem.theory import (
    Array,
    Factors,
    Loss,
    descend,
    optimizer,
    product,
    random_network,
    require,
)

Columns = dict[str, Array]
PIPELINE = "linear"  # the name of this pipeline in study files
PACK = 100  # runs trained at once: for linear networks the overhead of NumPy calls dominates


class LinearSettings(BaseModel):
    """The settings of a linear network; names and defaults are those of a `Recipe`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    width: int = Field(4, ge=1)
    optimizer: Literal["sgd", "momentum", "adam"] = "sgd"
    learning_rate: float = Field(1e-3, gt=0)
    schedule: Literal["cosine", "constant"] = "cosine"
    lr_floor: float = Field(0.01, ge=0, le=1)
    warmup: int = Field(0, ge=0)
    momentum: float = Field(0.9, ge=0, lt=1)
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.999, ge=0, lt=1)
    epsilon: float = Field(1e-7, gt=0)
    l2: float = Field(0.0, ge=0)
    weight_decay: ClassVar[float] = 0.0  # there is no decoupled decay
    batch_size: int = Field(128, ge=1)
    epochs: int = Field(300, ge=1)

    @classmethod
    def of(cls, recipe: PipelineRecipe | Recipe) -> LinearSettings:
        """The settings declared by a recipe of the pipeline `linear`; all bad ones are reported at once."""
        declared = {name: value for name, value in recipe.changes().items() if name != "pipeline"}
        try:
            return validated(cls, declared)
        except ConfigError as error:
            raise ConfigError(f"pipeline linear: {error}") from None


@dataclass(frozen=True)
class Task:
    """Noisy outputs of a linear map for training, and clean points for validation and test.

    `x` and `y` are (sample, feature), `val_x` and `test_x` (point, feature), and the true map `truth` is
    (feature, feature). `perturbations` of the two factors are (draw, width, feature) and
    (draw, feature, width).
    """

    x: Array
    y: Array
    val_x: Array
    test_x: Array
    truth: Array
    perturbations: Factors


def linear_task(*, width: int = 4) -> Task:
    """The task, whose minibatch noise is isotropic; its data are the same at every width.

    Inputs are whitened and the true map is twice a rotation: noise then shrinks U'U and VV' alike, and D
    decays to zero rather than to another imbalance.
    """
    rng = np.random.default_rng(0)
    samples, features = 512, 4
    x = np.linalg.qr(rng.normal(size=(samples, features))).Q * np.sqrt(samples)
    truth = 2 * np.linalg.qr(rng.normal(size=(features, features))).Q
    y = x @ truth.T + 3.0 * rng.normal(size=(samples, features))
    val_x, test_x = rng.normal(size=(2, 256, features))
    lower, upper = (0.25 * rng.normal(size=(8, *shape)) for shape in ((width, features), (features, width)))
    return Task(x, y, val_x, test_x, truth, (lower, upper))


def trajectories(
    runs: Sequence[Run], task: Task, *, watch: Callable[[int, Factors], None] | None = None
) -> Factors:
    """Train the runs of one recipe together; the path holds the start and the end of every epoch.

    Its factors are (epoch, run, ...). A seed draws the same standard normals at every scale, and each epoch
    is a fresh permutation of the samples, as for any other network.
    """
    recipe = LinearSettings.of(runs[0].recipe)
    require(
        all(run.recipe == runs[0].recipe for run in runs),
        "runs: of several recipes; allowed: runs of one recipe",
    )
    rates = all_rates(recipe, len(task.x))
    settings = recipe.model_dump(include={"momentum", "beta1", "beta2", "epsilon"})
    return descend(
        _initial(runs, recipe.width, task.x.shape[1]),
        _losses(runs, recipe.batch_size, task),
        optimizer(recipe.optimizer, **settings),
        rates,
        len(rates),
        decay=2 * recipe.l2,  # the gradient of l2 |W|^2 is 2 l2 W
        every=len(rates) // recipe.epochs,
        watch=watch,
    )


def evaluate(
    factors: Factors, inputs: Array, outputs: Array, perturbations: Factors | None = None
) -> tuple[Array, Array]:
    """Loss, and accuracy of the index of the largest output: (...) each.

    `inputs` and `outputs` are (point, feature). With `perturbations`, both are means over networks whose
    factors are perturbed by each draw.
    """
    if perturbations is not None:
        draws = [
            evaluate(tuple(f + e for f, e in zip(factors, noise, strict=True)), inputs, outputs)
            for noise in zip(*perturbations, strict=True)
        ]
        loss, accuracy = (np.mean(values, axis=0) for values in zip(*draws, strict=True))
        return loss, accuracy
    predicted = inputs @ product(factors).mT  # (..., point, feature)
    correct = np.argmax(predicted, axis=-1) == np.argmax(outputs, axis=-1)
    squares: Array = np.sum((predicted - outputs) ** 2, axis=(-2, -1))
    return squares / (2 * len(inputs)), correct.mean(axis=-1)


def all_rates(recipe: LinearSettings, samples: int) -> Array:
    """The learning rate of every update of a run, (update,)."""
    return np.concatenate([epoch_rates(recipe, samples, e) for e in range(1, recipe.epochs + 1)])


def squared_norm(factors: Factors) -> Array:
    """The squared Frobenius norm of both factors together, (...)."""
    lower, upper = (np.sum(factor * factor, axis=(-2, -1)) for factor in factors)
    return np.asarray(lower + upper)


def _initial(runs: Sequence[Run], width: int, features: int) -> Factors:
    """The factors of every run, (run, width, feature) and (run, feature, width)."""
    dims = (features, width, features)
    drawn = [
        random_network(dims, rng=generator(run.seed_of("init"), "init"), scale=run.scale) for run in runs
    ]
    lower, upper = (np.stack(layer) for layer in zip(*drawn, strict=True))
    lower[:, 0, 0] *= [run.perturbation for run in runs]
    return lower, upper


def _losses(runs: Sequence[Run], batch_size: int, task: Task) -> Iterator[Loss]:
    """For every update the loss of all runs, each on its own minibatch.

    A minibatch enters the gradient W (x x') - (y x') only through two means over its samples, which are
    computed for a whole epoch at once, and only once for all runs with the same data order.
    """
    n = len(task.x)
    starts = np.arange(0, n, batch_size)
    counts = np.diff(starts, append=n)[:, None, None, None]
    outer = [side[:, :, None] * task.x[:, None, :] for side in (task.x, task.y)]
    seeds, which = np.unique([run.seed_of("order") for run in runs], return_inverse=True)
    for epoch in count(1):
        orders = [generator(int(seed), "order", epoch).permutation(n) for seed in seeds]
        sums = [[np.add.reduceat(samples[order], starts) for order in orders] for samples in outer]
        # (update, run, feature, feature) each
        inputs, outputs = (np.stack(of_seed, axis=1)[:, which] / counts for of_seed in sums)
        for of_inputs, of_outputs in zip(inputs, outputs, strict=True):
            yield partial(_gradient, of_inputs, of_outputs)


def _gradient(inputs: Array, outputs: Array, w: Array) -> Array:
    return w @ inputs - outputs


def train(runs: list[Run], on_epoch: Callable[[Run, dict[str, float]], None]) -> list[RunRecord]:
    """Train runs of one recipe, as engines expect of a trainer; `on_epoch` may raise to stop."""
    records = train_linear(runs)
    for record in records:
        if record.summary.epochs:
            last = {name: float(column[-1]) for name, column in record.history.items()}
            on_epoch(record.run, {"epoch": float(record.summary.epochs)} | last)
    return records


def train_linear(runs: Sequence[Run]) -> list[RunRecord]:
    """Train linear networks, all of one recipe, and return their records."""
    import torch  # its version is recorded, for the updates of the optimizers

    started = time.perf_counter()
    recipe = LinearSettings.of(runs[0].recipe)
    task = linear_task(width=recipe.width)
    rates = all_rates(recipe, len(task.x))
    angular = np.zeros((recipe.epochs, len(runs)))

    def watch(k: int, factors: Factors) -> None:
        angular[k * recipe.epochs // len(rates)] += rates[k] / squared_norm(factors)

    path = trajectories(runs, task, watch=watch)
    with np.errstate(all="ignore"):  # a diverged run ends at its last finite epoch
        columns = _measured(path, task, recipe.l2)
        columns |= _clocks(recipe, rates, np.cumsum(angular, axis=0))
        seconds = time.perf_counter() - started
        columns["seconds"] = np.full_like(angular, seconds / angular.size)
        # The epochs until one is not finite, (epoch, run). The selected epoch is counted from 1; for a run
        # without a finite epoch it is 0, its initialization.
        alive = np.logical_and.accumulate(np.isfinite(list(columns.values())).all(axis=0))
        lengths = alive.sum(axis=0)
        best = np.argmin(np.where(alive, columns["val_objective"], np.inf), axis=0) + 1
        ends = _ends(path, task, np.where(lengths > 0, best, 0), recipe.l2)
    provenance = {"numpy": np.__version__, "torch": torch.__version__, "seconds": round(seconds, 3)}
    records = []
    for r, (run, length) in enumerate(zip(runs, lengths, strict=True)):
        history = {name: column[:length, r].copy() for name, column in columns.items()}
        summary = summarize(
            history, selects="val_objective", **{name: float(column[r]) for name, column in ends.items()}
        )
        status: Status = "completed" if length == recipe.epochs else "diverged"
        records.append(RunRecord(run, status, summary, history, provenance))
    return records


def _measured(path: Factors, task: Task, l2: float) -> Columns:
    """The metrics of the networks at the end of every epoch, (epoch, run) each."""
    trained = tuple(layer[1:] for layer in path)
    squares = squared_norm(trained)
    train, train_accuracy = evaluate(trained, task.x, task.y)
    plain, accuracy = evaluate(trained, task.val_x, task.val_x @ task.truth.T, task.perturbations)
    return {
        "train_half_mse": train,
        "train_objective": train + l2 * squares,
        "train_accuracy": train_accuracy,
        "val_half_mse": plain,
        "val_objective": plain + l2 * squares,
        "val_accuracy": accuracy,
        "norm": np.sqrt(squares),
    }


def _clocks(recipe: LinearSettings, rates: Array, angular: Array) -> Columns:
    """The learning rate at the end of every epoch, and the cumulative clocks, (epoch, run) each."""
    ends = np.arange(1, recipe.epochs + 1) * (len(rates) // recipe.epochs) - 1
    sums = RateSums.of_recipe(recipe, np.cumsum(rates)[ends], np.cumsum(rates**2)[ends])
    shared = {f"clock_{name}": values for name, values in sums.clocks(recipe.batch_size).items()}
    shared["learning_rate"] = rates[ends]
    columns = {name: np.repeat(values[:, None], angular.shape[1], axis=1) for name, values in shared.items()}
    return columns | {"clock_angular": angular}


def _ends(path: Factors, task: Task, best: NDArray[np.int64], l2: float) -> Columns:
    """The initial norm of every run, and its test results at the selected epoch, (run,) each."""
    chosen = tuple(layer[best, np.arange(len(best))] for layer in path)
    loss, accuracy = evaluate(chosen, task.test_x, task.test_x @ task.truth.T, task.perturbations)
    norm = np.sqrt(squared_norm(tuple(layer[0] for layer in path)))
    objective = loss + l2 * squared_norm(chosen)
    return {"norm_init": norm, "test_loss": loss, "test_objective": objective, "test_accuracy": accuracy}
