"""Figures 1 to 8 of bundled recipes, and those of any: pure plots, drawn by `plots.matplotlib`.

Figure 6 is made here: |beta|, the slope of validation accuracy on scale, against epoch and the clocks.

Every figure shows the optimizers, batch sizes and scales that there are; what it wants but the store lacks
is shown as missing and named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from initmem.errors import ConfigError, StoreError, allowed
from initmem.measures.beta import BetaCurve, beta_curve
from initmem.measures.design import bundled
from initmem.paper import main_grid, pairs, sweep
from initmem.paper.main_grid import ALL_BATCHES, BATCHES, OPTIMIZERS, every_batch, optimizer_line, select_grid
from initmem.paper.parts import legend, plot_of_lines
from initmem.paper.reference import find
from initmem.paper.selection import Key, Line, Records, Selection, Studies, select
from initmem.plots import captions, styles
from initmem.plots.builders import BETA, beta_plot, clocks_plot, scale_plot
from initmem.plots.model import Panel, Plot, Series, Style
from initmem.plots.series import SLOPE, beta_series
from initmem.study import recipes_of

__all__ = ["NAMES", "available", "draw", "plot_of"]


def available(records: Records) -> tuple[str, ...]:
    """The figures that a store has something for."""
    of_networks = bundled(records)
    own = (SCALE,) if len(of_networks) < len(records) else ()
    return own if own and not of_networks else (*NAMES, *own)


def plot_of(name: str, records: Records, studies: Studies, reference: bool = False) -> Plot:
    """The plot of a figure; `reference` adds published values."""
    if name not in (*NAMES, *OF_ANY_RECIPE):
        raise ConfigError(f"figure = {name!r} ({allowed([*NAMES, *OF_ANY_RECIPE], name)})")
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


# -- figure 6 ---------------------------------------------------------------------------------------------

PENALIZED = ("optimizer", "learning_rate", "l2", "batch_size")
PLAIN, ADAPTIVE = ("sgd", "momentum"), ("adam", "adamw", "muon", "muon-conv")
Curves = dict[Key, BetaCurve]


class Slopes(NamedTuple):
    """The recipes of the figure: the main grid, and in the same setting SGD with L2."""

    main: Selection
    penalized: Selection
    rate: float
    l2: float

    def optimizers(self, b: int, names: Sequence[str]) -> list[Line]:
        """Some of the optimizers of the main grid at one batch size."""
        lines = [optimizer_line(self.main, name, b) for name in names]
        return [line for line in lines if line.label in OPTIMIZERS or line.records]

    def with_l2(self, b: int, label: str, style: Style = styles.PENALISED) -> Line:
        """SGD with L2 at one batch size."""
        return self.penalized.line(("sgd", self.rate, self.l2, b), label, style)


def select_slopes(records: Records, studies: Studies) -> Slopes:
    """The main grid, and SGD with an L2 of 0.01 at a learning rate of 0.01.

    Where that is not there, the L2 that acts most stands in.
    """
    main = select_grid(records, studies)
    setting = tuple(item for item in main.setting if item[0] not in PENALIZED)
    ours = [r for r in records if r.run.recipe.get("optimizer") == "sgd" and r.run.recipe.get("l2")]
    penalized = select(ours, studies, PENALIZED, [], within=setting)
    pairs = {key[1:3] for key in penalized.cells}
    best = (1e-2, 1e-2)
    if pairs and best not in pairs:
        best = max(pairs, key=lambda pair: (pair[0] * pair[1], pair))
    return Slopes(main, penalized, *best)


def plot_slopes(records: Records, studies: Studies, *, reference: bool = False) -> Plot:
    """Against epoch: a row per batch size, the SGD family left, adaptive methods right; below: the clocks."""
    slopes = select_slopes(records, studies)
    batches = slopes.main.batch_sizes(BATCHES)
    published = find("figure 6", optimizer_line(slopes.main, "sgd", 16).recipe, "beta") if reference else None
    level = published.value if published else None
    label = f"sgd η = {slopes.rate:g}, λ = {slopes.l2:g}"
    left = {b: [*slopes.optimizers(b, PLAIN), slopes.with_l2(b, label)] for b in batches}
    right = {b: slopes.optimizers(b, ADAPTIVE) for b in batches}
    clock_lines = _clock_lines(slopes)
    top = [line for b in batches for line in left[b] + right[b]]
    bottom = [line for lines in clock_lines for line in lines]
    curves = {line.key: beta_curve(line.records) for line in top + bottom if line.records}
    rows = [
        [
            _slope_panel(f"b = {b}, SGD", "epoch", _series(left[b], curves))._replace(published_level=level),
            _slope_panel(f"b = {b}, adaptive", "epoch", _series(right[b], curves)),
        ]
        for b in batches
    ]
    return plot_of_lines(
        slopes.main,
        [*rows, _clock_row(*clock_lines, curves, level)],
        top + bottom,
        legend=[legend(top), legend(bottom)],
        head="Slope β of validation accuracy on initialization scale, against epoch and against the clocks",
        setting=captions.common([line.recipe for line in top + bottom if line.records], PENALIZED),
        reference=reference,
        row_height=1.9,
    )


def _clock_lines(slopes: Slopes) -> tuple[list[Line], list[Line], list[Line]]:
    """SGD, SGD with L2, Adam: a line per batch size each. L2 is wanted at two batch sizes only."""
    batches = every_batch(slopes.main, ALL_BATCHES)
    style = styles.in_order(batches)
    black = {b: style[b]._replace(color=styles.PENALISED.color) for b in batches}  # as in the panels above
    penalized = [slopes.with_l2(b, f"b = {b}, λ = {slopes.l2:g}", black[b]) for b in batches]
    return (
        [slopes.main.line(("sgd", b), f"b = {b}", style[b]) for b in batches],
        [line for line in penalized if line.recipe.batch_size in BATCHES or line.records],
        [slopes.main.line(("adam", b), f"b = {b}", style[b]) for b in batches],
    )


def _clock_row(
    sgd: Sequence[Line],
    penalized: Sequence[Line],
    adam: Sequence[Line],
    curves: Curves,
    level: float | None,
) -> list[Panel]:
    """SGD with and without L2 in one panel, each against its own clock."""
    plain, decayed = _series(sgd, curves, "sgd"), _series(penalized, curves, "l2")
    clocks = "SGD clock  (1/b) Σ η²" + (", with penalty  λ Σ η" if decayed else "")
    return [
        _slope_panel("sgd", clocks, [*plain, *decayed])._replace(published_level=level),
        _slope_panel("adam", "sum of learning rates  Σ η", _series(adam, curves, "adaptive")),
    ]


def _series(lines: Sequence[Line], curves: Curves, clock: str | None = None) -> list[Series]:
    """|beta| of every line that has runs, against epoch or a clock."""
    there = [line for line in lines if line.records]
    return [beta_series(curves[line.key], clock, label=line.label, style=line.style) for line in there]


def _slope_panel(title: str, x_title: str, series: Sequence[Series]) -> Panel:
    log_x = x_title != "epoch"
    panel = Panel(title, x_title, BETA, series, SLOPE, "runs per line", log_x=log_x, log_y=True)
    return panel._replace(void="batch norm was cold in all epochs")


# -- all of them ------------------------------------------------------------------------------------------

OF_PAPER: dict[str, Callable[..., Plot]] = {
    "1": main_grid.plot_scales,
    "2": main_grid.plot_heatmaps,
    "3": main_grid.plot_interpolation,
    "4": sweep.plot_sweep,
    "5": partial(pairs.plot_pairs, "figure 5", pairs.DEPTHS, "test_accuracy"),
    "6": plot_slopes,
    "7": partial(pairs.plot_pairs, "figure 7", pairs.DEPTHS, "train_accuracy_last"),
    "8": partial(pairs.plot_pairs, "figure 8", pairs.NORMS, "test_accuracy"),
}
NAMES = tuple(OF_PAPER)
SCALE = "scale"
OF_ANY_RECIPE: dict[str, Callable[..., Plot]] = {
    SCALE: scale_plot,
    "beta": beta_plot,
    "clocks": clocks_plot,
}
