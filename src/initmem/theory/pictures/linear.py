"""Ensembles of linear networks: how the memory of the norm fades, against epochs and clocks."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from initmem.labels import labels
from initmem.measures.beta import beta_curve
from initmem.measures.collapse import Collapse, collapse
from initmem.plots.model import Entry, Member, Panel, Plot, Series, Style, Text
from initmem.plots.styles import GREY, nth
from initmem.recipe import AnyRecipe
from initmem.record import RunRecord
from initmem.study_file import load_study
from initmem.theory.ensemble import LinearSettings
from initmem.theory.lab import train_linear

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
        decades = next(score.disagreement for score in self.collapse.scores if score.axis == axis)
        return math.inf if decades is None else decades


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


def linear_plot(families: list[Family]) -> Plot:
    """The slope of the norm on the scale: above against epochs, below against each family's clock."""
    rows = [
        [_panel(family, "epochs") for family in families],
        [_panel(family, family.clock) for family in families],
    ]
    members = {member.label: member for family in families for member in _members(family)}
    legend = [[Entry(member.label, member.style) for member in members.values()]]
    return Plot(rows, legend, row_height=2.2)


def _members(family: Family) -> list[Member]:
    """Batch sizes by style; what shares the clock at another learning rate is gray."""
    sizes = [Member(f, f"$b = {f.recipe.batch_size}$", nth(i)) for i, f in enumerate(family.members)]
    others = [
        Member(
            f,
            rf"Adam, $\eta = {f.recipe.learning_rate:g}$, $b = {f.recipe.batch_size}$",
            Style(GREY, "x", "--"),
        )
        for f in family.others
    ]
    return sizes + others


def _panel(family: Family, axis: str) -> Panel:
    title, clock = CLOCK_TITLES[family.clock]
    first = family.members[0].recipe
    penalty = f", l2 = {first.l2:g}" if first.l2 else ""
    return Panel(
        title=rf"{title}: $\eta = {first.learning_rate:g}${penalty}",
        x_title="epochs" if axis == "epochs" else clock,
        y_title=r"$\beta$ of the norm",
        series=[_series(member, axis) for member in _members(family)],
        texts=[Text(0.98, 0.97, f"{family.apart(axis):.2f} decades apart")],
        log_x=True,
    )


def _series(member: Member, axis: str) -> Series:
    """A slope with its interval, from the first epoch on."""
    fading: Fading = member.key
    x = fading.epochs if axis == "epochs" else fading.time
    columns = (column[1:].tolist() for column in (x, fading.beta, fading.low, fading.high))
    return Series(member.label, member.style, *columns)


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
