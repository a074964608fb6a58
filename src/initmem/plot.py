"""Plots to look at and to restyle: every function returns a matplotlib figure and its axes.

    figure, axes = initmem.plot.scale("runs")
    axes.set_title("My network")
    figure.savefig("scale.pdf")

`results` is what `initmem.run` returns, a store or an archive, the path of one, several of these, or
records. With `axes` a plot is drawn into axes of your own, in your own style.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from initmem.errors import ConfigError
from initmem.measures.memory import memory_table
from initmem.paper import figures
from initmem.pipeline.result import Result
from initmem.plots import builders, matplotlib
from initmem.plots.model import Plot
from initmem.record import RunRecord
from initmem.store.results import Source, collected
from initmem.study import Study, recipes_of

__all__ = ["beta", "clocks", "figure", "interpolation", "memory", "norm", "scale"]

AnyResults: TypeAlias = "Result | Source"


def scale(results: AnyResults, metric: str | None = None, *, axes: Axes | None = None) -> tuple[Figure, Axes]:
    """A metric of the selected model against the initialization scale, a line per recipe.

    Args:
        results: as for all plots: the result of `initmem.run`, a store, an archive, a path, or records.
        metric: any recorded metric; unless given, test accuracy or the next best.
        axes: draw into these axes instead of a new figure.
    """
    return _drawn(_built(results, builders.scale_plot, metric, with_fit=False, divide=False), axes)


def norm(results: AnyResults, *, axes: Axes | None = None) -> tuple[Figure, Axes]:
    """The norm of the weights of the selected model against the initialization scale.

    Args:
        results: as for all plots: the result of `initmem.run`, a store, an archive, a path, or records.
        axes: draw into these axes instead of a new figure.
    """
    return scale(results, "norm_best", axes=axes)


def interpolation(results: AnyResults, *, axes: Axes | None = None) -> tuple[Figure, Axes]:
    """The median interpolation epoch against the initialization scale; what never interpolates is above.

    Args:
        results: as for all plots: the result of `initmem.run`, a store, an archive, a path, or records.
        axes: draw into these axes instead of a new figure.
    """
    return _drawn(_built(results, builders.interpolation_plot), axes)


def beta(
    results: AnyResults,
    metric: str = "val_accuracy",
    *,
    clock: str | None = None,
    axes: Axes | None = None,
) -> tuple[Figure, Axes]:
    """|beta|, the slope of a metric on the scale, against epoch or against a clock.

    Args:
        results: as for all plots: the result of `initmem.run`, a store, an archive, a path, or records.
        metric: a metric that was recorded in every epoch.
        clock: `sgd`, `l2`, `adaptive`, `momentum` or `angular`; the epoch unless given.
        axes: draw into these axes instead of a new figure.
    """
    return _drawn(_built(results, builders.beta_plot, metric, clock, divide=False), axes)


def memory(
    results: AnyResults,
    metric: str | None = None,
    *,
    tolerance: float | None = None,
    axes: Axes | None = None,
) -> tuple[Figure, Axes]:
    """The memory of every recipe with its 95% interval, its noise range and the tolerance.

    Args:
        results: as for all plots: the result of `initmem.run`, a store, an archive, a path, or records.
        metric: any recorded metric; unless given, test accuracy or the next best.
        tolerance: the range that counts as forgotten, in the unit of the metric.
        axes: draw into these axes instead of a new figure.
    """
    if isinstance(results, Result):
        rows = results.memories(metric, tolerance=tolerance)
    else:
        rows = memory_table(results, metric, tolerance=tolerance)
    recipes = list(dict.fromkeys(record.run.recipe for record in _records(results)[0]))
    return _drawn(builders.memory_plot(rows, recipes), axes)


def clocks(results: AnyResults) -> tuple[Figure, list[Axes]]:
    """The norm elasticity of recipes against the clocks that could explain it, with fitted curves.

    One panel per clock; it takes recipes that differ, four or more of one family of optimizers.

    Args:
        results: as for all plots: the result of `initmem.run`, a store, an archive, a path, or records.
    """
    return matplotlib.draw(_built(results, builders.clocks_plot))


def figure(results: AnyResults, number: int | str, *, reference: bool = False) -> tuple[Figure, list[Axes]]:
    """A figure of the paper, drawn from the bundled networks among the results, and the axes of its panels.

    Args:
        results: as for all plots: the result of `initmem.run`, a store, an archive, a path, or records.
        number: 1 to 8.
        reference: add the published values.
    """
    records, studies = _records(results)
    return matplotlib.draw(figures.plot_of(str(number), records, studies, reference))


def _records(results: AnyResults) -> tuple[Sequence[RunRecord], Sequence[Study]]:
    """Records, and the studies that asked for them, as far as they are known."""
    if isinstance(results, Result):
        return results.records, [results.study]
    return collected(results)[:2]


def _built(results: AnyResults, build: Callable[..., Plot], *arguments: Any, **options: Any) -> Plot:
    records, studies = _records(results)
    return build(records, *arguments, order=recipes_of(studies), **options)


def _drawn(plot: Plot, axes: Axes | None) -> tuple[Figure, Axes]:
    if axes is None:
        drawn, (single,) = matplotlib.draw(plot)
        return drawn, single
    parent = axes.get_figure(root=True)
    if parent is None:
        raise ConfigError("axes: not part of a figure (allowed: axes of a matplotlib figure)")
    matplotlib.draw_into(axes, plot)
    return parent, axes
