"""Plots of any records: nothing needs to be known about their recipes. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from initmem.clocks import FAMILY_NAMES
from initmem.errors import ConfigError, allowed
from initmem.measures.beta import beta_curve
from initmem.measures.design import check_metric, default_metric, labelled, plain
from initmem.measures.elasticity import FEWEST, ClockFit, Observed, clock_fits, observed
from initmem.measures.fit import train_metric
from initmem.measures.memory import Memory
from initmem.metric import metric_of
from initmem.plots.model import SIGMA, Entry, Interval, Intervals, Panel, Plot, Series, Style
from initmem.plots.series import MEAN, MEDIAN, SLOPE, beta_series, interpolation_series, profile_series
from initmem.plots.styles import GREEN, GREY, GUIDE, VERMILLION, in_order, recipe_styles
from initmem.recipe import AnyRecipe
from initmem.record import RunRecord

BETA = "|β| per unit of σ"
CLOCK_TITLES = {
    "sgd": "SGD clock, (1/b) Σ η²",
    "l2": "L2 clock, λ Σ η",
    "adaptive": "sum of learning rates, Σ η",
    "momentum": "momentum clock, (1/b) Σ (η/(1-μ))²",
    "angular": "angular clock, Σ η/‖W‖²",
}
PANEL_TITLES = {
    "test_accuracy": "Test accuracy of the selected model",
    "train_accuracy": "Train accuracy of the same model",
    "norm_best": "Kernel norm of the selected model",
}
VERDICT_COLORS = {"remembers": VERMILLION, "forgets": GREEN}  # no verdict: gray


def _styled(
    records: Sequence[RunRecord], order: Sequence[AnyRecipe]
) -> list[tuple[str, Style, list[RunRecord]]]:
    """Label, style and records of every recipe: in the given order, then as they come."""
    groups = labelled(records, order)
    styles = recipe_styles([group[0].run.recipe for group in groups.values()])
    return [(label, style, plain(g)) for (label, g), style in zip(groups.items(), styles, strict=True)]


def scale_plot(
    records: Sequence[RunRecord],
    metric: str | None = None,
    *,
    order: Sequence[AnyRecipe] = (),
    with_fit: bool = True,
) -> Plot:
    """A metric against scale, a line per recipe; recipes in the given order, then as they come.

    Next to a metric of new data stands the train metric, where one was recorded.
    """
    metric = metric or default_metric(records)
    check_metric(metric, records)
    trained = train_metric(records, metric) if with_fit and metric_of(metric).held_out else None
    shown = [metric_of(name) for name in (metric, trained) if name]
    panels = []
    for one in shown:
        title = PANEL_TITLES.get(one.name, one.name.replace("_", " ").capitalize())
        series = [
            profile_series(group, one.name).named(label, style)
            for label, style, group in _styled(records, order)
        ]
        panels.append(Panel(title, SIGMA, one.title, series, top=100.0 if one.is_percentage else None))
    if len(panels) == 2 and shown[0].unit == shown[1].unit:
        panels = _on_one_axis(panels)
    return _in_a_row(panels, records, MEAN)


def _on_one_axis(panels: Sequence[Panel]) -> list[Panel]:
    """Panels with the same limits of y: what differs between them is seen at once."""
    ends = [end for panel in panels for one in panel.series for end in (*one.y, *one.low, *one.high)]
    finite = [end for end in ends if math.isfinite(end)]
    if not finite or max(finite) == min(finite):
        return list(panels)
    margin = 0.03 * (max(finite) - min(finite))
    tops = [panel.top for panel in panels if panel.top is not None]
    limits = min(finite) - margin, min([max(finite) + margin, *tops])
    return [panel._replace(y_limits=limits) for panel in panels]


def interpolation_plot(records: Sequence[RunRecord], *, order: Sequence[AnyRecipe] = ()) -> Plot:
    """The median interpolation epoch against scale, a line per recipe."""
    series = [
        interpolation_series(group).named(label, style) for label, style, group in _styled(records, order)
    ]
    last = float(max((record.summary.epochs for record in records), default=0))
    panel = Panel("Interpolation epoch", SIGMA, "interpolation epoch", series, ceiling=last, log_y=True)
    return _in_a_row([panel], records, MEDIAN)


def beta_plot(
    records: Sequence[RunRecord],
    metric: str = "val_accuracy",
    clock: str | None = None,
    *,
    order: Sequence[AnyRecipe] = (),
) -> Plot:
    """|beta| of a metric against epoch or against a clock, a line per recipe."""
    if clock is not None and clock not in CLOCK_TITLES:
        raise ConfigError(f"clock = {clock!r} ({allowed(CLOCK_TITLES)})")
    series = [
        beta_series(beta_curve(group, metric), clock).named(label, style)
        for label, style, group in _styled(records, order)
    ]
    drawn = [one for one in series if np.isfinite(one.y).any()]
    why = f"no slope of {metric}: too few scales, or not recorded epoch by epoch"
    if not drawn:
        raise ConfigError(why)
    x_title = "epoch" if clock is None else CLOCK_TITLES[clock]
    title = f"Slope of {metric.replace('_', ' ')} on the initialization scale"
    panel = Panel(title, x_title, BETA, drawn, log_x=clock is not None, log_y=True)
    plot = _in_a_row([panel], records, SLOPE)
    return plot._replace(missing=[f"{one.label}: {why}" for one in series if one not in drawn])


def machines(records: Sequence[RunRecord]) -> str:
    """The processors that records were trained on."""
    names = dict.fromkeys(str(record.provenance.get("hardware", "")) for record in records)
    return ", ".join(filter(None, names))


def memory_plot(rows: Sequence[Memory]) -> Plot:
    """The memory of every recipe with its interval, its noise range and the tolerance."""
    metric, unit, limit = (rows[0].metric, rows[0].unit, rows[0].tolerance) if rows else ("nothing", "", None)
    x_title = f"memory{f' ({unit})' if unit else ''}"
    title = f"Initialization memory of {metric.replace('_', ' ')}"
    panel = Intervals(title, x_title, [memory_interval(row) for row in rows], tolerance=limit)
    about = ["Memory: max - min over scales of the mean, with its 95% interval"]
    about += ["Gray: noise range"] * any(row.noise_range is not None for row in rows)
    about += ["Dashed: tolerance"] * (limit is not None)
    return Plot([[panel]], row_height=0.7 + 0.22 * len(rows), lettered=False, about=about)


def memory_interval(row: Memory) -> Interval:
    """A memory as one row of a panel of intervals."""
    style = Style(VERDICT_COLORS.get(row.verdict, GREY), "o")
    values = row.memory, row.low, row.high, row.noise_range
    return Interval(row.recipe, style, *values, void="not measured yet", verdict=row.verdict)


def clocks_plot(records: Sequence[RunRecord], *, order: Sequence[AnyRecipe] = ()) -> Plot:
    """Norm elasticity against every clock that was fitted to it, a row per family of optimizers."""
    recipes = observed(labelled(records, order))
    fits = clock_fits(recipes)
    if not fits:
        raise ConfigError(
            f"figure clocks: too few recipes of one kind of optimizer (needed: {FEWEST} with two scales each)"
        )
    kinds = dict.fromkeys(_kind(one.recipe) for one in sorted(recipes, key=lambda one: _size(one.recipe)))
    styles = {kind: in_order(i)._replace(dash="none") for i, kind in enumerate(kinds)}
    means = {fit.family: fit.error_of_mean for fit in fits}
    of_mean = ", ".join(f"{FAMILY_NAMES[name]} {error:.2f}" for name, error in means.items())
    rows = [[_clock_panel(fit, recipes, styles) for fit in fits if fit.family == name] for name in means]
    legend = [Entry(kind, style) for kind, style in styles.items()]
    return Plot(
        rows,
        [legend[i : i + 4] for i in range(0, len(legend), 4)],
        head="Norm elasticity of recipes against their clocks, by family of optimizers",
        about=[
            "A point: a recipe, its norm elasticity, and the clock at the selected epoch",
            "With momentum μ, η is the effective learning rate η/(1-μ); λ counts half of a weight decay",
            "In the titles: root mean square error for a recipe left out of the fit",
            f"Error of the other recipes' mean: {of_mean}",
            "Dashed: fitted curve",
        ],
        machines=machines(records),
        row_height=2.2,
    )


def _kind(recipe: AnyRecipe) -> str:
    """What tells recipes apart in the legend: dataset and width."""
    size = recipe.get("train_size")
    images = f" ({size:,} images)" if isinstance(size, int) else ""
    return f"{recipe.get('dataset') or 'own data'}{images}, width {recipe.get('width') or 'not declared'}"


def _size(recipe: AnyRecipe) -> tuple[str, list[float]]:
    """The order of the legend: by dataset, then by its size and the width."""
    sizes = [recipe.get("train_size"), recipe.get("width")]  # user code may declare anything
    return str(recipe.get("dataset")), [n if isinstance(n, int | float) else np.inf for n in sizes]


def _clock_panel(fit: ClockFit, recipes: Sequence[Observed], styles: Mapping[str, Style]) -> Panel:
    members = [one for one in recipes if fit.family in one.families]
    series = []
    for kind, style in styles.items():
        own = [one for one in members if _kind(one.recipe) == kind]
        x, y = [one.clocks[fit.clock] for one in own], [one.elasticity for one in own]
        series.append(Series(kind, style, x, y, n=[one.n_runs for one in own]))
    values = [one.clocks[fit.clock] for one in members]
    grid = np.geomspace(min(values) / 1.5, max(values) * 1.5, 60)
    line = Series("fitted curve", GUIDE, grid.tolist(), fit.at(grid).tolist())
    return Panel(
        f"{FAMILY_NAMES[fit.family]}: {fit.error:.2f}",
        CLOCK_TITLES[fit.clock],
        "norm elasticity",
        [one for one in series if one.x],
        guides=[line],
        log_x=True,
        levels=[0.0, 1.0],
        x_limits=(grid[0], grid[-1]),  # families differ by orders of magnitude
    )


def _in_a_row(panels: Sequence[Panel], records: Sequence[RunRecord], about: str) -> Plot:
    """Panels of the same recipes side by side, their legend in rows of three."""
    entries = [Entry(one.label, one.style) for one in panels[0].series if one.x]
    legend = [entries[i : i + 3] for i in range(0, len(entries), 3)]
    return Plot(
        [panels],
        legend,
        about=[f"Lines: {about}"],
        machines=machines(records),
        row_height=3.0,
        lettered=False,
    )
