"""Drawing with matplotlib. Thin: everything worth testing is in the plot data."""

from __future__ import annotations

from pathlib import Path

from initmem.present.curves import ScalePlot


def draw_scale_plot(plot: ScalePlot, path: Path) -> None:
    """Means with bands against initialization scale; the ending of the path picks the format."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.6), layout="constrained")
    axes = figure.subplots()
    for curve in plot.curves:
        axes.fill_between(curve.scales, curve.low, curve.high, color=curve.colour, alpha=0.15, lw=0)
        axes.plot(curve.scales, curve.mean, "o-", color=curve.colour, ms=5, lw=2, label=curve.label)
    axes.set(xlabel="initialization scale σ", ylabel=plot.y_title)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=200)
