"""Plot data: how a metric depends on the initialization scale. Pure; shared by all drawers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from initmem.measures.design import by_recipe, plain
from initmem.measures.memory import unit_of
from initmem.measures.statistics import student
from initmem.recipe import AnyRecipe, labels
from initmem.store.record import RunRecord

# Okabe and Ito's palette: told apart by colour-blind readers too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#B8A900")


class Curve(NamedTuple):
    """A metric against scale for one recipe; every list has one entry per scale."""

    label: str
    colour: str
    scales: list[float]
    mean: list[float]
    low: list[float]  # 10th percentile over seeds
    high: list[float]  # 90th percentile over seeds
    limits: list[tuple[float, float] | None]  # 95% interval of the mean; None from a single seed
    n: list[int]


class ScalePlot(NamedTuple):
    """Curves of one metric for several recipes."""

    title: str
    y_title: str
    curves: list[Curve]


TITLES = {
    "test_accuracy": ("Test accuracy of the selected predictor", "test accuracy (%)"),
    "norm_best": ("Kernel norm of the selected predictor", "Frobenius norm of the kernels"),
}


def in_words(metric: str) -> str:
    """The name of a metric with the unit it is drawn in."""
    return f"{metric.replace('_', ' ')}{' (%)' if 'accuracy' in metric else ''}"


def scale_plot(records: Sequence[RunRecord], metric: str, *, order: Sequence[AnyRecipe] = ()) -> ScalePlot:
    """Means and 10-90 percentile bands of a metric at every scale."""
    groups = by_recipe(records, order)
    title, y_title = TITLES.get(metric, (metric.replace("_", " "), in_words(metric)))
    curves = [
        curve(group, metric, label=label, colour=COLOURS[i % len(COLOURS)])
        for i, (group, label) in enumerate(zip(groups.values(), labels(list(groups)), strict=True))
    ]
    return ScalePlot(title, y_title, curves)


def curve(records: Sequence[RunRecord], metric: str, *, label: str = "", colour: str = "") -> Curve:
    """Mean, percentiles and interval of a metric at every scale, for the records of one recipe."""
    factor, _ = unit_of(metric)
    at: dict[float, list[float]] = {}
    for record in plain(records):
        value = record.metric(metric)
        if value is not None:
            at.setdefault(record.run.scale, []).append(factor * value)
    scales = sorted(at)
    return Curve(
        label=label,
        colour=colour,
        scales=scales,
        mean=[float(np.mean(at[s])) for s in scales],
        low=[float(np.percentile(at[s], 10)) for s in scales],
        high=[float(np.percentile(at[s], 90)) for s in scales],
        limits=[_limits(at[s]) for s in scales],
        n=[len(at[s]) for s in scales],
    )


def _limits(values: Sequence[float]) -> tuple[float, float] | None:
    """Student's 95% interval of a mean."""
    n = len(values)
    if n < 2:
        return None
    mean, half = float(np.mean(values)), student(n - 1) * float(np.std(values, ddof=1)) / n**0.5
    return mean - half, mean + half
