"""Plots of any records: nothing needs to be known about their recipes. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from initmem.clocks import FAMILY_NAMES
from initmem.errors import ConfigError, allowed
from initmem.labels import labels, phrase
from initmem.measures.beta import beta_curve
from initmem.measures.design import Row, by_recipe, check_metric, default_metric, labelled, plain
from initmem.measures.elasticity import FEWEST, ClockFit, Observed, clock_fits, layer_rows, observed
from initmem.measures.fit import train_metric
from initmem.measures.memory import Memory
from initmem.measures.statistics import ALPHA
from initmem.measures.tradeoff import tradeoffs
from initmem.metric import metric_of
from initmem.plots.model import (
    INTERVENTION,
    SIGMA,
    Entry,
    Heatmap,
    Interval,
    Intervals,
    Panel,
    Plot,
    Series,
    Style,
    Text,
    numbers,
)
from initmem.plots.series import (
    MEAN,
    MEDIAN,
    SLOPE,
    UNSTYLED,
    beta_series,
    interpolation_series,
    profile_series,
)
from initmem.plots.styles import GUIDE, Part, in_order, optimizer_style, split, styled
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
FACETS = ("dataset", "model", "optimizer", "batch_size", "width", "learning_rate", "l2")
MOST_BANDS = 3  # in a panel: more would hide the lines
MOST_APART = 3  # recipes of 12 and of 2,400 epochs need a logarithmic axis


Line = tuple[str, Style, list[RunRecord]]  # a recipe of a panel: its label, style and runs


def _facets(
    records: Sequence[RunRecord], order: Sequence[AnyRecipe], *, divide: bool
) -> dict[str, list[Line]]:
    """The recipes by the panel in which they are drawn: in the given order, then as they come.

    Scales and interventions have no axis in common, and many recipes are divided by the `FACETS` in which
    they differ. A label then names what differs within a panel. Unless `divide`, one panel has them all.
    """
    groups = by_recipe(records, order)
    parts: list[Part] = [("", list(groups))]
    if divide:
        kinds: dict[str, list[AnyRecipe]] = {}
        for recipe, group in groups.items():
            intervened = any(one.run.intervention for one in group)
            kinds.setdefault("interventions" if intervened else "scales", []).append(recipe)
        parts = [
            (", ".join(filter(None, [title, kind * (len(kinds) > 1)])), part)
            for kind, members in kinds.items()
            for title, part in split(members, FACETS)
        ]
    every = list(labelled(records, order))
    return {
        facet.title: [(label, style, plain(groups[recipe])) for recipe, label, style in facet.members]
        for facet in styled(parts, labels if len(parts) > 1 else lambda _: every)
    }


def scale_plot(
    records: Sequence[RunRecord],
    metric: str | None = None,
    *,
    order: Sequence[AnyRecipe] = (),
    with_fit: bool = True,
    divide: bool = True,
) -> Plot:
    """A metric against scale, a line per recipe; recipes in the given order, then as they come.

    Next to a metric of new data stands the train metric, where one was recorded.
    """
    metric = metric or default_metric(records)
    check_metric(metric, records)
    trained = train_metric(records, metric) if with_fit and metric_of(metric).held_out else None
    shown = [metric_of(name) for name in (metric, trained) if name]
    alike = len({one.unit for one in shown}) < len(shown)  # on one axis what differs is seen at once
    rows = []
    for facet, lines in _facets(records, order, divide=divide).items():
        panels = []
        for one in shown:
            title = PANEL_TITLES.get(one.name, one.name.replace("_", " ").capitalize())
            series = [profile_series(runs, one.name).named(label, style) for label, style, runs in lines]
            top = 100.0 if one.is_percentage else None
            named = any(isinstance(x, str) for line in series for x in line.x)
            panel = Panel(facet or title, INTERVENTION if named else SIGMA, one.title, series, top=top)
            panels.append(panel._replace(y_shared=f"{facet}, {one.unit}" if alike else ""))
        rows.append(panels)
    return _rows_of_lines(rows, records, MEAN)


def interpolation_plot(records: Sequence[RunRecord], *, order: Sequence[AnyRecipe] = ()) -> Plot:
    """The median interpolation epoch against scale, a line per recipe."""
    (lines,) = _facets(records, order, divide=False).values()
    series = [interpolation_series(runs).named(label, style) for label, style, runs in lines]
    last = float(max((record.summary.epochs for record in records), default=0))
    panel = Panel("Interpolation epoch", SIGMA, "interpolation epoch", series, ceiling=last, log_y=True)
    return _rows_of_lines([[panel]], records, MEDIAN)


def beta_plot(
    records: Sequence[RunRecord],
    metric: str = "val_accuracy",
    clock: str | None = None,
    *,
    order: Sequence[AnyRecipe] = (),
    divide: bool = True,
) -> Plot:
    """|beta| of a metric against epoch or against a clock, a line per recipe."""
    if clock is not None and clock not in CLOCK_TITLES:
        raise ConfigError(f"clock = {clock!r} ({allowed(CLOCK_TITLES)})")
    x_title = "epoch" if clock is None else CLOCK_TITLES[clock]
    title = f"Slope of {metric.replace('_', ' ')} on the initialization scale"
    panels, missing = [], []
    for facet, lines in _facets(records, order, divide=divide).items():
        curves = [
            beta_series(beta_curve(runs, metric), clock).named(label, style) for label, style, runs in lines
        ]
        drawn = [one for one in curves if np.isfinite(one.y).any()]
        missing += [f"{facet} {one.label}".strip() for one in curves if not np.isfinite(one.y).any()]
        if drawn:
            ends = [max(numbers(one.x)) for one in drawn]
            log_x = clock is not None or max(ends) > MOST_APART * min(ends)
            panel = Panel(facet or title, x_title, BETA, drawn, log_x=log_x, log_y=True)
            panels.append(panel._replace(x_shared=facet if clock is None else ""))
    why = f"no slope of {metric}: too few scales, or not recorded epoch by epoch"
    if not panels:
        raise ConfigError(why)
    plot = _rows_of_lines([panels[i : i + 2] for i in range(0, len(panels), 2)], records, SLOPE)
    head = title if len(panels) > 1 else ""
    return plot._replace(missing=[f"{name}: {why}" for name in missing], head=head)


def machines(records: Sequence[RunRecord]) -> str:
    """The processors that records were trained on."""
    names = dict.fromkeys(str(record.provenance.get("hardware", "")) for record in records)
    return ", ".join(filter(None, names))


def memory_plot(rows: Sequence[Memory], recipes: Sequence[AnyRecipe]) -> Plot:
    """The memory of every recipe with its interval, its noise range and the tolerance."""
    metric, unit, limit = (rows[0].metric, rows[0].unit, rows[0].tolerance) if rows else ("nothing", "", None)
    x_title = f"memory{f' ({unit})' if unit else ''}"
    title = f"Initialization memory of {metric.replace('_', ' ')}"
    styles = {recipe.id: optimizer_style(_optimizer(recipe)) for recipe in recipes}
    bars = []
    for row in rows:
        open_question = row.verdict not in ("remembers", "forgets")
        style = styles[row.recipe_id]._replace(marker="o", hollow=open_question)
        values = row.memory, row.low, row.high, row.noise_range
        bars.append(Interval(row.recipe, style, *values, void="not measured yet"))
    about = ["Memory: max - min over scales of the mean, with its 95% interval"]
    about += ["Gray: noise range"] * any(row.noise_range is not None for row in rows)
    about += ["Dashed: tolerance"] * (limit is not None)
    about += ["Open circles: no verdict"] * any(bar.style.hollow for bar in bars)
    panel = Intervals(title, x_title, bars, tolerance=limit)
    return Plot([[panel]], row_height=0.7 + 0.22 * len(rows), lettered=False, about=about)


def _optimizer(recipe: AnyRecipe) -> str:
    return str(recipe.get("optimizer") or "own code").lower()  # user code may declare torch's name of it


def tradeoff_plot(rows: Sequence[Memory], recipes: Sequence[AnyRecipe]) -> Plot:
    """The memory of every recipe against its best mean over scales, a panel for every dataset."""
    by_id = {recipe.id: recipe for recipe in recipes}
    names = {key: _optimizer(recipe) for key, recipe in by_id.items()}
    styles = {name: optimizer_style(name)._replace(dash="none", size=5) for name in names.values()}
    parts, few = tradeoffs(rows, by_id)
    panels = []
    for one in parts:
        series = []
        for row, best in zip(one.memories, one.best, strict=True):
            point = Series(row.recipe, styles[names[row.recipe_id]], [best], [row.memory or 0.0])
            if row.low is not None and row.high is not None:
                point = point._replace(low=[row.low], high=[row.high])
            series.append(point._replace(n=[row.n_seeds]))
        first = one.memories[0]
        x_title = f"{metric_of(first.metric).title}, mean at the best scale"
        y_title = f"memory{f' ({first.unit})' if first.unit else ''}"
        words = Text(0.98, 0.97, f"rank correlation\n{one}")
        top = 1.35 * max(row.high or row.memory or 0.0 for row in one.memories)  # with room for the words
        panel = Panel(one.data, x_title, y_title, series, texts=[words], x_shared=one.data)
        panels.append(panel._replace(y_limits=(-0.03 * top, top)))
    shown = dict.fromkeys(names[row.recipe_id] for one in parts for row in one.memories)
    return Plot(
        [panels[i : i + 2] for i in range(0, len(panels), 2)],
        [[Entry(name, styles[name]) for name in shown]],
        head="Memory of recipes against what they reach at their best initialization scale",
        about=[
            "A point: a recipe, with the 95% interval of its memory",
            "Rank correlation: Spearman's, with Fisher's 95% interval for a random sample of recipes",
        ],
        notes=[f"{one.data}: rank correlation {one}, {len(one.memories)} recipes" for one in parts],
        missing=few,
        row_height=2.8,
        lettered=len(panels) > 1,
    )


def layers_plot(records: Sequence[RunRecord], *, order: Sequence[AnyRecipe] = ()) -> Plot:
    """Norm elasticity of every layer, and its cosine to the initial weights; a row per kind of network."""
    networks: dict[tuple[str, ...], list[tuple[str, list[Row]]]] = {}
    for label, group in labelled(records, order).items():
        if rows := layer_rows(group, ALPHA):
            networks.setdefault(tuple(row["layer"] for row in rows), []).append((label, rows))
    if not networks:
        raise ConfigError("figure layers: no norms of layers were recorded (allowed: bundled networks)")
    maps = []
    for layers, recipes in networks.items():
        for key, title in (("elasticity", "Norm elasticity"), ("cosine", "Cosine to the initial weights")):
            lines = [
                Series(label, UNSTYLED, layers, [math.nan if one[key] is None else one[key] for one in rows])
                for label, rows in recipes
            ]
            maps.append([Heatmap(title, "", "1: kept, 0: forgotten", lines, (0.0, 1.0), digits=2)])
    return Plot(maps, head="What layers keep of their initialization, at the selected epoch")


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
        origin={"Machine": machines(records)},
        row_height=2.2,
    )


def _kind(recipe: AnyRecipe) -> str:
    """What tells recipes apart in the legend: dataset and width."""
    data = [phrase(recipe, name) for name in ("dataset", "train_size") if recipe.get(name)] or ["own data"]
    return ", ".join([*data, f"width {recipe.get('width') or 'not declared'}"])


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


def _rows_of_lines(rows: Sequence[Sequence[Panel]], records: Sequence[RunRecord], about: str) -> Plot:
    """Panels of lines in rows of three, with one legend, or one below each where styles come again."""
    crowded = any(len(panel.series) > MOST_BANDS for row in rows for panel in row)
    every = [one for row in rows for panel in row for one in panel.series]
    entries = list(dict.fromkeys(Entry(one.label, one.style) for one in every))
    apart = len(entries) > min(len({one.style for one in every}), len({one.label for one in every}))

    def finished(panel: Panel, left: Panel | None) -> Panel:
        """With a legend where each panel has its own, unless the one to the left has the same lines."""
        own = apart and (left is None or panel.title != left.title)
        key = [Entry(one.label, one.style) for one in panel.series] if own else []
        return panel._replace(with_bands=not crowded, key=key)

    rows = [list(map(finished, row, [None, *row])) for row in rows]
    return Plot(
        rows,
        [] if apart else [entries[i : i + 3] for i in range(0, len(entries), 3)],
        about=[f"Lines: {about}", *["Bands are left out, as there are many lines"] * crowded],
        origin={"Machine": machines(records)},
        row_height=3.0 if len(rows) == 1 else 2.2,
        lettered=len(rows) > 1,
    )
