"""The charts of the page: the same recipes in the same panels, plot by plot."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from initmem.plots.builders import BETA, CLOCK_TITLES, SHARPNESS_TITLE, metric_title
from initmem.plots.captions import SIGMA
from initmem.plots.model import Panel, Plot, Series
from initmem.plots.series import UNSTYLED, beta_series
from initmem.report.content import Content
from initmem.report.facets import Facet
from initmem.report.recipe_stats import RecipeStats

MOST_METRICS = 8
SELECTED = "Of the predictor with the least validation loss."
NORM = "Of all kernels of the selected predictor."
FITTED = "The first epoch with 99.5% train accuracy: median over runs with 95% limits. Above: never reached."
REPAIR = "Validation accuracy when selected less that at interpolation, over the runs that interpolated."
SHARPNESS = "Largest Hessian eigenvalue of the training objective: mean over runs, 10th to 90th percentile."
EDGE = "The same as a fraction of 2/η, or 2(1 + μ)/η with momentum. At 1: the edge of stability."
SETTLING = "How the estimate and its 95% interval settle as seeds come in."

SeriesOf = Callable[[RecipeStats], Series]


def curves(content: Content) -> dict[str, Plot]:
    """Every metric against the initialization scale, and the memory against the number of seeds.

    What no recipe has a value of is left out.
    """
    last = max((float(item.epochs) for item in content.stats.values()), default=0.0)
    norm = Panel("Kernel norm", SIGMA, "Frobenius norm", ())
    fitted = Panel("Interpolation epoch", SIGMA, "interpolation epoch", (), ceiling=last)
    repair = Panel("Repair gap", SIGMA, "repair gap (pp)", ())
    settling = Panel("Memory by seeds", "seeds", "memory", ())
    plots = {name: _metric_plot(content, name) for name in metrics_of(content)}
    plots |= {
        "norm": _plot(content, content.facets, norm, NORM, lambda item: item.curve("norm_best")),
        "fitted": _plot(content, content.facets, fitted, FITTED, lambda item: item.interpolation),
        "repair": _plot(content, content.facets, repair, REPAIR, lambda item: item.curve("repair_gap")),
        **_sharpness_plots(content),
        "settling": _plot(content, content.facets, settling, SETTLING, lambda item: item.settling_series),
    }
    return {key: plot for key, plot in plots.items() if any(map(_has_values, plot.panels))}


def metrics_of(content: Content) -> list[str]:
    """What memories are measured in, then what user code recorded beside it."""
    main = dict.fromkeys(item.metric for item in content.stats.values())
    own = dict.fromkeys(name for item in content.stats.values() for name in item.own_metrics)
    return list(main | own)[:MOST_METRICS]


def _metric_plot(content: Content, metric: str) -> Plot:
    frame = Panel(metric.replace("_", " ").capitalize(), SIGMA, metric_title(metric), ())
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
    title, x_title = ("Epoch", "epoch") if clock is None else (f"{clock} clock", CLOCK_TITLES[clock])
    frame = Panel(title, x_title, BETA, (), log_x=clock is not None, log_y=True)
    about = f"|β| with its 95% interval, against {'epochs' if clock is None else f'the {clock} clock'}."

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
