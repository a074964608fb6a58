"""Draw the four pictures of docs/concepts.md from the archives in docs/results.

python docs/build_concepts.py      # from the root of the project; seconds, trains nothing
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import initmem
from initmem.clocks import clocks
from initmem.labels import labels
from initmem.measures.design import by_recipe, profile
from initmem.measures.elasticity import norm_elasticity
from initmem.plots.model import Style
from initmem.plots.styles import SEQUENCE, crossed, recipe_styles
from initmem.recipe import AnyRecipe
from initmem.record import RunRecord

ROOT = Path(__file__).resolve().parents[1]
STYLE = ROOT / "src" / "initmem" / "plots" / "initmem.mplstyle"
SIZE = (7.2, 2.7)  # inches
N_TRAIN = 5000  # training images behind lr-l2-mini


def groups(name: str) -> dict[AnyRecipe, list[RunRecord]]:
    """The records of an archive by recipe, in the study's own order."""
    results = initmem.open_results(ROOT / "docs" / "results" / f"{name}.initmem")
    order = [recipe for study in results.studies() for recipe in study.recipes]
    return by_recipe(results.records(), order)


def mean_curve(records: Sequence[RunRecord], column: str, scale: float) -> np.ndarray:
    """The mean over seeds at one scale, shape (epoch,)."""
    return np.mean([r.history[column] for r in records if r.run.scale == scale], axis=0)


def recipe() -> Figure:
    """Three recipes at scale 1: what is the same, and what a recipe changes."""
    figure, axes = plt.subplots(figsize=SIZE)
    found = groups("quickstart")
    for style, label, records in zip(
        recipe_styles(list(found)), labels(list(found)), found.values(), strict=True
    ):
        curve = 100 * mean_curve(records, "val_accuracy", 1.0)
        epochs = np.arange(1, len(curve) + 1)
        axes.plot(epochs, curve, color=style.color, ls=style.dash, label=label)
    axes.set(xlabel="epoch", ylabel="validation accuracy (%)", xscale="log")
    axes.set_title("Three recipes: the same network, data and initial weights (scale 1, mean of 6 seeds)")
    axes.legend(frameon=False, loc="lower right")
    return figure


def scale() -> Figure:
    """What the scale changes before training, and what is left of it after some epochs."""
    figure, (left, right) = plt.subplots(1, 2, figsize=SIZE)
    found = groups("quickstart")
    label, records = labels(list(found))[0], next(iter(found.values()))
    grid = np.linspace(-1, 1, 500)
    scales = sorted({r.run.scale for r in records})
    for color, each in zip(SEQUENCE, scales, strict=False):
        deviation = each / np.sqrt(36)  # fan-in of a 3x3 convolution of four channels
        density = np.exp(-0.5 * (grid / deviation) ** 2) / (deviation * np.sqrt(2 * np.pi))
        left.plot(grid, density, color=color, label=f"{each:g}")
        curve = 100 * mean_curve(records, "val_accuracy", each)
        right.plot(np.arange(1, len(curve) + 1), curve, color=color, label=f"{each:g}")
    left.set(xlabel="initial weight (fan-in 36)", ylabel="density", ylim=(0, 6))
    left.set_title("Before training: five scales")
    right.set(xlabel="epoch", ylabel="validation accuracy (%)", xscale="log")
    right.set_title(f"{label}: five paths, mean of 6 seeds")
    right.legend(frameon=False, title="scale", loc="lower right")
    return figure


def memory() -> Figure:
    """The range of the means over scales, of a recipe that remembers and one that forgets."""
    figure, panels = plt.subplots(1, 2, figsize=SIZE, sharey=True)
    found = groups("quickstart")
    styles = recipe_styles(list(found))  # the first two recipes are SGD
    for axes, style, label, records in zip(panels, styles, labels(list(found)), found.values(), strict=False):
        _range(axes, style, label, records)
    panels[0].set_ylabel("accuracy (%)")
    panels[0].legend(frameon=False, loc="lower left")
    return figure


def _range(axes: Axes, style: Style, label: str, records: Sequence[RunRecord]) -> None:
    arranged, row = profile(records, "test_accuracy"), initmem.memory(records)
    means = arranged.values.mean(axis=0)
    for values in arranged.values:
        axes.plot(arranged.scales, values, "o", ms=2.5, color="#7F7F7F", alpha=0.7)
    axes.plot(arranged.scales, means, "-o", color=style.color, label="test accuracy, mean over seeds")
    assert row.fit is not None
    axes.plot(row.fit.scales, row.fit.train, "--", color="#404040", label="train accuracy")
    axes.axhspan(means.min(), means.max(), color=style.color, alpha=0.15, lw=0)
    axes.set_title(f"{label}: {row.memory:.1f} pp, {row.verdict}{f': {row.mode}' if row.mode else ''}")
    axes.set_xlabel("initialization scale")


def clock() -> Figure:
    """Time as the optimizer counts it, and what is left of the initial norm of the weights after it."""
    figure, (left, right) = plt.subplots(1, 2, figsize=SIZE)
    found = groups("lr-l2-mini")
    sgd = {r: records for r, records in found.items() if r.get("optimizer") == "sgd"}
    styles = crossed(*(sorted({r.get(field) for r in sgd}) for field in ("learning_rate", "l2")))
    for (each, records), label in zip(sgd.items(), labels(list(sgd)), strict=True):
        counted = clocks(each.network, N_TRAIN)
        kept, style = norm_elasticity(records), styles[each.get("learning_rate"), each.get("l2")]
        assert kept is not None
        epochs = range(1, len(counted.sgd) + 1)
        if not each.get("l2"):  # L2 advances another clock
            left.plot(epochs, counted.sgd, color=style.color, ls=style.dash)
            left.annotate(
                label, (len(epochs), counted.sgd[-1]), (0, -9), textcoords="offset points", ha="right"
            )
        error = [[kept.elasticity - kept.low], [kept.high - kept.elasticity]]
        right.errorbar(
            counted.sgd[-1],
            kept.elasticity,
            error,
            fmt=style.marker,
            color=style.color,
            capsize=2,
            label=label,
        )
    left.set(xlabel="epoch", ylabel="SGD clock", yscale="log", xticks=range(0, 21, 5))
    left.set_title("The SGD clock at three learning rates")
    right.set(xlabel="SGD clock at the last epoch", ylabel="norm elasticity", xscale="log", ylim=(-0.05, 1))
    right.set_title("What is left of the initial norm")
    right.legend(frameon=False, fontsize=6, loc="lower left")
    return figure


PICTURES: dict[str, Callable[[], Figure]] = {
    "concept-recipe": recipe,
    "concept-scale": scale,
    "concept-memory": memory,
    "concept-clock": clock,
}


def build(folder: Path) -> None:
    """Write all pictures."""
    with plt.style.context(STYLE):
        for name, draw in PICTURES.items():
            figure = draw()
            figure.tight_layout()
            figure.savefig(folder / f"{name}.png", dpi=160)
            plt.close(figure)


if __name__ == "__main__":
    build(ROOT / "docs" / "images")
