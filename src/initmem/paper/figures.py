"""Figures 1 to 8 of bundled recipes, and those of any: pure plots, drawn by `plots.matplotlib`.

Every figure shows the optimizers, batch sizes and scales that there are; what it wants but the store lacks
is shown as missing and named.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from initmem.errors import ConfigError, StoreError, allowed
from initmem.measures.design import bundled
from initmem.paper import main_grid, pairs, slopes, sweep
from initmem.paper.selection import Records, Studies
from initmem.plots.builders import beta_plot, clocks_plot, scale_plot, sharpness_plot
from initmem.plots.model import Plot
from initmem.study import recipes_of

__all__ = ["NAMES", "available", "draw", "plot_of"]

OF_PAPER: dict[str, Callable[..., Plot]] = {
    "1": main_grid.plot_scales,
    "2": main_grid.plot_heatmaps,
    "3": main_grid.plot_interpolation,
    "4": sweep.plot_sweep,
    "5": partial(pairs.plot_pairs, "figure 5", pairs.DEPTHS, "test_accuracy"),
    "6": slopes.plot_slopes,
    "7": partial(pairs.plot_pairs, "figure 7", pairs.DEPTHS, "train_accuracy_last"),
    "8": partial(pairs.plot_pairs, "figure 8", pairs.NORMS, "test_accuracy"),
}
NAMES = tuple(OF_PAPER)
SCALE = "scale"
OF_ANY_RECIPE: dict[str, Callable[..., Plot]] = {
    SCALE: scale_plot,
    "beta": beta_plot,
    "clocks": clocks_plot,
    "sharpness": sharpness_plot,
}


def available(records: Records) -> tuple[str, ...]:
    """The figures that a store has something for."""
    of_networks = bundled(records)
    own = (SCALE,) if len(of_networks) < len(records) else ()
    return own if own and not of_networks else (*NAMES, *own)


def plot_of(name: str, records: Records, studies: Studies, reference: bool = False) -> Plot:
    """The plot of a figure; `reference` adds published values."""
    if name not in (*NAMES, *OF_ANY_RECIPE):
        raise ConfigError(f"figure = {name!r} ({allowed([*NAMES, *OF_ANY_RECIPE])})")
    if not records:
        raise StoreError("no finished run yet (initmem run makes them)")
    if name in OF_ANY_RECIPE:
        return OF_ANY_RECIPE[name](records, order=recipes_of(studies))
    of_networks = bundled(records)
    if not of_networks:
        raise StoreError(f"figure {name}: only runs of your own training code here ({allowed([SCALE])})")
    return OF_PAPER[name](of_networks, studies, reference=reference)


def draw(name: str, records: Records, studies: Studies, path: Path, reference: bool = False) -> Plot:
    """Draw a figure as PDF, PNG or SVG, by the ending of the path; `reference` adds published values."""
    from initmem.plots import matplotlib as renderer

    renderer.check(path)
    plot = plot_of(name, records, studies, reference)
    figure, _ = renderer.draw(plot)
    renderer.save(figure, path)
    return plot
