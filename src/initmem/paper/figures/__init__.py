"""Figures 1 to 8 of bundled recipes, and those of any: pure plots, drawn by `plots.matplotlib`.

Every figure shows the optimizers, batch sizes and scales that there are; what it wants but the store lacks
is shown as missing and named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from initmem.errors import ConfigError, StoreError, allowed
from initmem.measures.design import bundled
from initmem.paper.figures import by_optimizer, pairs, sensitivity, sweep
from initmem.plots.builders import beta_plot, clocks_plot, scale_plot, sharpness_plot
from initmem.plots.model import Plot
from initmem.record import RunRecord
from initmem.study import Study, recipes_of

__all__ = ["ABOUT", "NAMES", "Drawn", "available", "draw", "plot_of"]


class _Figure(NamedTuple):
    about: str
    plot: Callable[..., Plot]


_FIGURES = {
    "1": _Figure("accuracy gap, test accuracy and kernel norm against scale", by_optimizer.plot_scales),
    "2": _Figure("test accuracy, optimizer x scale, by batch size", by_optimizer.plot_heatmaps),
    "3": _Figure("interpolation epoch and repair gap against scale", by_optimizer.plot_interpolation),
    "4": _Figure("test accuracy against scale by learning rate and penalty", sweep.plot),
    "5": _Figure("test accuracy by depth", pairs.plot_depth),
    "6": _Figure("|beta| against epoch and against the clocks", sensitivity.plot),
    "7": _Figure("train accuracy by depth", pairs.plot_depth_train),
    "8": _Figure("normalization and augmentation", pairs.plot_norms),
}
NAMES = tuple(_FIGURES)
SCALE = "scale"
# These need to know nothing about a recipe.
ANY: dict[str, Callable[..., Plot]] = {
    SCALE: scale_plot,
    "beta": beta_plot,
    "clocks": clocks_plot,
    "sharpness": sharpness_plot,
}
ABOUT = {name: figure.about for name, figure in _FIGURES.items()}


def available(records: Sequence[RunRecord]) -> tuple[str, ...]:
    """The figures that a store has something for."""
    of_recipes = bundled(records)
    own = (SCALE,) if len(of_recipes) < len(records) else ()
    return own if own and not of_recipes else (*NAMES, *own)


class Drawn(NamedTuple):
    """A figure that was written: what it lacks, and what else the store holds."""

    path: Path
    missing: list[str]
    notes: list[str]


def plot_of(
    name: str, records: Sequence[RunRecord], studies: Sequence[Study], reference: bool = False
) -> Plot:
    """The plot of a figure; `reference` adds published values."""
    if name not in (*NAMES, *ANY):
        raise ConfigError(f"figure = {name!r} ({allowed([*NAMES, *ANY])})")
    if not records:
        raise StoreError("no finished run yet (initmem run makes them)")
    if name in ANY:
        return ANY[name](records, order=recipes_of(studies))
    known = bundled(records)
    if not known:
        raise StoreError(f"figure {name}: only runs of your own training code here ({allowed([SCALE])})")
    return _FIGURES[name].plot(known, studies, reference=reference)


def draw(
    name: str,
    records: Sequence[RunRecord],
    studies: Sequence[Study],
    path: Path,
    reference: bool = False,
) -> Drawn:
    """Draw a figure as PDF, PNG or SVG, by the ending of the path; `reference` adds published values."""
    from initmem.plots import matplotlib as renderer

    renderer.check(path)
    plot = plot_of(name, records, studies, reference)
    figure, _ = renderer.draw(plot)
    renderer.save(figure, path)
    return Drawn(path, list(plot.missing), list(plot.notes))
