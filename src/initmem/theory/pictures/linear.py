"""Ensembles of linear networks: how the memory of the norm fades, against epochs and clocks."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from initmem.measures.beta import beta_curve
from initmem.measures.collapse import Collapse, collapse
from initmem.plots.curves import COLOURS
from initmem.recipe import AnyRecipe, labels
from initmem.store.record import RunRecord
from initmem.study_file import load_study
from initmem.theory.ensemble import LinearSettings
from initmem.theory.lab import train_linear
from initmem.theory.pictures.style import tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]
CLOCK_TITLES = {
    "sgd": ("minibatch noise", r"$T_{\mathrm{SGD}} = \frac{1}{b}\sum\eta^2$"),
    "l2": ("penalty", r"$T_{L2} = l2\,\sum\eta$"),
    "adaptive": ("Adam", r"$T_{\mathrm{adapt}} = \sum\eta$"),
}


class Fading(NamedTuple):
    """How one recipe's slope of the norm on the scale fades; arrays are (epoch,), from 0 at the start."""

    label: str
    recipe: LinearSettings
    epochs: Array
    time: Array  # on the clock of its family
    beta: Array
    low: Array
    high: Array

    def until(self, level: float, axis: Array) -> float | None:
        """Where on an axis the slope first falls to `level`; None if it does not."""
        below = np.flatnonzero(self.beta <= level)
        if not len(below):
            return None
        i = int(below[0])
        share = (self.beta[i - 1] - level) / (self.beta[i - 1] - self.beta[i])
        return float(axis[i - 1] + share * (axis[i] - axis[i - 1]))


class Family(NamedTuple):
    """Recipes that differ in batch size, the clock they share, and how well it lines them up.

    `others` share the clock at another learning rate.
    """

    clock: str
    members: list[Fading]
    collapse: Collapse
    others: list[Fading]

    def apart(self, axis: str) -> float:
        """The distance between batch sizes against an axis, in decades of the slope."""
        found = next(score.disagreement for score in self.collapse.scores if score.axis == axis)
        return math.inf if found is None else found


def linear_view(seed: int) -> list[Family]:
    """Train the study `linear` in memory; seed 0 takes the seeds of the bundled study, others follow.

    To the Adam recipes one at half the learning rate is added, which their clock does not line up.
    """
    study = load_study("linear")
    study = replace(study, seeds=tuple(s + seed * (1 + max(study.seeds)) for s in study.seeds))
    slower = [
        recipe.replace(learning_rate=recipe.get("learning_rate") / 2)
        for recipe in study.recipes
        if recipe.get("optimizer") == "adam" and recipe.get("batch_size") == 4
    ]
    recipes = [*study.recipes, *slower]
    records = {recipe: train_linear(study.runs(recipe)) for recipe in recipes}
    names = dict(zip(recipes, labels(recipes), strict=True))
    families = []
    for clock in CLOCK_TITLES:
        of_clock = [recipe for recipe in recipes if _clock_of(recipe) == clock]
        fadings = {r: _fading(names[r], clock, records[r]) for r in of_clock}
        members = [r for r in of_clock if r not in slower]
        families.append(
            Family(
                clock,
                [fadings[r] for r in members],
                collapse([records[r] for r in members], "norm"),
                [fadings[r] for r in of_clock if r in slower],
            )
        )
    return families


def linear_rows(families: list[Family]) -> list[dict[str, Any]]:
    """One row per recipe: its clock, the slope at both ends, and when a quarter of it is left."""
    return [
        {
            "recipe": fading.label,
            "clock": family.clock,
            "clock_end": float(fading.time[-1]),
            "beta_start": float(fading.beta[0]),
            "beta_end": float(fading.beta[-1]),
            "epochs_to_quarter": fading.until(fading.beta[0] / 4, fading.epochs),
            "clock_to_quarter": fading.until(fading.beta[0] / 4, fading.time),
            "apart_epochs": family.apart("epochs") if fading in family.members else None,
            "apart_clock": family.apart(family.clock) if fading in family.members else None,
        }
        for family in families
        for fading in (*family.members, *family.others)
    ]


def draw_linear(families: list[Family], file: Path) -> None:
    """The slope of the norm on the scale: above against epochs, below against each family's clock."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.9), layout="constrained")
    grid = figure.subplots(2, len(families), sharey=True)
    for column, family in zip(grid.T, families, strict=True):
        title, clock = CLOCK_TITLES[family.clock]
        first = family.members[0].recipe
        penalty = f", l2 = {first.l2:g}" if first.l2 else ""
        column[0].set_title(rf"{title}: $\eta = {first.learning_rate:g}${penalty}", fontsize=10)
        column[0].set_xlabel("epochs")
        column[1].set_xlabel(clock)
        for axes, name in zip(column, ("epochs", family.clock), strict=True):
            tidy(axes)
            axes.set_xscale("log")
            for fading, colour, marker in zip(family.members, COLOURS, "os^", strict=False):
                _draw_fading(axes, fading, name, colour, marker, f"$b = {fading.recipe.batch_size}$")
            for fading in family.others:
                rate, size = fading.recipe.learning_rate, fading.recipe.batch_size
                _draw_fading(axes, fading, name, "0.45", "x", rf"Adam, $\eta = {rate:g}$, $b = {size}$")
            text = f"{family.apart(name):.2f} decades apart"
            axes.text(0.98, 0.97, text, transform=axes.transAxes, ha="right", va="top", fontsize=8.5)
        column[0].set_xticks((1, 3, 10, 30), ("1", "3", "10", "30"), minor=False)
    grid[0, 0].set_ylim(0, None)
    for axes in grid[:, 0]:
        axes.set_ylabel(r"$\beta$ of the norm")
    handles, names = grid[0, -1].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    figure.savefig(file, dpi=150)


def _draw_fading(axes: Axes, fading: Fading, against: str, colour: str, marker: str, label: str) -> None:
    """A slope with its interval, from the first epoch on."""
    x = (fading.epochs if against == "epochs" else fading.time)[1:]
    dashed = "--" if marker == "x" else "-"
    axes.fill_between(x, fading.low[1:], fading.high[1:], color=colour, alpha=0.15, lw=0)
    # Epochs crowd together on a logarithmic axis: mark them at even distances.
    marked = sorted({int(i) for i in np.geomspace(1, len(x), 9)})
    axes.plot(
        x,
        fading.beta[1:],
        color=colour,
        ls=dashed,
        lw=1.5,
        marker=marker,
        ms=5,
        mec=colour if marker == "x" else "white",
        mew=0.7,
        markevery=[i - 1 for i in marked],
        label=label,
    )


def _clock_of(recipe: AnyRecipe) -> str:
    return "l2" if recipe.get("l2") else "adaptive" if recipe.get("optimizer") == "adam" else "sgd"


def _fading(label: str, clock: str, records: list[RunRecord]) -> Fading:
    """beta of the norm, with the slope at initialization, which no history holds, put before it."""
    curve = beta_curve(records, "norm")
    scales = np.array([record.run.scale for record in records])
    norms = np.array([record.summary.norm_init for record in records], dtype=float)
    start = float(np.polyfit(scales, norms, 1)[0])
    return Fading(
        label,
        LinearSettings.of(records[0].run.recipe),
        np.append(0.0, curve.epochs),
        np.append(0.0, curve.clocks[clock]),
        np.append(start, curve.beta),
        np.append(start, curve.low),
        np.append(start, curve.high),
    )
