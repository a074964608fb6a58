"""Draw a plot with matplotlib: pages, legends, shared limits, files."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text

from initmem.errors import ConfigError
from initmem.files import write_output
from initmem.plots.axes import (
    INK,
    Limits,
    draw_heatmap,
    draw_intervals,
    draw_panel,
    line_options,
    no_runs,
)
from initmem.plots.model import AnyPanel, Entry, Heatmap, Intervals, Panel, Plot, caption, log_limits
from initmem.record import INTERPOLATION

WIDTH = 7.2  # inches: two columns of a journal page
ENDINGS = (".pdf", ".png", ".svg")
CAPTION, CAPTION_WIDTH = 6.0, 160  # points, and letters of a line
HATCHED: dict[str, Any] = {"facecolor": "white", "edgecolor": "#B0B0B0", "hatch": "//////", "linewidth": 0.4}
LEGEND: dict[str, Any] = {"frameon": False, "handlelength": 2.8, "columnspacing": 1.4, "labelspacing": 0.3}
STYLE = str(Path(__file__).with_name("initmem.mplstyle"))


def draw(plot: Plot, *, captioned: bool = True) -> tuple[Figure, list[Axes]]:
    """A figure of full page width with legend and caption; the axes are those of the panels, row by row.

    Rows and columns of panels without any runs are left out: the caption names what is missing.
    """
    rows = _without_empty(plot)
    heights = [height for row in rows for height in (_height(row, plot), *_key_height(row))]
    maps = [panel for row in rows for panel in row if isinstance(panel, Heatmap)]
    own_row = bool(maps) and len(rows[-1]) == len(rows[0])  # the key of the colors needs a row of its own
    heights += [1.05] * own_row
    legend = legend_rows(plot.legend)
    with style.context(STYLE):
        lines = textwrap.wrap(caption(plot), CAPTION_WIDTH) if captioned else []
        height = 0.3 + 0.4 * (not rows) + 0.16 * len(legend) + sum(heights) + 0.115 * len(lines)
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        if lines:
            figure.supxlabel("\n".join(lines), x=0.012, ha="left", fontsize=CAPTION, color=INK)
        if legend:
            _draw_legend(figure, legend)
        columns = max(map(len, rows)) if maps else math.lcm(*map(len, rows))
        if not rows:
            no_runs(figure.add_subplot())
        grid = figure.add_gridspec(max(1, len(heights)), columns, height_ratios=heights or None)
        drawn = _draw_rows(figure, grid, rows, plot)
        _share_limits(drawn)
        if maps:
            cell = grid[len(rows), :] if own_row else grid[len(rows) - 1, len(rows[-1]) :]
            _draw_key(figure.add_subplot(cell), maps, drawn[0][0].images[0])
    _show_dollars(figure)
    return figure, [axes for axes, _ in drawn]


def _show_dollars(figure: Figure) -> None:
    """Names of users are no formulas, whatever dollar signs they have; tick labels are."""
    axes = [axis for one in figure.findobj(Axes) for axis in (one.xaxis, one.yaxis)]
    ticks = {id(text) for axis in axes for text in axis.findobj(Text) if text is not axis.label}
    for text in figure.findobj(Text):
        if id(text) not in ticks:
            text.set_parse_math(False)


def draw_into(axes: Axes, plot: Plot) -> None:
    """Draw a plot of one panel into axes that are there already, in their own style, with a legend."""
    (panel,) = plot.all_panels
    draw_any(axes, panel, log_limits(plot))
    if isinstance(panel, Panel) and panel.has_values():
        axes.legend()


def check(path: Path) -> None:
    """Refuse a path whose ending names no format that we write."""
    if path.suffix.lower() not in ENDINGS:
        raise ConfigError(f"figure file = {str(path)!r} (allowed endings: {', '.join(ENDINGS)})")


def save(figure: Figure, path: Path) -> None:
    """Write a picture, the same bytes for the same data; the ending of the path picks the format."""
    check(path)
    kind = path.suffix.lower().removeprefix(".")
    undated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind)
    stream = io.BytesIO()
    with style.context(STYLE):
        figure.savefig(stream, format=kind, dpi=200, metadata=undated)
    write_output(path, stream.getvalue())


def _without_empty(plot: Plot) -> list[Sequence[AnyPanel]]:
    """The rows and columns that have runs."""
    full = [row for row in plot.rows if _any_runs(row)]
    if len({len(row) for row in full}) == 1:
        full = [list(row) for row in zip(*filter(_any_runs, zip(*full, strict=True)), strict=True)]
    return full


def _any_runs(panels: Sequence[AnyPanel]) -> bool:
    return any(panel.has_runs() for panel in panels)


def _height(row: Sequence[AnyPanel], plot: Plot) -> float:
    maps = [panel for panel in row if isinstance(panel, Heatmap)]
    if not maps:
        return plot.row_height
    named = any(isinstance(x, str) for panel in maps for x in panel.rows[0].x)  # names are written slanted
    return 0.62 + 0.5 * named + 0.17 * max(len(panel.rows) for panel in maps)


def _draw_rows(
    figure: Figure, grid: Any, rows: Sequence[Sequence[AnyPanel]], plot: Plot
) -> list[tuple[Axes, AnyPanel]]:
    """Draw every panel; an axis title that the panel beside or below repeats is left out."""
    drawn: list[tuple[Axes, AnyPanel]] = []
    limits = log_limits(plot)
    below_panels = 0  # rows of the grid with legends
    for i, row in enumerate(rows):
        for j, panel in enumerate(row):
            wide = 1 if isinstance(panel, Heatmap) else grid.ncols // len(row)
            axes = figure.add_subplot(grid[i + below_panels, j * wide : (j + 1) * wide])
            letter = f"({chr(ord('a') + len(drawn))}) " if plot.lettered else ""
            axes.set_title(letter + panel.title)
            draw_any(axes, panel, limits, alone=len(row) == 1)
            below = rows[i + 1][j] if i + 1 < len(rows) and len(rows[i + 1]) == len(row) else None
            if _repeated(panel, below)[0]:
                axes.set_xlabel("")
            if _repeated(panel, row[j - 1] if j else None)[1]:
                axes.set_ylabel("")
            drawn.append((axes, panel))
        if _key_height(row):
            below_panels += 1
            keys = [(j, panel.key) for j, panel in enumerate(row) if isinstance(panel, Panel) and panel.key]
            for k, (j, key) in enumerate(keys):
                end = keys[k + 1][0] if k + 1 < len(keys) else len(row)
                place = grid[i + below_panels, j * wide : end * wide]
                _draw_panel_key(figure.add_subplot(place), key, _columns(key, (end - j) / len(row)))
    return drawn


def _columns(key: Sequence[Entry], share: float) -> int:
    """How many entries stand next to each other in a part of the page."""
    return max(1, min(len(key), int(share * WIDTH / _entry_width(key))))


def _key_height(row: Sequence[AnyPanel]) -> list[float]:
    """The height of the legends below a row, where it has any."""
    keys = [panel.key for panel in row if isinstance(panel, Panel) and panel.key]
    return (
        [0.1 + 0.15 * max(math.ceil(len(key) / _columns(key, 1 / len(keys))) for key in keys)] if keys else []
    )


def _draw_panel_key(axes: Axes, key: Sequence[Entry], columns: int) -> None:
    """The legend of one panel."""
    axes.set_axis_off()
    handles = [Line2D([], [], **line_options(entry.style), label=entry.label) for entry in key]
    axes.legend(handles=handles, loc="upper left", ncols=columns, **LEGEND, borderaxespad=0, fontsize=6)


def draw_any(axes: Axes, panel: AnyPanel, limits: Mapping[str, Limits], *, alone: bool = True) -> None:
    """Draw a panel of any kind; `alone` in its row it has room for more text."""
    if isinstance(panel, Panel):
        draw_panel(axes, panel, limits.get(panel.y_title) if panel.log_y else None)
    elif isinstance(panel, Intervals):
        draw_intervals(axes, panel)
    else:
        draw_heatmap(axes, panel, alone=alone)


def _repeated(panel: AnyPanel, other: AnyPanel | None) -> tuple[bool, bool]:
    """Whether another panel with lines has the same x and y, with limits that are shared."""
    if not isinstance(panel, Panel) or not isinstance(other, Panel):
        return False, False
    x, other_x = ((one.x_title, one.x_shared, one.x_limits) for one in (panel, other))
    return x == other_x, panel.y_title == other.y_title and other.has_values()


def _share_limits(drawn: Sequence[tuple[Axes, AnyPanel]]) -> None:
    """Panels of one quantity get the same limits, so that they compare at a glance, unless they have some."""
    groups: dict[tuple[str, str], list[Axes]] = {}
    for axes, panel in drawn:
        if isinstance(panel, Intervals):
            groups.setdefault(("x", "intervals"), []).append(axes)
        elif isinstance(panel, Panel) and panel.has_values():
            x, y = panel.x_shared or panel.x_title, panel.y_shared or panel.y_title
            if panel.x_limits is None:
                groups.setdefault(("x", x + axes.get_xscale()), []).append(axes)
            if panel.y_limits is None:
                groups.setdefault(("y", y + axes.get_yscale()), []).append(axes)
    for (side, _), group in groups.items():
        limits = [axes.get_xlim() if side == "x" else axes.get_ylim() for axes in group]
        both = min(low for low, _ in limits), max(high for _, high in limits)
        for axes in group:
            axes.set(**{f"{side}lim": both})


# -- legends ----------------------------------------------------------------------------------------------


def _draw_legend(figure: Figure, rows: Sequence[Sequence[Entry]]) -> None:
    """One legend above all panels, row by row."""
    wide = max(map(len, rows))
    entries = [row[i] for i in range(wide) for row in rows if i < len(row)]  # matplotlib fills by column
    figure.legend(
        handles=[Line2D([], [], **line_options(entry.style), label=entry.label) for entry in entries],
        loc="outside upper center",
        ncols=wide,
        **LEGEND,
    )


def legend_rows(rows: Sequence[Sequence[Entry]]) -> list[list[Entry]]:
    """The entries in rows of equal length, as long as the longest one or as the page is wide."""
    entries = [entry for row in rows for entry in row]
    if not entries:
        return []
    room = int(WIDTH / _entry_width(entries))
    wide = min(max(1, room), max(map(len, rows)))
    return [entries[i : i + wide] for i in range(0, len(entries), wide)]


def _entry_width(entries: Sequence[Entry]) -> float:
    """The room that the longest entry of a legend needs, about, in inches."""
    return 0.62 + 0.058 * max(len(entry.label) for entry in entries)


def _draw_key(axes: Axes, maps: Sequence[Heatmap], image: AxesImage) -> None:
    """The colors of heat maps, and what crosses and hatches mean, where there are any."""
    axes.set_axis_off()
    strip = axes.inset_axes((0.0, 0.62, 0.9, 0.16))
    bar = axes.figure.colorbar(image, cax=strip, orientation="horizontal", label=maps[0].y_title)
    bar.ax.spines[:].set_visible(False)
    handles: list[Line2D | Patch] = []
    if any(any(row) for panel in maps for row in panel.crossed):
        text = f"mean train accuracy below {100 * INTERPOLATION:g}%"
        handles.append(Line2D([], [], marker="x", ls="none", color="black", ms=4, mew=0.8, label=text))
    if any(len(row.known()) < len(row.y) for panel in maps for row in panel.rows):
        handles.append(Patch(**HATCHED, label="no runs"))
    if handles:
        axes.legend(handles=handles, loc="lower left", frameon=False, borderaxespad=0, ncols=2)
