"""Draw rows of line panels with matplotlib. Thin: everything worth testing is in the plot data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from initmem.plots import canvas
from initmem.plots.plotdata import Line, Panel, PanelPlot, SpreadPanel, log_limits

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STRIP = 0.16  # height of a row without any runs, against a full row
MANY = 12  # points beyond which only some carry a marker

Extra = Callable[["Axes", Panel], None]


def draw_panels(
    plot: PanelPlot,
    path: Path,
    *,
    row_height: float = 2.0,
    extra: Extra | None = None,
    lettered: bool = True,
) -> None:
    """Draw a figure; the ending of the path picks the format. `extra` adds to each panel that has lines."""
    heights = [1.0 if any(has_data(panel) for panel in row) else STRIP for row in plot.rows]
    with canvas.page(
        0.3 + 0.16 * len(canvas.fitting(plot.legend)) + row_height * sum(heights), path, plot.caption
    ) as figure:
        canvas.legend(figure, plot.legend)
        places = _places(figure, plot, heights, lettered=lettered)
        _share(places)
        for axes, panel in places:
            if extra is not None and isinstance(panel, Panel) and has_data(panel):
                extra(axes, panel)


def has_data(panel: Panel | SpreadPanel) -> bool:
    """Whether there are any runs behind a panel."""
    if isinstance(panel, SpreadPanel):
        return any(spread.measured is not None for spread in panel.spreads)
    return bool(panel.lines)


def has_values(panel: Panel) -> bool:
    """Whether any of the runs has a value to draw, or is known never to have reached one."""
    reached = any(not math.isnan(y) for line in panel.lines for y in line.y)
    return reached or (panel.ceiling is not None and bool(panel.lines))


def _places(
    figure: Figure, plot: PanelPlot, heights: Sequence[float], *, lettered: bool
) -> list[tuple[Axes, Panel | SpreadPanel]]:
    """Lay out the rows, which may have different numbers of panels, and draw each panel."""
    columns = math.lcm(*(len(row) for row in plot.rows))
    full = [row for row, height in zip(plot.rows, heights, strict=True) if height == 1.0]
    # A column without any runs shrinks to a strip, as rows do.
    empty = {
        j
        for j in range(columns)
        if full and all(len(row) == columns and not has_data(row[j]) for row in full)
    }
    widths = [STRIP if j in empty else 1.0 for j in range(columns)]
    grid = figure.add_gridspec(len(plot.rows), columns, height_ratios=heights, width_ratios=widths)
    letters, found, limits = canvas.letters(), [], log_limits(plot)
    last = max((i for i, height in enumerate(heights) if height == 1.0), default=-1)
    for i, row in enumerate(plot.rows):
        if heights[i] != 1.0:
            title = row[0].title.partition(",")[0]  # "b = 128", without the optimizer of the first panel
            canvas.no_runs(figure.add_subplot(grid[i, :]), f"{title}: no runs")
            continue
        for j, panel in enumerate(row):
            wide = columns // len(row)
            axes = figure.add_subplot(grid[i, j * wide : (j + 1) * wide])
            if j in empty:
                canvas.no_runs(axes, f"{panel.title}: no runs", upright=True)
                continue
            axes.set_title(f"{next(letters)} {panel.title}" if lettered else panel.title)
            beside = row[j - 1] if j else None
            if isinstance(panel, Panel) and has_values(panel):
                _scales(axes, panel, limits.get(panel.y_title))
            _panel(axes, panel, repeat=_same_y(beside, panel), bottom=i == last or _other_x(plot, i, j))
            found.append((axes, panel))
    return found


def _same_y(beside: Panel | SpreadPanel | None, panel: Panel | SpreadPanel) -> bool:
    if not isinstance(beside, Panel) or not isinstance(panel, Panel):
        return False
    return beside.y_title == panel.y_title and bool(beside.lines)


def _other_x(plot: PanelPlot, i: int, j: int) -> bool:
    """Whether the panel below counts in something else, so that this one needs its own axis title."""
    filled = (row for row in plot.rows[i + 1 :] if any(has_data(panel) for panel in row))
    below = next(filled, [])
    return len(below) != len(plot.rows[i]) or below[j].x_title != plot.rows[i][j].x_title


def _panel(axes: Axes, panel: Panel | SpreadPanel, *, repeat: bool, bottom: bool) -> None:
    if isinstance(panel, SpreadPanel):
        draw_spreads(axes, panel)
        return
    if not has_values(panel):
        canvas.no_runs(axes, panel.void if panel.lines else "no runs")
        return
    for guide in panel.guides:
        axes.plot(guide.x, guide.y, color="#404040", linestyle=(0, (4, 2)), linewidth=0.9, label=guide.label)
    for index, line in enumerate(panel.lines):
        _line(axes, line, index, log=panel.log_x)
    for mark in panel.marks:
        axes.plot(
            mark.x, mark.y, "*", color="white", mec=mark.style.colour, mew=1.0, ms=9, zorder=6, clip_on=False
        )
    if panel.level is not None:
        axes.axhline(panel.level, color="black", linestyle=":", linewidth=1.0)
    if panel.guides:
        axes.legend(loc="best", frameon=False, fontsize=6.5, handlelength=2.2)
    if panel.ceiling is not None:
        _never_reached(axes, panel, panel.ceiling)
    axes.set_xlabel(panel.x_title if bottom else "")
    axes.set_ylabel("" if repeat else panel.y_title)


def _scales(axes: Axes, panel: Panel, limits: tuple[float, float] | None) -> None:
    """Logarithmic axes, where the values span enough for one."""
    from matplotlib.ticker import FixedLocator, MaxNLocator, NullFormatter, NullLocator, StrMethodFormatter

    ticks = [x for line in panel.lines for x in line.x]
    if panel.log_x and 0 < 20 * min(ticks) < max(ticks):
        axes.set_xscale("log")
    elif panel.log_x or panel.x_title == "epoch":
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10], integer=panel.x_title == "epoch"))
        axes.ticklabel_format(axis="x", scilimits=(-2, 4))
    if panel.ceiling is not None:
        known = [y for line in panel.lines for y in line.y if y > 0]
        axes.set_yscale("log")
        axes.set_ylim(0.8 * min([*known, panel.ceiling / 2]), 1.3 * panel.ceiling)
        rungs = [m * 10**k for k in range(6) for m in (1, 2, 5) if 1.3 * m * 10**k <= panel.ceiling]
        axes.yaxis.set_major_locator(FixedLocator([*rungs, panel.ceiling]))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    elif limits is not None:
        axes.set_yscale("log")
        axes.set_ylim(limits)
        axes.yaxis.set_minor_formatter(NullFormatter())


def _line(axes: Axes, line: Line, index: int, *, log: bool) -> None:
    """A band, a line, and open markers where runs are missing."""
    colour = line.style.colour
    axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.16, linewidth=0)
    # With many points only some carry a marker, each line's at places of its own.
    # What is too small for a logarithmic axis stands at its lower edge.
    floor = axes.get_ylim()[0] if axes.get_yscale() == "log" else -math.inf
    y = [max(value, floor) if value == value else value for value in line.y]
    axes.plot(line.x, y, **canvas.look(line.style), markevery=_marked(len(line.x), index, log=log))
    partial = [
        (x, y)
        for x, y, n, missing, expected in zip(
            line.x, line.y, line.n, line.n_censored, line.expected, strict=True
        )
        if missing or n < expected
    ]
    if partial:
        style = canvas.look(line.style, size=4.0) | {"linestyle": "none", "markerfacecolor": "white"}
        axes.plot([x for x, _ in partial], [y for _, y in partial], **style, zorder=5)


def _marked(n: int, index: int, *, log: bool) -> list[int]:
    """The points that carry a marker, evenly spread over the axis."""
    if n <= MANY:
        return list(range(n))
    share = (index % 6) / 6
    if log:
        return sorted({min(n - 1, round(n ** ((k + share) / 8)) - 1) for k in range(8)})
    step = n / 7
    return [int(step * (k + share)) for k in range(7)]


def _never_reached(axes: Axes, panel: Panel, ceiling: float) -> None:
    """Points whose median lies beyond the last epoch stand in a grey band above it, a row for each line."""
    late = [
        line for line in panel.lines if any(math.isnan(y) and n for y, n in zip(line.y, line.n, strict=True))
    ]
    axes.axhline(ceiling, color=canvas.FAINT, linewidth=0.8, linestyle="--")
    low, high = axes.get_ylim()
    step = (ceiling / low) ** 0.085
    axes.axhspan(ceiling, ceiling * 1e3, color="#EFEFEF", zorder=0, linewidth=0)
    axes.set_ylim(low, ceiling * step ** (len(late) + 2.2) if late else high)
    if not late:
        return
    for row, line in enumerate(late, start=1):
        at = [x for x, y, n in zip(line.x, line.y, line.n, strict=True) if math.isnan(y) and n]
        style = canvas.look(line.style) | {"linestyle": "none", "markerfacecolor": "white"}
        axes.plot(at, [ceiling * step**row] * len(at), **style)
    words = f"not reached in {ceiling:.0f} epoch{'s' if ceiling != 1 else ''}"
    axes.text(
        0.98, 0.985, words, transform=axes.transAxes, ha="right", va="top", fontsize=6.5, color="#404040"
    )


def draw_spreads(axes: Axes, panel: SpreadPanel) -> None:
    """A dot for what was measured, an open diamond for what was published."""
    rows = range(len(panel.spreads))
    axes.set(ylim=(len(panel.spreads) - 0.4, -0.6), xlabel=panel.x_title)
    axes.set_yticks(list(rows), [spread.label for spread in panel.spreads])
    axes.grid(visible=False, axis="y")
    for i, spread in enumerate(panel.spreads):
        colour = spread.style.colour
        if spread.measured is None:
            place = axes.get_yaxis_transform()
            axes.text(0.99, i, spread.void, transform=place, ha="right", va="center", color=canvas.FAINT)
        else:
            axes.plot([0, spread.measured], [i, i], color=colour, linewidth=1.0, alpha=0.6)
            axes.plot(spread.measured, i, spread.style.marker, color=colour, markersize=4.5, clip_on=False)
        if spread.reference is not None:
            sign = "<" if spread.relation in ("<", "<=") else "D"
            axes.plot(spread.reference, i, sign, color="none", mec="black", mew=0.9, ms=6, clip_on=False)
    known = [v for spread in panel.spreads for v in (spread.measured, spread.reference) if v is not None]
    axes.set_xlim(0, 1.12 * max([*known, 1.0]))


def _share(places: Sequence[tuple[Axes, Panel | SpreadPanel]]) -> None:
    """Panels of one quantity get the same limits, so that they compare at a glance."""
    groups: dict[tuple[str, str], list[Axes]] = {}
    for axes, panel in places:
        if isinstance(panel, SpreadPanel):
            groups.setdefault(("x", ""), []).append(axes)
        elif has_values(panel):
            groups.setdefault(("x", panel.x_title + axes.get_xscale()), []).append(axes)
            groups.setdefault(("y", panel.y_title + axes.get_yscale()), []).append(axes)
    for (side, _), group in groups.items():
        limits = [axes.get_xlim() if side == "x" else axes.get_ylim() for axes in group]
        both = min(low for low, _ in limits), max(high for _, high in limits)
        for axes in group:
            axes.set(**{f"{side}lim": both})
