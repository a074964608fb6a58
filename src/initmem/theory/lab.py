"""The linear lab as a pipeline: its runs leave the same records as those of any other network.

The columns mean what they always mean, with three differences. The losses are half the mean
squared error, so that `val_half_mse` stands in place of `val_cross_entropy`. Validation and test are
taken with perturbed weights, as means over a few fixed small random perturbations: the trained networks
compute nearly the same function, and how much of the initialization is left in their weights shows only
when these are disturbed. Training columns are
those of the weights as they are, at the end of the epoch, judged by the noisy outputs; so no network
ever interpolates, and tau_interp never comes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from initmem.clocks import RateSums
from initmem.store.record import RunRecord, Status, summarise
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
PACK = 100  # runs trained at once: a linear network is next to nothing beside the calls that move it


def train(runs: list[Run], on_epoch: Callable[[Run, dict[str, float]], None]) -> list[RunRecord]:
    """Train runs of one recipe as an engine asks for it; `on_epoch` may raise to stop."""
    records = train_linear(runs)
    for record in records:
        if record.summary.epochs:
            last = {name: float(column[-1]) for name, column in record.history.items()}
            on_epoch(record.run, {"epoch": float(record.summary.epochs)} | last)
    return records


def train_linear(runs: Sequence[Run]) -> list[RunRecord]:
    """Train linear networks, runs of one recipe, and return their records."""
    started = time.perf_counter()
    recipe = LinearSettings.of(runs[0].recipe)
    task = linear_task(width=recipe.width)
    rates = all_rates(recipe, len(task.x))
    angular = np.zeros((recipe.epochs, len(runs)))

    def watch(k: int, factors: Factors) -> None:
        angular[k * recipe.epochs // len(rates)] += rates[k] / squared_norm(factors)

    path = trajectories(runs, task, watch=watch)
    with np.errstate(all="ignore"):  # a diverged run ends where its numbers do
        columns = _measured(path, task, recipe.l2)
        columns |= _clocks(recipe, rates, np.cumsum(angular, axis=0))
    seconds = time.perf_counter() - started
    columns["seconds"] = np.full_like(angular, seconds / angular.size)
    provenance = {"numpy": np.__version__, "torch": "not used", "seconds": round(seconds, 3)}
    lived, best = _selected(columns)
    histories = [{name: col[:n, r].copy() for name, col in columns.items()} for r, n in enumerate(lived)]
    statuses: list[Status] = ["completed" if n == recipe.epochs else "diverged" for n in lived]
    return [
        RunRecord(run, status, summarise(history, **ends), history, provenance)
        for run, status, history, ends in zip(runs, statuses, histories, _ends(path, task, best), strict=True)
    ]


def _measured(path: Path, task: Task, l2: float) -> Columns:
    """What is measured of the networks at the end of every epoch, (epoch, run) each."""
    trained = tuple(layer[1:] for layer in path.factors)
    squares = squared_norm(trained)
    train_loss, train_accuracy = evaluate(trained, task.x, task.y)
    plain, accuracy = evaluate(trained, task.val_x, task.val_x @ task.truth.T, task.shaking)
    return {
        "train_loss": train_loss,
        "train_accuracy": train_accuracy,
        "val_loss": plain + l2 * squares,
        "val_half_mse": plain,
        "val_accuracy": accuracy,
        "norm": np.sqrt(squares),
    }


def _clocks(recipe: LinearSettings, rates: Array, angular: Array) -> Columns:
    """Rates of the epochs' last updates and cumulative clocks, (epoch, run) each."""
    ends = np.arange(1, recipe.epochs + 1) * (len(rates) // recipe.epochs) - 1
    sums = RateSums.of_recipe(recipe, np.cumsum(rates)[ends], np.cumsum(rates**2)[ends])
    shared = {f"clock_{name}": values for name, values in sums.clocks(recipe.batch_size).items()}
    shared["learning_rate"] = rates[ends]
    columns = {name: np.repeat(values[:, None], angular.shape[1], axis=1) for name, values in shared.items()}
    return columns | {"clock_angular": angular}


def _selected(columns: Columns) -> tuple[Integers, Integers]:
    """How many epochs each run was finite, and which of them was its best, counted from 1: (run,).

    A run that no epoch survived keeps its start, 0.
    """
    finite = np.logical_and.reduce([np.isfinite(column) for column in columns.values()])
    alive = np.logical_and.accumulate(finite)  # (epoch, run)
    losses = np.where(alive, columns["val_loss"], np.inf)
    lived = alive.sum(axis=0)
    return lived, np.where(lived > 0, np.argmin(losses, axis=0) + 1, 0)


def _ends(path: Path, task: Task, best: Integers) -> list[dict[str, float]]:
    """Every run's norm at the start, and its test loss and accuracy at the selected epoch."""
    runs = np.arange(len(best))
    chosen = tuple(layer[best, runs] for layer in path.factors)
    loss, accuracy = evaluate(chosen, task.test_x, task.test_x @ task.truth.T, task.shaking)
    norm = np.sqrt(squared_norm(tuple(layer[0] for layer in path.factors)))
    return [
        {"norm_init": float(norm[r]), "test_loss": float(loss[r]), "test_accuracy": float(accuracy[r])}
        for r in runs
    ]
