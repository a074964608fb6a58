"""Figures 1 to 8 of bundled recipes, and `scale` of any: pure plot data, and thin drawers.

Every figure shows the optimizers, batch sizes and scales that there are; what it wants but the store lacks
is shown as missing and named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from initmem.errors import ConfigError, StoreError, allowed
from initmem.measures.design import bundled
from initmem.paper.figures import heatmap, interpolation, pairs, scales, sensitivity, sweep
from initmem.plots import plain
from initmem.plots.canvas import check
from initmem.plots.plain import draw_scale_plot
from initmem.store.record import RunRecord
from initmem.study import Study

__all__ = ["ABOUT", "NAMES", "Drawn", "available", "draw", "draw_scale_plot", "plot_data"]


class _Figure(NamedTuple):
    about: str
    plot: Callable[..., Any]
    draw: Callable[[Any, Path], None]


_FIGURES = {
    "1": _Figure("accuracy gap, test accuracy and kernel norm against scale", scales.plot, scales.draw),
    "2": _Figure("test accuracy, optimizer x scale, by batch size", heatmap.plot, heatmap.draw),
    "3": _Figure("interpolation epoch and repair gap against scale", interpolation.plot, interpolation.draw),
    "4": _Figure("test accuracy against scale by learning rate and penalty", sweep.plot, sweep.draw),
    "5": _Figure("test accuracy by depth", pairs.plot_depth, pairs.draw),
    "6": _Figure("|beta| against epoch and against the clocks", sensitivity.plot, sensitivity.draw),
    "7": _Figure("train accuracy by depth", pairs.plot_depth_train, pairs.draw),
    "8": _Figure("normalization and augmentation", pairs.plot_norms, pairs.draw),
}
NAMES = tuple(_FIGURES)
SCALE = "scale"  # the one figure that needs to know nothing about a recipe
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


def plot_data(
    name: str, records: Sequence[RunRecord], studies: Sequence[Study], reference: bool = False
) -> Any:
    """The plot data of a figure: a NamedTuple with, among others, `caption`, `missing` and `notes`."""
    if name not in (*NAMES, SCALE):
        raise ConfigError(f"figure = {name!r} ({allowed([*NAMES, SCALE])})")
    if not records:
        raise StoreError("no finished run yet (initmem run makes them)")
    if name == SCALE:
        return plain.plot(records, studies)
    known = bundled(records)
    if not known:
        raise StoreError(f"figure {name}: only runs of training code of your own here ({allowed([SCALE])})")
    return _FIGURES[name].plot(known, studies, reference=reference)


def draw(
    name: str,
    records: Sequence[RunRecord],
    studies: Sequence[Study],
    path: Path,
    reference: bool = False,
) -> Drawn:
    """Draw a figure as PDF, PNG or SVG, by the ending of the path; `reference` adds published values."""
    check(path)
    plot = plot_data(name, records, studies, reference)
    (plain.draw if name == SCALE else _FIGURES[name].draw)(plot, path)
    return Drawn(path, plot.missing, plot.notes)
