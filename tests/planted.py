"""Records with planted values: every number is a known function of recipe, scale, seed and epoch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from initmem.recipe import Recipe
from initmem.record import COLUMNS, RunRecord, summarize
from initmem.study import Run, Study
from initmem.study_file import load_study

SCALES, SEEDS = (0.1, 0.5, 1.0, 1.8, 2.5), (0, 1, 2)
EPOCHS = 6
OPTIMIZERS = ("sgd", "momentum", "adam", "adamw", "muon")


def test_accuracy(recipe: Recipe, scale: float, seed: int) -> float:
    """Falls with scale, by an amount of each recipe's own; seeds differ by one or two points."""
    strength = (len(recipe.optimizer) + len(recipe.model) % 5) / (
        100 * (1 + 1000 * recipe.l2)
    ) + recipe.batch_size / 5000
    return 0.85 - strength * scale + 0.01 * (seed % 3) - 0.2 * recipe.learning_rate


def histories(recipe: Recipe, scale: float, seed: int) -> dict[str, np.ndarray]:
    """Train accuracy reaches 1 at epoch 2 or 3; muon: after it was selected; sgd from large scales: never."""
    epoch = np.arange(1, recipe.epochs + 1)
    history = dict.fromkeys(COLUMNS, 0.1 * epoch)
    never = recipe.optimizer == "sgd" and scale > 1.5
    fitted = 5 if recipe.optimizer == "muon" else 2 + seed % 2
    history["train_accuracy"] = np.where(never, 0.9, np.where(epoch >= fitted, 1.0, 0.5)).astype(float)
    history["val_accuracy"] = 0.9 - 0.05 * scale / epoch + 0.01 * (seed % 3) + 0.002 * (epoch % 2)
    history["val_objective"] = np.abs(epoch - 4.0)  # the fourth epoch is selected
    history["norm"] = 10 * scale + epoch
    history["clock_sgd"] = 1e-3 * epoch / recipe.batch_size
    history["clock_adaptive"] = 2e-3 * epoch
    history["clock_l2"] = recipe.l2 * epoch
    return history


def record(run: Run) -> RunRecord:
    """The record of one run."""
    history = histories(run.recipe, run.scale, run.seed)
    accuracy = test_accuracy(run.recipe, run.scale, run.seed)
    summary = summarize(history, norm_init=10 * run.scale, test_accuracy=accuracy, test_cross_entropy=1.0)
    return RunRecord(run, "completed", summary, history)


def study(
    name: str,
    recipes: Sequence[Recipe],
    *,
    scales: Sequence[float] = SCALES,
    seeds: Sequence[int] = SEEDS,
    preset: str = "mini",
) -> Study:
    return Study(name, name, preset, "", tuple(recipes), tuple(scales), tuple(seeds))


def records(*studies: Study) -> list[RunRecord]:
    """Records of all runs, each once."""
    return [record(run) for run in dict.fromkeys(run for one in studies for run in one.all_runs())]


def grid(**axes: Sequence[object]) -> list[Recipe]:
    """Small recipes over all combinations of some fields."""
    fixed = {"width": 8, "epochs": EPOCHS, "batch_statistics": "re-estimated"}
    return [
        Recipe.parse(fixed | dict(zip(axes, values, strict=True)))
        for values in itertools.product(*axes.values())
    ]


def recipe(**fields: object) -> Recipe:
    """One small recipe."""
    return grid(**{name: [value] for name, value in fields.items()})[0]


def accuracies(one: Recipe) -> np.ndarray:
    """Planted test accuracies in percent, shape (scale, seed), not by way of any record."""
    return 100 * np.array([[test_accuracy(one, scale, seed) for seed in SEEDS] for scale in SCALES])


def without(some: Sequence[RunRecord], **where: object) -> list[RunRecord]:
    """Records less those whose run or recipe has all the given values."""

    def hit(item: RunRecord) -> bool:
        run = item.run
        return all(getattr(run if hasattr(run, key) else run.recipe, key) == v for key, v in where.items())

    return [item for item in some if not hit(item)]


def main_grid(**changes: object) -> Study:
    """All optimizers at the two batch sizes of most figures."""
    made = study("main-grid", grid(optimizer=OPTIMIZERS, batch_size=(16, 128)))
    return replace(made, **changes)


def everything() -> list[Study]:
    """A little of every study."""
    sgd = grid(
        optimizer=["sgd"], learning_rate=[1e-3, 1e-2, 1e-1], l2=[0.0, 1e-3, 5e-3, 1e-2], batch_size=[16, 128]
    )
    deep = grid(model=["resnet9-avgpool"], optimizer=["sgd", "adam"], batch_size=[16, 128])
    deep += grid(
        model=["resnet56", "resnet110"], patience=[30], optimizer=["sgd", "adam"], batch_size=[16, 128]
    )
    norms = grid(
        norm=["batch", "layer"], augment=["flip-crop"], optimizer=["sgd", "adam"], batch_size=[16, 128]
    )
    standard = grid(
        optimizer=["momentum"], learning_rate=[0.1], l2=[5e-4], augment=["flip-crop"], batch_size=[128]
    )
    adam = grid(optimizer=["adam"], augment=["flip-crop"], batch_size=[128])
    best = [recipe.model_copy(update={"epochs": 5}) for recipe in standard + adam]
    long = [
        recipe.model_copy(update={"epochs": 9})
        for recipe in grid(optimizer=["sgd"], schedule=["constant"], batch_size=[16, 128])
    ]
    return [
        main_grid(),
        study("lr-l2", sgd),
        study("long-sgd", long, seeds=[1]),
        study("depth", deep),
        study("norm-aug", norms),
        study("best-recipe", best, scales=(0.1, 2.5)),
    ]


def complete() -> list[Study]:
    """All studies of the paper with every recipe and every scale; only seeds and epochs are few."""
    names = ("main-grid", "lr-l2", "long-sgd", "depth", "norm-aug", "best-recipe")
    return [_short(load_study(name, "paper")) for name in names]


def _short(one: Study) -> Study:
    epochs = {300: EPOCHS, 200: EPOCHS - 1, 5000: EPOCHS + 3}
    warm = {"batch_statistics": "re-estimated"}  # after so few epochs moving averages are cold
    recipes = tuple(
        Recipe.parse(recipe.changes() | warm | {"epochs": epochs[recipe.epochs]}) for recipe in one.recipes
    )
    return replace(one, recipes=recipes, seeds=one.seeds[:2], more_seeds=())
