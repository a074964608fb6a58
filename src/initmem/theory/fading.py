"""The study `linear`: how the memory of the norm fades, against epochs and against the clocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from initmem.clocks import family_of
from initmem.labels import labels
from initmem.measures.beta import beta_curve
from initmem.measures.collapse import collapse
from initmem.plots.model import Entry, Panel, Plot, Series, Style, Text
from initmem.plots.styles import GREY, nth
from initmem.record import RunRecord
from initmem.study_file import load_study
from initmem.theory import Array
from initmem.theory.lab import LinearSettings, train_linear

CLOCK_TITLES = {
    "sgd": ("minibatch noise", r"$T_{\mathrm{SGD}} = \frac{1}{b}\sum\eta^2$"),
    "l2": ("penalty", r"$T_{L2} = l2\,\sum\eta$"),
    "adaptive": ("Adam", r"$T_{\mathrm{adapt}} = \sum\eta$"),
}


class Fading(NamedTuple):
    """How one recipe's slope of the norm on the scale fades; arrays are (epoch,), from 0 at the start."""

    label: str
    recipe: LinearSettings
    axes: dict[str, Array]  # epochs, and the clock of its family
    beta: Array
    low: Array
    high: Array

    def until(self, level: float, axis: str) -> float | None:
        """Where on an axis the slope first falls to `level`; None if it does not."""
        below = np.flatnonzero(self.beta <= level)
        if not len(below):
            return None
        i, x = int(below[0]), self.axes[axis]
        share = (self.beta[i - 1] - level) / (self.beta[i - 1] - self.beta[i])
        return float(x[i - 1] + share * (x[i] - x[i - 1]))

    def series(self, label: str, style: Style, axis: str) -> Series:
        """The slope with its interval, from the first epoch on."""
        columns = (self.axes[axis], self.beta, self.low, self.high)
        return Series(label, style, *(column[1:].tolist() for column in columns))


class Family(NamedTuple):
    """Recipes that differ in batch size, the clock they share, and how well it lines them up.

    `others` share the clock at another learning rate. `apart` is the distance between batch sizes against
    epochs and against the clock, in decades of the slope.
    """

    clock: str
    members: list[Fading]
    others: list[Fading]
    apart: dict[str, float]


def families(seed: int) -> list[Family]:
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

    def family(clock: str) -> Family:
        members, others = (
            [fading(names[recipe], clock, records[recipe]) for recipe in group if family_of(recipe) == clock]
            for group in (study.recipes, slower)
        )
        groups = [records[recipe] for recipe in study.recipes if family_of(recipe) == clock]
        distances = collapse(groups, "norm").apart
        apart = {axis: math.inf if distance is None else distance for axis, distance in distances.items()}
        return Family(clock, members, others, apart)

    return [family(clock) for clock in CLOCK_TITLES]


def fading(label: str, clock: str, records: list[RunRecord]) -> Fading:
    """beta of the norm, with the slope at initialization, which no history holds, put before it."""
    curve = beta_curve(records, "norm")
    scales = np.array([record.run.scale for record in records])
    norms = np.array([record.summary.norm_init for record in records], dtype=float)
    start = float(np.polyfit(scales, norms, 1)[0])
    return Fading(
        label,
        LinearSettings.of(records[0].run.recipe),
        {"epochs": np.append(0.0, curve.epochs), clock: np.append(0.0, curve.clocks[clock])},
        *(np.append(start, values) for values in (curve.beta, curve.low, curve.high)),
    )


def rows(families: Sequence[Family]) -> list[dict[str, Any]]:
    """One row per recipe: its clock, the slope at both ends, and when a quarter of it is left."""
    return [
        {
            "recipe": one.label,
            "clock": family.clock,
            "clock_end": float(one.axes[family.clock][-1]),
            "beta_start": float(one.beta[0]),
            "beta_end": float(one.beta[-1]),
            "epochs_to_quarter": one.until(one.beta[0] / 4, "epochs"),
            "clock_to_quarter": one.until(one.beta[0] / 4, family.clock),
            "apart_epochs": apart.get("epochs"),
            "apart_clock": apart.get(family.clock),
        }
        for family in families
        for group, apart in ((family.members, family.apart), (family.others, {}))
        for one in group
    ]


def plot(families: Sequence[Family]) -> Plot:
    """The slope of the norm on the scale: above against epochs, below against each family's clock."""
    panels = [
        [_panel(family, "epochs") for family in families],
        [_panel(family, family.clock) for family in families],
    ]
    every = {series.label: series.style for row in panels for panel in row for series in panel.series}
    return Plot(panels, [[Entry(label, style) for label, style in every.items()]], row_height=2.2)


def _panel(family: Family, axis: str) -> Panel:
    """Batch sizes by style; what shares the clock at another learning rate is gray."""
    title, clock = CLOCK_TITLES[family.clock]
    first = family.members[0].recipe
    l2 = f", l2 = {first.l2:g}" if first.l2 else ""
    series = [
        one.series(f"$b = {one.recipe.batch_size}$", nth(i), axis) for i, one in enumerate(family.members)
    ]
    for one in family.others:
        label = rf"Adam, $\eta = {one.recipe.learning_rate:g}$, $b = {one.recipe.batch_size}$"
        series.append(one.series(label, Style(GREY, "x", "--"), axis))
    return Panel(
        title=rf"{title}: $\eta = {first.learning_rate:g}${l2}",
        x_title="epochs" if axis == "epochs" else clock,
        y_title=r"$\beta$ of the norm",
        series=series,
        texts=[Text(0.98, 0.97, f"{family.apart[axis]:.2f} decades apart")],
        log_x=True,
    )
