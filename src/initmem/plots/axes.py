"""Draw one panel into matplotlib axes. Thin: everything worth testing is in the model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.image import AxesImage

from initmem.intervention import Level, level_text
from initmem.plots.model import (
    SYMBOLS,
    Heatmap,
    Interval,
    Intervals,
    Panel,
    Series,
    Style,
    numbered,
    numbers,
)

FAINT, INK = "#8A8A8A", "#404040"
MANY = 12  # points beyond which only some carry a marker
ROOM_FOR_TEXT = 6  # up to so many columns the values are written into the cells of a heat map
# From little to much, as in the report.
BLUES = ("#EEF4FA", "#DAE8F5", "#C1D9ED", "#A2C6E3", "#7EB0D8", "#5D9BCC", "#3273AD", "#1F5C96", "#0E4376")
Limits = tuple[float, float]
Options = dict[str, Any]  # of matplotlib artists


def line_options(style: Style) -> Options:
    """Arguments of a matplotlib line."""
    return {
        "color": style.color,
        "marker": style.marker,
        "linestyle": style.dash,
        "markersize": style.size,
        "linewidth": style.width,
        "markeredgewidth": 1.6 if style.hollow else 0.7,
        "markerfacecolor": "none" if style.hollow else style.color,
    }


def no_runs(axes: Axes, text: str = "no runs") -> None:
    """A hatched place for what has no data."""
    axes.set(xticks=[], yticks=[], facecolor="white")
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set(visible=True, color=FAINT, linewidth=0.5)
    axes.patch.set(hatch="////", edgecolor="#D0D0D0", facecolor="white")
    box = {"facecolor": "white", "edgecolor": "none", "pad": 2.0}
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", bbox=box, color=INK)


# -- series -----------------------------------------------------------------------------------------------


def draw_panel(axes: Axes, panel: Panel, log_limits: Limits | None = None) -> None:
    """Series with their bands, and what is drawn with them; guides with a label are named in the panel."""
    if not panel.has_values():
        no_runs(axes, panel.void if panel.series else "no runs")
        return
    panel, names = numbered(panel)
    axes.set(xlabel=panel.x_title, ylabel=panel.y_title)
    if names:  # names have no order, so that no line joins them
        axes.set_xticks(range(1, len(names) + 1), names, rotation=30, ha="right")
        bare = [one._replace(style=one.style._replace(dash="none")) for one in panel.series]
        panel = panel._replace(series=bare)
    _scales(axes, panel, log_limits)
    if panel.span is not None:
        axes.axhspan(*panel.span, color="0.9", linewidth=0)
    for level in panel.levels:
        axes.axhline(level, color=INK, linestyle="-.", linewidth=0.7)
    guides = [
        axes.plot(g.x, g.y, **line_options(g.style), label=g.label, zorder=1.5)[0] for g in panel.guides
    ]
    for index, series in enumerate(panel.series):
        _draw_series(axes, series, index, panel)
    for mark in panel.published:
        star: Options = {"color": "white", "mec": mark.style.color, "mew": 1.0, "ms": 9}
        axes.plot(mark.x, mark.y, "*", **star, zorder=6, clip_on=False)
    if panel.published_level is not None:
        axes.axhline(panel.published_level, color="black", linestyle=":", linewidth=1.0)
    if shown := [line for line, guide in zip(guides, panel.guides, strict=True) if guide.label]:
        axes.legend(handles=shown, loc="best", frameon=False, fontsize=6.5, handlelength=2.2)
    _frame(axes, panel)


def _frame(axes: Axes, panel: Panel) -> None:
    """Limits, ticks and words that a panel asks for."""
    for text in panel.texts:
        across, up = "right" if text.x > 0.5 else "left", "top" if text.y > 0.5 else "bottom"
        axes.text(text.x, text.y, text.text, transform=axes.transAxes, ha=across, va=up)
    if panel.y_ticks is not None:
        axes.set_yticks(list(panel.y_ticks), list(panel.y_ticks.values()))
    if panel.x_limits is not None:
        axes.set_xlim(panel.x_limits)
    if panel.y_limits is not None:
        axes.set_ylim(panel.y_limits)
    if panel.top is not None:
        axes.set_ylim(top=min(axes.get_ylim()[1], panel.top))
    if panel.ceiling is not None:
        _never_reached(axes, panel, panel.ceiling)


def _scales(axes: Axes, panel: Panel, log_limits: Limits | None) -> None:
    """Logarithmic axes, where the values span enough for one."""
    ticks = [x for series in panel.series for x in numbers(series.x)]
    if panel.log_x and 0 < 10 * min(ticks) < max(ticks):
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(ticker.NullFormatter())
        if max(ticks) < 100 * min(ticks):  # labels at powers of ten alone could be a single one
            axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 3)))
            axes.xaxis.set_major_formatter(
                ticker.LogFormatterSciNotation(labelOnlyBase=False, minor_thresholds=(9, 9))
            )
    elif panel.log_x or panel.x_title == "epoch":
        axes.xaxis.set_major_locator(
            ticker.MaxNLocator(5, steps=[1, 2, 5, 10], integer=panel.x_title == "epoch")
        )
        axes.ticklabel_format(axis="x", scilimits=(-2, 4))
    if panel.ceiling is not None:
        values = [y for series in panel.series for y in series.y if y > 0]
        axes.set_yscale("log")
        axes.set_ylim(0.8 * min([*values, panel.ceiling / 2]), 1.3 * panel.ceiling)
        rungs = [m * 10**k for k in range(6) for m in (1, 2, 5) if 1.3 * m * 10**k <= panel.ceiling]
        axes.yaxis.set_major_locator(ticker.FixedLocator([*rungs, panel.ceiling]))
        axes.yaxis.set_minor_locator(ticker.NullLocator())
        axes.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
    elif log_limits is not None:
        axes.set_yscale("log")
        axes.set_ylim(log_limits)
        axes.yaxis.set_minor_formatter(ticker.NullFormatter())


def _draw_series(axes: Axes, series: Series, index: int, panel: Panel) -> None:
    """A band, a line, and open markers where runs are missing; points without a line get error bars."""
    style = line_options(series.style)
    if series.low and series.style.dash == "none":
        axes.vlines(series.x, series.low, series.high, color=series.style.color, linewidth=1.0)
    elif series.low and panel.with_bands:
        faint = min(0.16, 0.6 / len(panel.series))  # many bands on each other hide the lines
        high = [min(value, panel.ceiling or math.inf) for value in series.high]
        axes.fill_between(series.x, series.low, high, color=series.style.color, alpha=faint, linewidth=0)
        for i in series.isolated():  # without a neighbor there is nothing to fill
            axes.vlines(series.x[i], series.low[i], high[i], color=series.style.color, alpha=0.3, linewidth=3)
    # What is too small for a logarithmic axis stands at its lower edge.
    edge = axes.get_ylim()[0] if axes.get_yscale() == "log" else -math.inf
    y = [max(value, edge) if value == value else value for value in series.y]
    # A value at the very top of its range is drawn whole.
    style["clip_on"] = panel.top is None
    # On long lines only some points carry a marker, each series at its own positions along the line.
    long = series.style.dash != "none" and len(series.known()) > MANY
    marked = _marked(len(series.x), index, log=axes.get_xscale() == "log") if long else None
    axes.plot(series.x, y, **style, markevery=marked, label=series.label)
    partial = series.partial()
    if partial:
        style |= {"linestyle": "none", "markerfacecolor": "white", "markersize": 4.0}
        axes.plot([series.x[i] for i in partial], [y[i] for i in partial], **style, zorder=5)


def _marked(n: int, index: int, *, log: bool) -> list[int]:
    """Eight points of a long line, evenly along its axis and elsewhere than those of the next line."""
    places = (np.arange(8) + (1 + index % 6) / 7) / 8
    return sorted({int(at) for at in (n**places - 1 if log else places * (n - 1))})


def _never_reached(axes: Axes, panel: Panel, ceiling: float) -> None:
    """Points whose median lies beyond the last epoch stand in a gray band above it, a row per series."""
    late = []  # the style of a series, and where it is late
    for series in panel.series:
        points = zip(series.x, series.y, series.n, strict=True)
        if beyond := [x for x, y, n in points if math.isnan(y) and n]:
            late.append((series.style, beyond))
    axes.axhline(ceiling, color=FAINT, linewidth=0.8, linestyle="-")
    low, high = axes.get_ylim()
    step = (ceiling / low) ** 0.085
    axes.axhspan(ceiling, ceiling * 1e3, color="#EFEFEF", zorder=0, linewidth=0)
    axes.set_ylim(low, ceiling * step ** (len(late) + 2.2) if late else high)
    for row, (style, beyond) in enumerate(late, start=1):
        open_markers = line_options(style) | {"linestyle": "none", "markerfacecolor": "white"}
        axes.plot(beyond, [ceiling * step**row] * len(beyond), **open_markers)
    if late:
        corner: Options = {"transform": axes.transAxes, "ha": "right", "va": "top"}
        axes.text(0.98, 0.985, "not reached", **corner, fontsize=6.5, color=INK)


# -- intervals --------------------------------------------------------------------------------------------


def draw_intervals(axes: Axes, panel: Intervals) -> None:
    """A row per value: its interval or a stem from zero, its noise range, what was published."""
    ends = [v for row in panel.rows for v in (row.value, row.high, row.reference) if v is not None]
    limit = 1.12 * max([*ends, panel.tolerance or 0.0, 1.0 if panel.n_scales else 1e-9])
    axes.set(xlim=(0, limit), ylim=(len(panel.rows) - 0.4, -0.6), xlabel=panel.x_title)
    axes.set_yticks(range(len(panel.rows)), [row.label for row in panel.rows])
    axes.grid(visible=False, axis="y")
    if panel.tolerance is not None:
        axes.axvline(panel.tolerance, color=FAINT, linestyle="--", linewidth=0.9, label="tolerance")
    for i, row in enumerate(panel.rows):
        _draw_interval(axes, i, row, limit)


def _draw_interval(axes: Axes, i: int, row: Interval, limit: float) -> None:
    color = row.style.color
    if row.noise_range is not None:
        axes.barh(i, row.noise_range, height=0.6, color="#D9D9D9", label="noise range" if i == 0 else "")
    if row.value is None:  # on the side where no published value stands
        right = row.reference is None or row.reference < 0.5 * limit
        beside: Options = {"transform": axes.get_yaxis_transform(), "ha": "right" if right else "left"}
        axes.text(0.99 if right else 0.02, i, row.void, **beside, va="center", color=FAINT)
    else:
        if row.low is not None and row.high is not None:
            axes.plot([row.low, row.high], [i, i], color=color, linewidth=1.4)
        else:
            axes.plot([0.0, row.value], [i, i], color=color, linewidth=1.0, alpha=0.6)
        inside = "white" if row.style.hollow else color
        axes.plot(row.value, i, row.style.marker, color=color, mfc=inside, markersize=4.5, clip_on=False)
    if row.reference is not None:
        sign = "<" if row.relation in ("<", "<=") else "D"
        axes.plot(row.reference, i, sign, color="none", mec="black", mew=0.9, ms=6, clip_on=False)


# -- heat maps --------------------------------------------------------------------------------------------


def draw_heatmap(axes: Axes, panel: Heatmap, *, alone: bool) -> AxesImage:
    """Colored cells, hatched where there are no runs, with values where there is room for them."""
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    if any(math.isnan(y) for row in panel.rows for y in row.y):
        axes.patch.set(hatch="//////", edgecolor="#C8C8C8", facecolor="white")  # seen where a cell is empty
    low, high = panel.limits
    values = [row.y for row in panel.rows]
    colors = LinearSegmentedColormap.from_list("blues", BLUES)
    image = axes.imshow(values, aspect="auto", cmap=colors, vmin=low, vmax=high, zorder=1)
    axes.set_yticks(range(len(panel.rows)), [row.label for row in panel.rows])
    axes.tick_params(length=0)
    x = panel.rows[0].x
    ticks = _ticks(x)
    named: Options = {"rotation": 60, "ha": "right"} if isinstance(x[0], str) else {}
    axes.set_xticks(ticks, [level_text(x[i]) for i in ticks], **named)
    axes.set_xlabel(panel.x_title)
    for i, j in np.ndindex(len(panel.rows), len(x)):
        value = panel.rows[i].y[j]
        sign = "× " if panel.crossed and panel.crossed[i][j] else ""
        shown = f"{sign}{value:.{panel.digits}f}" if len(x) <= ROOM_FOR_TEXT * (1 + alone) else sign.strip()
        if shown and not math.isnan(value):
            ink = "white" if (value - low) > 0.6 * (high - low) else "black"
            axes.text(j, i, shown, color=ink, ha="center", va="center", fontsize=5.5)
    for i, row in enumerate(panel.intervals):
        measured = "—" if row.value is None else f"{row.value:.1f}"
        published = "" if row.reference is None else f" ({SYMBOLS[row.relation]}{row.reference:.1f})"
        text: Options = {"transform": axes.get_yaxis_transform(), "va": "center", "fontsize": 6}
        axes.text(1.02, i, measured + published, **text, color="#202020")
    return image


def _ticks(levels: Sequence[Level]) -> list[int]:
    """All scales where there is room, else those on a round half; all interventions."""
    scales = numbers(levels)
    if len(scales) <= 10 or len(scales) < len(levels):
        return list(range(len(levels)))
    round_ones = [i for i, scale in enumerate(scales) if abs(2 * scale - round(2 * scale)) < 1e-9]
    return [0, *round_ones] if round_ones else list(range(0, len(scales), 4))
