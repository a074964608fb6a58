"""The charts and heat maps of the page: the same recipes in the same panels, plot by plot."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from initmem.clocks import CLOCK_NAMES
from initmem.intervention import Level, level_order
from initmem.metric import metric_title
from initmem.plots.builders import BETA, CLOCK_TITLES
from initmem.plots.html import thinned
from initmem.plots.model import BAND, SIGMA, Heatmap, Panel, Plot, Series
from initmem.plots.series import UNSTYLED, beta_series
from initmem.plots.styles import ORDERED, Facet, Part, recipe_styles, split, styled
from initmem.recipe import AnyRecipe
from initmem.report.content import Array, Content, RecipeStats, at_level

Lines = list[Series]

MOST_METRICS = 8
MOST_EPOCHS = 48  # points of a learning curve
MOST_TRACES = 10  # seeds whose curves are drawn one by one
MOST_COLUMNS, MOST_LAYERS = 12, 24  # of a heat map of layers
SELECTED = f"Of the model with the least validation loss, with a {BAND}."
NORM = f"Of all weights of the selected model, with a {BAND}."
FITTED = f"The first epoch with 99.5% train accuracy: median with a {BAND}. Above: never reached."
REPAIR = "Validation accuracy of the selected model minus its value at interpolation, where it interpolated."
SETTLING = "How the estimate and its 95% interval settle as seeds come in, recipe by recipe."


# -- curves -----------------------------------------------------------------------------------------------


def curves(content: Content) -> dict[str, Plot]:
    """Every metric against the initialization scale, and the memory against the number of seeds."""
    stats = content.stats.values()
    facets = facets_by_study(content)
    last = max((float(item.epochs) for item in stats), default=0.0)
    units = {item.memory.unit for item in stats}
    unit = f" ({''.join(units)})" if len(units) == 1 and units != {""} else ""

    def profile(title: str, y_title: str, about: str, metric: str) -> Plot:
        panel = Panel(title, SIGMA, y_title, ())
        return _plot(content, facets, panel, about, lambda item: item.curve(metric))

    metrics = dict.fromkeys(item.metric for item in stats)
    metrics |= dict.fromkeys(item.train_metric for item in stats if item.train_metric)
    metrics |= dict.fromkeys(name for item in stats for name in item.own_metrics)
    plots = {
        name: profile(name.replace("_", " ").capitalize(), metric_title(name), SELECTED, name)
        for name in list(metrics)[:MOST_METRICS]
    }
    fitted = Panel("Interpolation epoch", SIGMA, "interpolation epoch", (), ceiling=last)
    settling = Panel("Memory by seeds", "seeds", f"memory{unit}", (), band="95% interval")
    alone = [Facet(content.names[member[0]], [member]) for facet in facets for member in facet.members]
    plots |= {
        "norm": profile("Weight norm", "Frobenius norm", NORM, "norm_best"),
        "fitted": _plot(content, facets, fitted, FITTED, lambda item: item.interpolation),
        "repair": profile("Repair gap", "repair gap (pp)", REPAIR, "repair_gap"),
        "settling": _plot(content, alone, settling, SETTLING, lambda item: item.settling),
    }
    return _with_values(plots)


def learning(content: Content) -> dict[str, Plot]:
    """Every metric that was recorded epoch by epoch: a panel per recipe, a line per scale or per run."""
    stats = content.stats.values()
    columns = list(dict.fromkeys(name for item in stats for name in item.columns))[:MOST_METRICS]
    n_levels = max((len(item.runs) for item in stats), default=0)
    n_seeds = max((len(ids) for item in stats for ids in item.runs.values()), default=0)
    levels = f" {len(ORDERED)} of {n_levels} scales are drawn." if n_levels > len(ORDERED) else ""
    seeds = f", of the first {MOST_TRACES} seeds" if n_seeds > MOST_TRACES else ""

    def plot(column: str, head: str, about: str, lines_of: Callable[[str, RecipeStats, str], Lines]) -> Plot:
        panels = [
            Panel(name, "epoch", metric_title(column), lines_of(name, item, column))
            for name, item in ((content.names[recipe], item) for recipe, item in content.stats.items())
        ]
        return Plot([panels], head=head, about=[about])

    plots = {}
    for column in columns:
        title = column.replace("_", " ")
        about = f"Mean {title} over seeds at every epoch, a line per initialization scale or intervention."
        plots[column] = plot(column, title.capitalize(), about + levels, _means)
    for column in columns[:1]:
        title = column.replace("_", " ")
        about = f"The {title} of every run{seeds}: a line per seed, in the color of its scale."
        plots["seeds"] = plot(column, "Single seeds", about, _single_seeds)
    return _with_values(plots)


def _means(_: str, item: RecipeStats, column: str) -> Lines:
    lines = []
    for line, _seeds, values in _by_level(item, column, MOST_EPOCHS):
        n = np.isfinite(values).sum(axis=0)
        means = np.where(n > 0, np.nansum(values, axis=0) / np.where(n > 0, n, 1), np.nan)
        lines.append(line._replace(y=means.tolist(), n=n.tolist()))
    return lines


def _single_seeds(name: str, item: RecipeStats, column: str) -> Lines:
    return [
        line._replace(name=f"{name}, {line.label}, seed {seed:g}", y=one.tolist(), n=[1] * len(one))
        for line, seeds, values in _by_level(item, column, MOST_EPOCHS // 2)
        for seed, one in zip(seeds[:MOST_TRACES], values, strict=False)
        if np.isfinite(one).any()
    ]


def _by_level(item: RecipeStats, column: str, most: int) -> Iterator[tuple[Series, Array, Array]]:
    """For every level that is drawn, in its color: a line without values, the seeds, and the values of
    shape (seed, epoch) at so many epochs at most."""
    values, levels, seeds = item.learning(column)
    at = thinned(values.shape[2], most)
    for level, style in zip(_spread_levels(item.runs), ORDERED, strict=False):
        if level in levels:
            line = Series(at_level(level), style, (at + 1.0).tolist(), (), recipe_id=item.recipe.id)
            yield line, seeds, values[:, levels.index(level)][:, at]


def _spread_levels(levels: Iterable[Level]) -> list[Level]:
    """As many levels as there are colors, from the first to the last."""
    every = sorted(levels, key=level_order)
    even = np.linspace(0, len(every) - 1, min(len(every), len(ORDERED))).round().astype(int)
    return [every[i] for i in even]


def slopes(content: Content) -> dict[str, Plot]:
    """|beta| against epoch and clocks. Series share their heights; an axis only moves them."""
    facets = facets_by_family(content)
    return {
        clock or "epochs": _slope_plot(content, facets, clock)
        for clock in (None, *CLOCK_TITLES)
        if any(_moves(item, clock) for item in content.stats.values())
    }


def _slope_plot(content: Content, facets: Sequence[Facet], clock: str | None) -> Plot:
    name = "epochs" if clock is None else CLOCK_NAMES.get(clock, f"{clock} clock")
    title, x_title = ("Epoch", "epoch") if clock is None else (name, CLOCK_TITLES[clock])
    panel = Panel(title, x_title, BETA, (), log_x=clock is not None, log_y=True)
    panel = panel._replace(limits="95% interval at this epoch alone")
    about = f"|β| against {name}, with a {BAND}: it holds for all epochs at once."

    def series(item: RecipeStats) -> Series:
        return beta_series(item.beta, clock) if _moves(item, clock) else Series("", UNSTYLED, (), ())

    return _plot(content, facets, panel, about, series)


def _moves(item: RecipeStats, clock: str | None) -> bool:
    """Whether there is a slope, and the clock has run at all."""
    ticks = item.beta.epochs if clock is None else item.beta.clocks[clock]
    return len(item.beta.beta) > 0 and bool((ticks > 0).any())


def _plot(
    content: Content,
    facets: Sequence[Facet],
    panel: Panel,
    about: str,
    series_of: Callable[[RecipeStats], Series],
) -> Plot:
    """A panel per facet, all with the axes of `panel`, whose title the reader chooses the plot by."""
    panels = []
    for facet in facets:
        series = [
            series_of(content.stats[recipe])._replace(
                label=label, style=style, name=content.names[recipe], recipe_id=recipe.id
            )
            for recipe, label, style in facet.members
        ]
        panels.append(panel._replace(title=facet.title, series=series))
    return Plot([panels], head=panel.title, about=[about])


def _with_values(plots: dict[str, Plot]) -> dict[str, Plot]:
    """The plots that have a value to draw, or runs that are known never to have reached one."""
    return {
        key: plot
        for key, plot in plots.items()
        if any(one.known() or any(one.n_censored) for panel in plot.panels for one in panel.series)
    }


# -- which recipes share a chart --------------------------------------------------------------------------


# The fields that charts are split by, the most telling first; optimizers share a chart.
SPLIT_FIRST = ("dataset", "batch_size", "l2", "learning_rate", "model", "norm", "augment")
SPLIT_NEVER = ("optimizer", "data_sha256")


def facets_by_study(content: Content) -> list[Facet]:
    """The charts of metrics against scale: by study, then by the fields that keep the lines few."""
    groups: dict[str, list[AnyRecipe]] = {}
    for recipe in content.stats:
        study = next((one for one in content.survey.studies if recipe in one.recipes), None)
        groups.setdefault(f"{study.name} ({study.preset})" if study else "other runs", []).append(recipe)
    charts = []
    for name, group in groups.items():
        for title, recipes in _split(group):
            parts = [name, title] if len(groups) > 1 else [title]
            charts.append((", ".join(filter(None, parts)), recipes))
    return styled(charts)


def facets_by_family(content: Content) -> list[Facet]:
    """The charts of beta: one for each family of batch sizes, where there are families."""
    if not content.families:
        return facets_by_study(content)
    members = {recipe for recipes in content.families.values() for recipe in recipes}
    others = [recipe for recipe in content.stats if recipe not in members]
    together = [
        Facet(name, [(r, f"b{r.get('batch_size')}", style) for r, style in zip(recipes, styles, strict=True)])
        for name, recipes in content.families.items()
        for styles in [recipe_styles(recipes)]
    ]
    return together + styled([(title or "others", recipes) for title, recipes in _split(others)])


def _split(recipes: Sequence[AnyRecipe]) -> list[Part]:
    every = dict.fromkeys((*SPLIT_FIRST, *(name for recipe in recipes for name in recipe.settings())))
    return split(recipes, [name for name in every if name not in SPLIT_NEVER])


# -- heat maps --------------------------------------------------------------------------------------------


def layer_maps(content: Content) -> list[Heatmap]:
    """The cosine of layers to their initial weights by epoch: a map per recipe, all with the same colors."""
    curves = {recipe: stats.cosines for recipe, stats in content.stats.items() if stats.cosines}
    shown = dict(list(curves.items())[:MOST_METRICS])
    values = [value for layers in shown.values() for curve in layers.values() for value in curve.values()]
    maps = []
    for recipe, layers in shown.items():
        every = sorted({epoch for curve in layers.values() for epoch in curve})
        epochs = [every[i] for i in thinned(len(every), MOST_COLUMNS)]
        rows = [
            Series(name, UNSTYLED, epochs, [curve.get(at, math.nan) for at in epochs], recipe_id=recipe.id)
            for name, curve in list(layers.items())[:: math.ceil(len(layers) / MOST_LAYERS)]
        ]
        maps.append(Heatmap(content.names[recipe], "epoch", "cosine", rows, (min(0.0, *values), 1.0)))
    return maps
