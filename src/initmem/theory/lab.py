"""The linear lab as a pipeline: its runs produce the same kind of records as any other network.

The columns have their usual meaning, with three differences. The loss is half the mean squared error, so
`train_half_mse`, `val_half_mse` and, in the summary, `test_loss` replace the cross-entropies. Validation and
test metrics are averages over a few small, fixed random perturbations of the weights: the trained networks
compute nearly the same function, and what their weights retain of the initialization shows only when they are
perturbed. Training metrics use the unperturbed weights at the end of the epoch and the noisy outputs, so no
network ever interpolates, and tau_interp is always missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from initmem.clocks import RateSums
from initmem.record import RunRecord, Status, summarize
from initmem.study import Run
from initmem.theory._arrays import Array, Factors, Integers
from initmem.theory.ensemble import (
    LinearSettings,
    Task,
    all_rates,
    evaluate,
    linear_task,
    squared_norm,
    trajectories,
)
from initmem.theory.linear import Path

Columns = dict[str, Array]
PIPELINE = "linear"  # the name of this pipeline in study files
PACK = 100  # runs trained at once: for linear networks the overhead of NumPy calls dominates


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
    provenance = {"numpy": np.__version__, "torch": "not used", "seconds": round(seconds, 3)}
    lived, best = _selected(columns)
    histories = [{name: col[:n, r].copy() for name, col in columns.items()} for r, n in enumerate(lived)]
    statuses: list[Status] = ["completed" if n == recipe.epochs else "diverged" for n in lived]
    return [
        RunRecord(run, status, summarize(history, selects="val_objective", **ends), history, provenance)
        for run, status, history, ends in zip(
            runs, statuses, histories, _ends(path, task, best, recipe.l2), strict=True
        )
    ]


def _measured(path: Path, task: Task, l2: float) -> Columns:
    """The metrics of the networks at the end of every epoch, (epoch, run) each."""
    trained = tuple(layer[1:] for layer in path.factors)
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


def _selected(columns: Columns) -> tuple[Integers, Integers]:
    """The number of finite epochs of each run, and its selected epoch, counted from 1: (run,) each.

    For a run without a finite epoch, the selected epoch is 0, its initialization.
    """
    finite = np.logical_and.reduce([np.isfinite(column) for column in columns.values()])
    alive = np.logical_and.accumulate(finite)  # (epoch, run)
    losses = np.where(alive, columns["val_objective"], np.inf)
    lived = alive.sum(axis=0)
    return lived, np.where(lived > 0, np.argmin(losses, axis=0) + 1, 0)


def _ends(path: Path, task: Task, best: Integers, l2: float) -> list[dict[str, float]]:
    """The initial norm of every run, and its test results at the selected epoch."""
    runs = np.arange(len(best))
    chosen = tuple(layer[best, runs] for layer in path.factors)
    loss, accuracy = evaluate(chosen, task.test_x, task.test_x @ task.truth.T, task.perturbations)
    norm = np.sqrt(squared_norm(tuple(layer[0] for layer in path.factors)))
    objective = loss + l2 * squared_norm(chosen)
    values = {"norm_init": norm, "test_loss": loss, "test_objective": objective, "test_accuracy": accuracy}
    return [{name: float(column[r]) for name, column in values.items()} for r in runs]
