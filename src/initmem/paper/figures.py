"""Figures 1 to 8 of bundled recipes, and those of any: pure plots, drawn by `plots.matplotlib`.

Every figure shows the optimizers, batch sizes and scales that there are; what it wants but the store lacks
is shown as missing and named.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

from initmem.errors import ConfigError, StoreError, allowed
from initmem.measures.beta import beta_curve
from initmem.measures.design import bundled, labelled
from initmem.measures.fit import fit
from initmem.measures.memory import memory_table
from initmem.paper import grids
from initmem.paper.reference import find, memory_of
from initmem.paper.selection import Key, Line, Records, Selection, Studies
from initmem.plots import builders
from initmem.plots.model import (
    SIGMA,
    AnyPanel,
    Heatmap,
    Interval,
    Intervals,
    Panel,
    Plot,
    Series,
    Style,
)
from initmem.plots.series import (
    MEAN,
    MEDIAN,
    SLOPE,
    accuracy_gap,
    beta_series,
    interpolation_series,
    profile_series,
    scale_series,
    spread_over,
)
from initmem.plots.styles import GUIDE, optimizer_style, variants
from initmem.record import INTERPOLATION, RunRecord
from initmem.store.results import Collection
from initmem.study import recipes_of

__all__ = ["NAMES", "available", "draw", "matching", "plot_of"]


def available(records: Records, studies: Studies, reference: bool = False) -> dict[str, Plot]:
    """The figures that a store can fill, by name."""
    plots = {}
    for name in (*NAMES, *OF_ANY_RECIPE):
        with contextlib.suppress(ConfigError, StoreError):
            plot = plot_of(name, records, studies, reference)
            if any(panel.has_runs() for panel in plot.all_panels):
                plots[name] = plot
    if not plots:
        raise StoreError("no finished run yet that a figure could show (initmem run makes them)")
    return plots


def matching(records: Records, studies: Studies, pattern: str) -> list[RunRecord]:
    """The records of the recipes whose label matches a shell-style pattern, or holds all of its words."""
    groups = labelled(records, recipes_of(studies))
    words = set(pattern.split())
    chosen = {
        name: group for name, group in groups.items() if fnmatch(name, pattern) or words <= {*name.split()}
    }
    if not chosen:
        raise ConfigError(f"recipes = {pattern!r} ({allowed(groups)})")
    return [record for group in chosen.values() for record in group]


def plot_of(name: str, records: Records, studies: Studies, reference: bool = False) -> Plot:
    """The plot of a figure; `reference` adds published values."""
    if name not in (*NAMES, *OF_ANY_RECIPE):
        raise ConfigError(f"figure = {name!r} ({allowed([*NAMES, *OF_ANY_RECIPE], name)})")
    if not records:
        raise StoreError("no finished run yet (initmem run makes them)")
    if name in OF_ANY_RECIPE:
        asked = grids.asking(studies, {record.run.recipe for record in records})
        plot = OF_ANY_RECIPE[name](records, studies)
        return plot._replace(origin={"Study": asked, **plot.origin})
    of_networks = bundled(records)
    if not of_networks:
        raise StoreError(
            f"figure {name}: only runs of your own training code here ({allowed(OF_ANY_RECIPE)})"
        )
    return OF_PAPER[name](of_networks, studies, reference=reference)._replace(reference=reference)


def draw(plot: Plot, path: Path, *, captioned: bool = True) -> None:
    """Draw a figure as PDF, PNG or SVG, by the ending of the path."""
    from initmem.plots import matplotlib as renderer

    figure, _ = renderer.draw(plot, captioned=captioned)
    renderer.save(figure, path)


# -- what they share --------------------------------------------------------------------------------------

LINES = f"Lines: {MEAN}"
SPREAD = "Spread: max - min over scales of the mean test accuracy, over seeds that have all scales"


def _plot(study: grids.Lines, rows: Sequence[Sequence[AnyPanel]], **others: Any) -> Plot:
    """Panels, a legend that names every line once, where the numbers come from, and what is missing."""
    usual = {
        "origin": grids.origin(study.selection, study.every),
        "legend": [grids.legend(study.every)],
        "missing": grids.missing(study.every),
        "notes": study.notes,
    }
    return Plot(rows, **usual | others)


def _drawn(lines: Iterable[Line], series: Callable[[Line], Series]) -> list[Series]:
    """A series for every line that has runs."""
    return [series(line).named(line.label, line.style) for line in lines if line.records]


def _profiles(lines: Iterable[Line], metric: str) -> list[Series]:
    """A metric against scale."""
    return _drawn(lines, lambda line: profile_series(line.records, metric, line.expected))


def _marks(where: str, lines: Iterable[Line]) -> list[Series]:
    """Published test accuracies at single scales."""
    points = [(line, scale) for line in lines for scale in line.expected]
    items = [(find(where, line.recipe, "test", scale), scale, line.style) for line, scale in points]
    return [Series("", style, [scale], [item.value]) for item, scale, style in items if item]


def _spreads(where: str, title: str, lines: Sequence[Line], *, reference: bool = True) -> Intervals:
    """The spread of every line over the scales that most of them share, and the published one."""
    grid, rows = grids.shared_scales(lines), []
    for line in lines:
        void = "incomplete" if line.records else "no runs"
        row = Interval(line.label, line.style, spread_over(line.records, grid), void=void)
        item = memory_of(line.recipe, where) if reference else None
        if item is not None:
            row = row._replace(reference=item.value, relation=item.relation, reference_scales=item.n_scales)
        rows.append(row)
    return Intervals(title, f"spread, {len(grid)} scales (pp)", rows, len(grid))


# -- figures 1 to 3: the main grid ------------------------------------------------------------------------


def plot_scales(records: Records, studies: Studies, *, reference: bool = False) -> Plot:
    """Figure 1: rows are batch sizes, columns the accuracy gap, the test accuracy and the kernel norm."""
    grid = grids.main_grid(records, studies, grids.BATCHES, every_batch=False)
    rows: list[list[AnyPanel]] = []

    def gap(line: Line) -> Series:
        return scale_series(line.records, accuracy_gap, line.expected, (-100.0, 100.0))

    for (b, _), lines in grid.panels.items():
        title = f"b = {b}"
        marks = _marks("figure 1", lines) if reference else ()
        tests, norms = _profiles(lines, "test_accuracy"), _profiles(lines, "norm_best")
        rows.append(
            [
                Panel(title, SIGMA, "train − test accuracy (pp)", _drawn(lines, gap)),
                Panel(title, SIGMA, "test accuracy (%)", tests, published=marks, top=100),
                Panel(title, SIGMA, "kernel norm ‖W‖", norms, guides=[_initial_norm(lines)] if norms else []),
                *([_spreads("figure 1", title, lines)] if reference else []),
            ]
        )
    return _plot(
        grid,
        rows,
        head="Accuracy gap, test accuracy and kernel norm of the model with the least validation loss",
        about=[LINES, "Kernel norm: Frobenius", *([SPREAD] if reference else [])],
        notes=[*grid.notes, *_not_interpolating(grid.every)],
    )


def _initial_norm(lines: Sequence[Line]) -> Series:
    records = [record for line in lines for record in line.records]
    expected = {scale: 0 for line in lines for scale in line.expected}
    norms = profile_series(records, "norm_init", expected)
    return norms._replace(label="at initialization", style=GUIDE, low=(), high=())


def _not_interpolating(lines: Sequence[Line]) -> list[str]:
    """SGD that does not fit its training data from every scale: in the published figure it does."""
    fits = [(line, fit(line.records)) for line in lines if line.label == "sgd" and line.records]
    return [
        f"{line.name} does not interpolate, unlike in the published figure: train accuracy "
        f"{of_scales.train[0]:.1f}% at the smallest scale, {of_scales.train[-1]:.1f}% at the largest"
        for line, of_scales in fits
        if of_scales is not None and min(of_scales.train) < 100 * INTERPOLATION
    ]


def plot_heatmaps(records: Records, studies: Studies, *, reference: bool = False) -> Plot:
    """Figure 2: test accuracy, optimizer x scale, a map per batch size, two in a row."""
    grid = grids.main_grid(records, studies)
    scales = dict.fromkeys(grid.selection.scales(), 0)  # also where a line was not asked for

    def by_scale(line: Line, metric: str) -> Series:
        return profile_series(line.records, metric, scales | line.expected).named(line.label, line.style)

    maps = []
    for (b, _), lines in grid.panels.items():
        tests = [by_scale(line, "test_accuracy") for line in lines]
        crossed = [[y < 100 * INTERPOLATION for y in by_scale(line, "train_accuracy").y] for line in lines]
        beside = _spreads("figure 2", f"b = {b}", lines).rows if reference else ()
        maps.append(Heatmap(f"b = {b}", SIGMA, "test accuracy (%)", tests, (0.0, 100.0), crossed, beside))
    limits = _color_limits([y for panel in maps for row in panel.rows for y in row.known()])
    maps = [panel._replace(limits=limits) for panel in maps]
    full = [panel for panel in maps if panel.has_runs()]
    empty = [panel for panel in maps if not panel.has_runs()]
    published = any(row.reference is not None for panel in maps for row in panel.intervals)
    return _plot(
        grid,
        [*(full[i : i + 2] for i in range(0, len(full), 2)), *([empty] if empty else [])],
        head="Test accuracy of the model with the least validation loss, mean over seeds",
        about=["Right of each row: the spread in points", SPREAD] if reference else [],
        published=["spreads in parentheses"] if published else (),
        legend=(),
    )


def _color_limits(values: Sequence[float]) -> tuple[float, float]:
    """From the least to the largest percentage, at least ten points: noise should not look like an effect."""
    if not values:
        return 0.0, 100.0
    low, high = min(values), max(values)
    margin = max(0.0, (10.0 - (high - low)) / 2)
    top = min(high + margin, 100.0)
    return max(0.0, min(low - margin, top - 10.0)), top


def plot_interpolation(records: Records, studies: Studies, *, reference: bool = False) -> Plot:
    """Figure 3: columns are batch sizes; above the interpolation epoch, below the repair gap."""
    grid = grids.main_grid(records, studies, grids.BATCHES)
    epochs, gaps = [], []
    for (b, _), lines in grid.panels.items():
        medians = _drawn(lines, lambda line: interpolation_series(line.records, line.expected))
        last = max((float(line.recipe.epochs) for line in lines if line.records), default=None)
        epochs.append(Panel(f"b = {b}", SIGMA, "interpolation epoch", medians, ceiling=last, log_y=True))
        repairs = _profiles(lines, "repair_gap")
        gaps.append(Panel(f"b = {b}", SIGMA, "repair gap (pp)", repairs, void="99.5% never reached"))
    return _plot(
        grid,
        [epochs, gaps],
        head="Interpolation epoch (first with 99.5% train accuracy) and repair gap",
        about=[
            f"Above: {MEDIAN}",
            f"Below: {MEAN}",
            "Repair gap: validation accuracy at the least validation loss less that at interpolation, "
            "over the runs that interpolated",
        ],
        published=_published_epochs(grid.every) if reference else [],
    )


def _published_epochs(lines: Sequence[Line]) -> list[str]:
    """Published interpolation epochs of what is shown: one range holds for several lines."""
    ranges: dict[str, list[Line]] = {}
    for line in lines:
        item = find("figure 3", line.recipe, "tau_interp")
        if item is not None and line.records:
            ranges.setdefault(str(item), []).append(line)
    return [
        f"interpolation epoch {epochs} for {', '.join(dict.fromkeys(line.label for line in group))} "
        f"at b = {', '.join(dict.fromkeys(str(line.recipe.batch_size) for line in group))}"
        for epochs, group in ranges.items()
    ]


# -- figure 4: the sweep ----------------------------------------------------------------------------------


def plot_sweep(records: Records, studies: Studies, *, reference: bool = False) -> Plot:
    """Figure 4: a column per batch size; below the lines, their spreads in ascending order."""
    study = grids.sweep(records, studies)
    tests: list[AnyPanel] = []
    below: list[AnyPanel] = []
    for (b, _), lines in study.panels.items():
        profiles = _profiles(lines, "test_accuracy")
        tests.append(Panel(f"b = {b}", SIGMA, "test accuracy (%)", profiles, top=100))
        there = [line for line in lines if reference or line.records]
        spreads = _spreads("figure 4", f"b = {b}", there, reference=reference)
        ordered = sorted(spreads.rows, key=lambda row: (row.value is None, row.value or 0.0))
        below.append(spreads._replace(rows=ordered))
    by_rate: dict[Any, list[Line]] = {}  # a row of the legend per learning rate; others below
    for line in study.every:
        by_rate.setdefault(line.key[1] if line.label.startswith("η") else "others", []).append(line)
    return _plot(
        study,
        [tests, below],
        legend=[grids.legend(lines) for lines in by_rate.values()],
        head="Test accuracy of SGD by learning rate η and L2 λ",
        about=[LINES, SPREAD],
        row_height=2.9,
    )


# -- figures 5, 7 and 8: networks and norms ---------------------------------------------------------------

METRICS = {  # what figures show, and of which model
    "test_accuracy": ("test accuracy", "at the least validation loss"),
    "train_accuracy_last": ("train accuracy", "at the last epoch"),
}


def plot_pairs(
    where: str, family: grids.Family, metric: str, records: Records, studies: Studies, reference: bool = False
) -> Plot:
    """A row per batch size, a column per optimizer; other optimizers below."""
    study = grids.pairs(records, studies, family)
    quantity, moment = METRICS[metric]
    panels: dict[tuple[int, str], AnyPanel] = {}
    for (b, name), lines in study.panels.items():
        panel = Panel(f"b = {b}, {name}", SIGMA, f"{quantity} (%)", _profiles(lines, metric), top=100)
        if reference:
            levels = [item.value for line in lines if (item := find(where, line.recipe, "train"))]
            panel = panel._replace(published=_marks(where, lines), published_level=next(iter(levels), None))
        panels[b, name] = panel
    with_spreads = reference and metric == "test_accuracy"
    rows = []
    for b in study.batches:
        row = [panels[b, name] for name in grids.PAIR]
        if with_spreads:
            both = [(name, line) for name in grids.PAIR for line in study.panels[b, name]]
            named = [replace(line, label=f"{name}, {line.label}") for name, line in both]
            row.append(_spreads(where, f"b = {b}", named))
        rows.append(row)
    others = dict.fromkeys(name for _, name in panels if name not in grids.PAIR)
    rows += [[panels[b, name] for name in others] for b in study.batches if others]
    return _plot(
        study,
        rows,
        head=f"{quantity.capitalize()} by {family.title}, {moment}",
        about=[LINES, SPREAD] if with_spreads else [LINES],
    )


# -- figure 6: slopes -------------------------------------------------------------------------------------

PLAIN, ADAPTIVE = ("sgd", "momentum"), ("adam", "adamw", "muon", "muon-conv")


def plot_slopes(records: Records, studies: Studies, *, reference: bool = False) -> Plot:
    """|beta|, the slope of validation accuracy on scale. A row per batch size against epoch, SGD left and
    adaptive methods right; below against the clocks, a line per batch size."""
    grid = grids.main_grid(records, studies)
    with_l2, (_, rate, l2) = grids.penalized(records, studies, grid.selection)
    decayed = optimizer_style("sgd")._replace(marker="X", dash=":", hollow=True)
    sgd = grid.selection.line(("sgd", 16), "sgd", GUIDE).recipe
    item = find("figure 6", sgd, "beta") if reference else None

    def panel(title: str, lines: Sequence[Line], clock: str | None = None) -> Panel:
        series = _drawn(lines, lambda line: beta_series(beta_curve(line.records), clock))
        of_sgd = any(line.recipe.optimizer == "sgd" and not line.recipe.l2 for line in lines)
        level = item.value if item and of_sgd else None
        x_title = builders.CLOCK_TITLES[clock] if clock else "epoch"
        made = Panel(title, x_title, builders.BETA, series, log_x=clock is not None, log_y=True)
        return made._replace(void="batch norm was cold in all epochs", published_level=level)

    rows, top = [], []
    for b in grid.selection.batch_sizes(grids.BATCHES):
        of = {line.label: line for line in grid.panels[b, ""]}
        left = [of[name] for name in PLAIN if name in of]
        left.append(with_l2.line(("sgd", rate, l2, b), f"sgd η = {rate:g}, λ = {l2:g}", decayed))
        right = [of[name] for name in ADAPTIVE if name in of]
        rows.append([panel(f"b = {b}, SGD", left), panel(f"b = {b}, adaptive", right)])
        top += left + right

    def by_batch(selection: Selection, key: Key, label: str, style: Style) -> list[Line]:
        shades = zip(grid.batches, variants(style, len(grid.batches)), strict=True)
        return [selection.line((*key, b), f"{label}, b = {b}", shade) for b, shade in shades]

    of_l2 = by_batch(with_l2, ("sgd", rate, l2), f"λ = {l2:g}", decayed)
    of_l2 = [line for line in of_l2 if line.recipe.batch_size in grids.BATCHES or line.records]
    of_sgd, of_adam = (by_batch(grid.selection, (name,), name, optimizer_style(name)) for name in grids.PAIR)
    with_decay = any(line.records for line in of_l2)
    below = [
        panel("sgd", of_sgd, "sgd"),
        *([panel(f"sgd, λ = {l2:g}", of_l2, "l2")] if with_decay else []),
        panel("adam", of_adam, "adaptive"),
    ]
    bottom = [*of_sgd, *of_l2, *of_adam]
    return _plot(
        grid._replace(panels={(0, ""): top + bottom}),
        [*rows, below],
        legend=[grids.legend(top), grids.legend(bottom)],
        head="Slope β of validation accuracy on initialization scale, against epoch and against the clocks",
        about=[f"Lines: {SLOPE}"],
        origin=grids.origin(grid.selection, top + bottom, grids.SWEPT),
        row_height=1.9,
    )


# -- all of them ------------------------------------------------------------------------------------------

OF_PAPER: dict[str, Callable[..., Plot]] = {
    "1": plot_scales,
    "2": plot_heatmaps,
    "3": plot_interpolation,
    "4": plot_sweep,
    "5": partial(plot_pairs, "figure 5", grids.DEPTHS, "test_accuracy"),
    "6": plot_slopes,
    "7": partial(plot_pairs, "figure 7", grids.DEPTHS, "train_accuracy_last"),
    "8": partial(plot_pairs, "figure 8", grids.NORMS, "test_accuracy"),
}
NAMES = tuple(OF_PAPER)


def _of_memories(plot: Callable[..., Plot], records: Records, studies: Studies) -> Plot:
    """A plot of the memories of all recipes."""
    recipes = list(dict.fromkeys(record.run.recipe for record in records))
    return plot(memory_table(Collection(records, studies)), recipes)


def _in_order(plot: Callable[..., Plot], records: Records, studies: Studies) -> Plot:
    """A plot of recipes in the order of their studies."""
    return plot(records, order=recipes_of(studies))


OF_ANY_RECIPE: dict[str, Callable[[Records, Studies], Plot]] = {
    "scale": partial(_in_order, builders.scale_plot),
    "memory": partial(_of_memories, builders.memory_plot),
    "tradeoff": partial(_of_memories, builders.tradeoff_plot),
    "beta": partial(_in_order, builders.beta_plot),
    "clocks": partial(_in_order, builders.clocks_plot),
    "layers": partial(_in_order, builders.layers_plot),
}
