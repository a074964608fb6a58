"""What the measures of interventions must find where the answer is known.

    python benchmarks/interventions.py             # a minute
    python benchmarks/interventions.py --studies 1000

Relaxation: 300 studies of a linear network with two layers and weight decay lambda, of which the first layer
is doubled and the second halved in mid-training. The imbalance |U|^2 - |V|^2 then relaxes as
exp(-2 lambda t): how many intervals contain 2 lambda? Batch norm: does a network whose weights are doubled
classify as before? Function memory: are untrained networks matched to their own initialization, and shuffled
ones at chance?
"""

from __future__ import annotations

import argparse
from itertools import permutations
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray

from initmem.data.sources import load
from initmem.intervention import checked
from initmem.measures.function import identification
from initmem.measures.relaxation import Relaxation, relaxation
from initmem.recipe import Recipe
from initmem.study import Run
from initmem.train.layers import NORM_EPSILON
from initmem.train.loop import evaluate, evaluated_model, train_epoch, train_pack
from initmem.train.pack import Pack

Array = NDArray[np.float64]
SEEDS, EPOCHS, UPDATES, SIZE = 5, 50, 5, 3
DIGITS = {
    "dataset": "digits",
    "train_size": 200,
    "width": 4,
    "batch_size": 16,
    "learning_rate": 0.01,
    "batch_statistics": "re-estimated",
}


# -- relaxation -------------------------------------------------------------------------------------------


def imbalances(lambdas: Array, rng: np.random.Generator, *, rate: float, noise: float) -> Array:
    """How far the imbalance of the touched network is from the untouched one, (study, seed, epoch).

    Both networks see the same targets, with noise of its own in every update.
    """
    shape = (len(lambdas), SEEDS, SIZE, SIZE)
    decay = lambdas[:, None, None, None]
    target, u, v = rng.standard_normal((3, *shape)) / 2
    first, second = np.stack([u, u]), np.stack([v, v])  # (network, study, seed, row, column)
    curves = []
    for epoch in range(-10, EPOCHS):
        if epoch == 0:
            first[1], second[1] = 2 * first[1], second[1] / 2
        for _ in range(UPDATES):
            error = first @ second - target - noise * rng.standard_normal(shape)
            to_first, to_second = error @ second.swapaxes(-1, -2), first.swapaxes(-1, -2) @ error
            first = first - rate * (to_first + decay * first)
            second = second - rate * (to_second + decay * second)
        imbalance = (first**2).sum(axis=(-1, -2)) - (second**2).sum(axis=(-1, -2))
        curves.append(imbalance[1] - imbalance[0])
    return np.stack(curves[10:], axis=-1)


def relaxation_coverage(studies: int) -> None:
    """Print how many intervals contain the planted rate, and one that is wrong by a half."""
    rng = np.random.default_rng(36)
    for observed in (0.05, 0.2):
        fits, rates = planted(studies, rng, observed=observed)
        print(
            f"relaxation, observed with noise of {observed:.0%} of its start: {covered(fits, rates):.1%} of "
            f"{studies} intervals contain the rate of the decay, {covered(fits, 1.5 * rates):.1%} a rate "
            "that is larger by a half"
        )
    fits, rates = planted(studies, rng, observed=0.05, learning_rate=0.02, noise=1.0)
    print(
        "relaxation, four times the learning rate and ten times the noise of the gradient: median rate "
        f"{np.median([fit.rate for fit in fits] / rates):.2f} times that of the decay alone"
    )


def planted(
    studies: int,
    rng: np.random.Generator,
    *,
    observed: float,
    learning_rate: float = 0.005,
    noise: float = 0.1,
) -> tuple[list[Relaxation], Array]:
    """Fits of studies whose imbalance is observed with noise, and the rates of their decay alone."""
    lambdas = np.exp(rng.uniform(np.log(0.3), np.log(2.0), studies)) * 0.005 / learning_rate
    curves = imbalances(lambdas, rng, rate=learning_rate, noise=noise)
    size = observed * np.abs(curves[..., :1]).mean(axis=1, keepdims=True)
    curves = curves + size * rng.standard_normal(curves.shape)
    time = learning_rate * UPDATES * np.arange(1.0, EPOCHS + 1)
    return [relaxation(curve, time) for curve in curves], 2 * lambdas


def covered(fits: list[Relaxation], rates: Array) -> float:
    """The share of intervals that contain the rate."""
    limits = [(fit.rate_low, fit.rate_high) for fit in fits]
    within = [
        low is not None and high is not None and low <= rate <= high
        for (low, high), rate in zip(limits, rates, strict=True)
    ]
    return float(np.mean(within))


# -- batch norm -------------------------------------------------------------------------------------------


def batch_norm_check() -> None:
    """Print validation accuracy right before and after all weights are doubled in mid-training."""
    recipe = Recipe.parse(DIGITS | {"epochs": 8})
    text = checked("scale=2:kernels,biases@5", recipe)
    for epsilon in (NORM_EPSILON, 1e-10):
        with patch("initmem.train.layers.NORM_EPSILON", epsilon):
            pack = Pack([Run(recipe, 1.0, seed, intervention=text) for seed in range(6)], load(recipe))
            for _ in range(5):
                train_epoch(pack)
            accuracies, norms = [], []
            for _ in range(2):
                with evaluated_model(pack, 5):
                    accuracies.append(torch.as_tensor(evaluate(pack, pack.val)[1]))
                norms.append(pack.kernel_squares().sqrt())
                pack.intervene()
        (before, after), count = accuracies, len(pack.val)
        print(
            f"batch norm with epsilon {epsilon:g}, weights doubled after epoch 5: norms times "
            f"{float((norms[1] / norms[0]).mean()):.6f}, validation accuracy {100 * before.mean():.2f}% "
            f"before and {100 * after.mean():.2f}% after; change in the "
            f"right answers of {count}, by seed: "
            f"{((after - before) * count).round().int().tolist()}"
        )


# -- function ---------------------------------------------------------------------------------------------


def identification_check() -> None:
    """Print how many untrained networks are matched to their own initialization, and to a shuffled one."""
    for model in ("mlp", "resnet9"):
        recipe = Recipe.parse(DIGITS | {"model": model, "learning_rate": 1e-9, "epochs": 1})
        runs = [Run(recipe, scale, seed) for seed in range(6) for scale in (0.5, 2.0)]
        records = train_pack(runs, load(recipe))
        classes, initial = (
            np.stack([record.arrays[name] for record in records]).reshape(6, 2, -1)
            for name in ("predictions", "initial_predictions")
        )
        own = identification(classes, initial)
        shuffled = [identification(classes, initial[list(order)]) for order in permutations(range(6))]
        significant = np.mean([one.p <= 0.05 for one in shuffled])
        print(
            f"identification, untrained {model}: {own.share:.0%} matched to their own, p = {own.p:.2g}; "
            f"over all {len(shuffled)} orders {np.mean([one.share for one in shuffled]):.1%} "
            f"(chance {own.chance:.1%}), p <= 0.05 in {significant:.1%}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--studies", type=int, default=300, help="planted studies of relaxation; 0: none")
    studies = parser.parse_args().studies
    if studies:
        relaxation_coverage(studies)
    batch_norm_check()
    identification_check()
