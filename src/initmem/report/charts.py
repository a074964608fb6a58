"""The charts and heat maps of the page: the same recipes in the same panels, plot by plot."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from initmem.clocks import CLOCK_NAMES
from initmem.metric import metric_of, metric_title
from initmem.plots.builders import BETA, CLOCK_TITLES, SHARPNESS_TITLE
from initmem.plots.captions import SIGMA
from initmem.plots.html import thinned
from initmem.plots.model import Heatmap, Panel, Plot, Series, form_between
from initmem.plots.series import UNSTYLED, beta_series
from initmem.plots.styles import ORDERED
from initmem.recipe import AnyRecipe
from initmem.record import INTERPOLATION
from initmem.report.content import Content, Facet, runs_of
from initmem.report.recipe_stats import RecipeStats

MOST_METRICS = 8
MOST_EPOCHS = 48  # points of a learning curve
SIMULTANEOUS = "95% simultaneous band"
SELECTED = f"Of the model with the least validation loss, with a {SIMULTANEOUS}."
NORM = f"Of all kernels of the selected model, with a {SIMULTANEOUS}."
FITTED = "The first epoch with 99.5% train accuracy: median over runs with 95% limits. Above: never reached."
REPAIR = "Validation accuracy when selected less that at interpolation, over the runs that interpolated."
SHARPNESS = "Largest Hessian eigenvalue of the training objective: mean over runs, 10th to 90th percentile."
EDGE = "The same as a fraction of 2/η, or 2(1 + μ)/η with momentum. At 1: the edge of stability."
SETTLING = "How the estimate and its 95% interval settle as seeds come in, recipe by recipe on one axis."

SeriesOf = Callable[[RecipeStats], Series]


def curves(content: Content) -> dict[str, Plot]:
    """Every metric against the initialization scale, and the memory against the number of seeds.

    What no recipe has a value of is left out.
    """
    last = max((float(item.epochs) for item in content.stats.values()), default=0.0)
    norm = Panel("Kernel norm", SIGMA, "Frobenius norm", (), band=SIMULTANEOUS)
    fitted = Panel("Interpolation epoch", SIGMA, "interpolation epoch", (), ceiling=last)
    repair = Panel("Repair gap", SIGMA, "repair gap (pp)", (), band=SIMULTANEOUS)
    units = {item.memory.unit for item in content.stats.values()}
    unit = f" ({''.join(units)})" if len(units) == 1 and units != {""} else ""
    settling = Panel("Memory by seeds", "seeds", f"memory{unit}", ())
    alone = [Facet(content.names[r], [m]) for facet in content.facets for m in facet.members for r in [m.key]]
    plots = {name: _metric_plot(content, name) for name in metrics_of(content)}
    plots |= {
        "norm": _plot(content, content.facets, norm, NORM, lambda item: item.curve("norm_best")),
        "fitted": _plot(content, content.facets, fitted, FITTED, lambda item: item.interpolation),
        "repair": _plot(content, content.facets, repair, REPAIR, lambda item: item.curve("repair_gap")),
        **_sharpness_plots(content),
        "settling": _plot(content, alone, settling, SETTLING, lambda item: item.settling_series),
    }
    return {key: plot for key, plot in plots.items() if any(map(_has_values, plot.panels))}


def metrics_of(content: Content) -> list[str]:
    """What memories are measured in, the train metric next to it, then what user code recorded."""
    main = dict.fromkeys(item.metric for item in content.stats.values())
    main |= dict.fromkeys(item.train_metric for item in content.stats.values() if item.train_metric)
    own = dict.fromkeys(name for item in content.stats.values() for name in item.own_metrics)
    return list(main | own)[:MOST_METRICS]


def learning(content: Content) -> dict[str, Plot]:
    """Every metric that was recorded epoch by epoch: a panel per recipe, a line per scale."""
    columns = dict.fromkeys(name for item in content.stats.values() for name in item.columns)
    scales = sorted({scale for item in content.stats.values() for scale in item.runs})
    even = np.linspace(0, len(scales) - 1, min(len(scales), len(ORDERED))).round().astype(int)
    shown = [scales[i] for i in even]
    few = f" {len(shown)} of {len(scales)} scales are drawn." if len(shown) < len(scales) else ""
    plots = {}
    for column in list(columns)[:MOST_METRICS]:
        title = column.replace("_", " ")
        frame = Panel(title, "epoch", metric_title(column), ())
        panels = [
            frame._replace(title=content.names[recipe], series=_learning(item, column, shown))
            for recipe, item in content.stats.items()
        ]
        about = f"Mean {title} over seeds at every epoch, a line per initialization scale.{few}"
        plots[column] = Plot([panels], head=title.capitalize(), about=[about])
    return {key: plot for key, plot in plots.items() if any(map(_has_values, plot.panels))}


def _learning(item: RecipeStats, column: str, shown: Sequence[float]) -> list[Series]:
    means, n, scales = item.learning(column)
    at = thinned(means.shape[1], MOST_EPOCHS)
    return [
        Series(
            label=f"σ = {scale:g}",
            style=ORDERED[i],
            x=[float(epoch + 1) for epoch in at],
            y=means[row, at].tolist(),
            n=n[row, at].tolist(),
            recipe_id=item.recipe.id,
        )
        for i, scale in enumerate(shown)
        for row in np.flatnonzero(scales == scale)
    ]


def _metric_plot(content: Content, metric: str) -> Plot:
    frame = Panel(metric.replace("_", " ").capitalize(), SIGMA, metric_title(metric), (), band=SIMULTANEOUS)
    return _plot(content, content.facets, frame, SELECTED, lambda item: item.curve(metric))


def _sharpness_plots(content: Content) -> dict[str, Plot]:
    plain = Panel("Sharpness", "epoch", SHARPNESS_TITLE, (), log_y=True)
    edge = Panel("Sharpness × η/2", "epoch", "sharpness / stability limit", ())
    return {
        "sharpness": _plot(content, content.facets, plain, SHARPNESS, lambda item: item.sharpness[0]),
        "edge": _plot(content, content.facets, edge, EDGE, lambda item: item.sharpness[1]),
    }


def _has_values(panel: Panel) -> bool:
    """Whether there is a value, or the knowledge that there never was one."""
    return any(series.known() or any(series.n_censored) for series in panel.series)


def slopes(content: Content) -> dict[str, Plot]:
    """|beta| against epoch and clocks. Series share their heights; an axis only moves them."""
    plots = {"epochs": _slope_plot(content, None)}
    for clock in CLOCK_TITLES:
        if any(_moves(item, clock) for item in content.stats.values()):
            plots[clock] = _slope_plot(content, clock)
    return plots


def _slope_plot(content: Content, clock: str | None) -> Plot:
    name = "epochs" if clock is None else CLOCK_NAMES.get(clock, f"{clock} clock")
    title, x_title = ("Epoch", "epoch") if clock is None else (name, CLOCK_TITLES[clock])
    frame = Panel(title, x_title, BETA, (), log_x=clock is not None, log_y=True)
    frame = frame._replace(band=SIMULTANEOUS, limits="95% interval at this epoch alone")
    about = f"|β| against {name}, with a {SIMULTANEOUS}: it holds for all epochs at once."

    def series(item: RecipeStats) -> Series:
        moves = clock is None or _moves(item, clock)
        return beta_series(item.beta, clock) if moves else Series("", UNSTYLED, (), ())

    return _plot(content, content.family_facets, frame, about, series)


def _moves(item: RecipeStats, clock: str) -> bool:
    values = item.beta.clocks[clock]
    return bool(len(values)) and bool(np.nanmax(values) > 0)


def _plot(content: Content, facets: Sequence[Facet], frame: Panel, about: str, series_of: SeriesOf) -> Plot:
    """A panel per facet, all with the axes of `frame`; its title is what the reader chooses by."""
    panels = []
    for facet in facets:
        series = [
            series_of(content.stats[recipe])._replace(
                label=label, style=style, name=content.names[recipe], recipe_id=recipe.id
            )
            for recipe, label, style in facet.members
        ]
        panels.append(frame._replace(title=facet.title, series=series))
    return Plot([panels], head=frame.title, about=[about])


# -- heat maps --------------------------------------------------------------------------------------------


def memory_maps(content: Content) -> list[Heatmap]:
    """Memory over batch size, a row per family of recipes that differ in nothing else."""
    recipes = [recipe for family in content.families.values() for recipe in family]
    sizes = sorted({recipe.get("batch_size") for recipe in recipes})
    rows, tips, links = [], [], []
    for name, family in content.families.items():
        at = {recipe.get("batch_size"): recipe for recipe in family}
        values = [_memory(content, at.get(size)) for size in sizes]
        rows.append(Series(name, UNSTYLED, sizes, values))
        tips.append([_memory_tip(content, at.get(size)) for size in sizes])
        links.append([runs_of(at[size].id) if size in at else "" for size in sizes])
    known = [value for row in rows for value in row.known()]
    if not known:
        return []
    unit = content.stats[recipes[0]].memory.unit
    title, form = f"Memory{f' ({unit})' if unit else ''}", ".1f" if unit == "pp" else ".3g"
    limits = (min(known), max(known))
    return [Heatmap(title, "batch size", title, rows, limits, form=form, tips=tips, links=links)]


def _memory(content: Content, recipe: AnyRecipe | None) -> float:
    """The memory of a recipe; NaN where it is not known, or is one of another metric."""
    row = content.stats[recipe].memory if recipe is not None else None
    known = row is not None and row.memory is not None and row.metric == content.metric
    return row.memory if known else math.nan  # type: ignore[union-attr,return-value]


def _memory_tip(content: Content, recipe: AnyRecipe | None) -> str:
    if recipe is None or math.isnan(_memory(content, recipe)):
        return "no value"
    row = content.memory_of[recipe]
    counts = f"n = {row.n_scales} × {row.n_seeds}"
    limits = ""
    if row.low is not None:
        limits = f", 95% interval {row.low:.3g} to {row.high:.3g}, noise range {row.noise_range:.2g}"
    return f"{content.names[recipe]}: {row.memory:.3g} {row.unit}{limits}, {row.verdict_text}, {counts}"


def metric_maps(content: Content, facets: Sequence[Facet]) -> list[Heatmap]:
    """The metric over initialization scale, a row per recipe, a map per chart of the curves."""
    curves = {recipe: item.curve(content.metric) for recipe, item in content.stats.items()}
    known = [mean for curve in curves.values() for mean in curve.y]
    if not known:
        return []
    limits = (min(known), max(known))
    maps = [_metric_map(content, facet, curves, limits) for facet in facets]
    return [panel for panel in maps if panel.has_runs()]


def _metric_map(
    content: Content, facet: Facet, curves: dict[AnyRecipe, Series], limits: tuple[float, float]
) -> Heatmap:
    members = [member for member in facet.members if curves[member.key].x]
    scales = sorted({scale for member in members for scale in curves[member.key].x})
    few = ".1f" if len(scales) <= 12 else ".0f"  # with many scales there is no room for tenths
    trains = [content.stats[recipe].train for recipe, _, _ in members]
    return Heatmap(
        title=facet.title or metric_title(content.metric).capitalize(),
        x_title=SIGMA,
        y_title=metric_title(content.metric),
        rows=[_over(curves[recipe], scales)._replace(label=label) for recipe, label, _ in members],
        limits=limits,
        crossed=[[train.get(s, 100.0) < 100 * INTERPOLATION for s in scales] for train in trains],
        form=few if metric_of(content.metric).is_percentage else form_between(*limits),
        tips=[[_tip(content, recipe, curves[recipe], s) for s in scales] for recipe, _, _ in members],
        links=[[runs_of(recipe.id, scale) for scale in scales] for recipe, _, _ in members],
    )


def _over(curve: Series, scales: Sequence[float]) -> Series:
    """A curve on the scales of a whole map."""
    places = [curve.at(scale) for scale in scales]
    return Series("", UNSTYLED, scales, [math.nan if i is None else curve.y[i] for i in places])


def _tip(content: Content, recipe: AnyRecipe, curve: Series, scale: float) -> str:
    i = curve.at(scale)
    if i is None:
        return "no runs"
    limits, train = curve.limits[i], content.stats[recipe].train.get(scale)
    percent = "%" if metric_of(content.metric).is_percentage else ""
    text = f"{content.names[recipe]}, σ = {scale:g}: {curve.y[i]:.4g}{percent}"
    text += f", 95% interval {limits[0]:.4g} to {limits[1]:.4g}" if limits else ""
    text += f", n = {curve.n[i]}" + (f", train accuracy {train:.1f}%" if train is not None else "")
    return f"{text}, runs {listed(curve.runs[i])}"


def listed(ids: Sequence[str], most: int = 4) -> str:
    """The first few run ids, and how many more there are."""
    more = f" and {len(ids) - most} more" if len(ids) > most else ""
    return ", ".join(ids[:most]) + more
