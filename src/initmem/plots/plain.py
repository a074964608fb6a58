"""The plain scale plot: one metric against scale, a line for every recipe of a store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from initmem.measures.memory import default_metric
from initmem.plots import captions, styles
from initmem.plots.curves import Curve, ScalePlot, scale_plot
from initmem.plots.panels import draw_panels
from initmem.plots.plotdata import Entry, Line, Panel, PanelPlot, Style
from initmem.store.record import RunRecord
from initmem.study import Study, recipes_of


def plot(records: Sequence[RunRecord], studies: Sequence[Study]) -> PanelPlot:
    """The usual metric against scale, recipes as the studies list them."""
    return _panel_plot(scale_plot(records, default_metric(records), order=recipes_of(studies)))


def draw_scale_plot(plot: ScalePlot, path: Path) -> None:
    """Means with bands against initialization scale; the ending of the path picks the format."""
    draw(_panel_plot(plot), path)


def draw(plot: PanelPlot, path: Path) -> None:
    """Draw what `plot` made."""
    draw_panels(plot, path, row_height=3.0, lettered=False)


def _panel_plot(plot: ScalePlot) -> PanelPlot:
    lines = [_line(curve, i) for i, curve in enumerate(plot.curves)]
    entries = [Entry(line.label, line.style, present=True) for line in lines]
    legend = [entries[i : i + 3] for i in range(0, len(entries), 3)]
    panel = Panel(plot.title, captions.SIGMA, plot.y_title, lines)
    caption = f"{captions.BANDS}, {captions.counts([panel])}."
    return PanelPlot([[panel]], legend, caption, [], [])


def _line(curve: Curve, i: int) -> Line:
    style = Style(
        curve.colour, styles.MARKERS[i % len(styles.MARKERS)], styles.DASHES[i % len(styles.DASHES)]
    )
    none = [0] * len(curve.n)
    return Line(curve.label, style, curve.scales, curve.mean, curve.low, curve.high, curve.n, none, none)
