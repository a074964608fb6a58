"""Figure 2: test accuracy as heat maps, optimizer x scale, a panel per batch size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from initmem.paper.figures.select import OPTIMIZERS, also, select
from initmem.paper.figures.view import Member, View
from initmem.plots import canvas, captions, styles
from initmem.plots.plotdata import Spread, by_scale, percent
from initmem.store.record import INTERPOLATION, RunRecord
from initmem.study import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

FIELDS = ("optimizer", "batch_size")
BATCHES = (16, 32, 64, 128, 256)
ROOM_FOR_TEXT = 6  # up to so many scales the values are written into the cells
ROWS_HIGH = 0.17  # inches per optimizer


class HeatMap(NamedTuple):
    """One batch size. The lists of lists have shape (optimizer, scale); NaN where there is no run."""

    title: str
    optimizers: list[str]
    scales: list[float]
    accuracy: list[list[float]]  # mean test accuracy, %
    train: list[list[float]]  # mean train accuracy of the selected predictor, %
    crossed: list[list[bool]]  # labels not fitted: mean train accuracy below 99.5%
    n: list[list[int]]
    expected: list[list[int]]  # runs that were asked for
    spreads: list[Spread]  # (optimizer,)

    def has_runs(self) -> bool:
        """Whether there is anything to draw."""
        return any(n for row in self.n for n in row)


class HeatMaps(NamedTuple):
    """A heat map per batch size."""

    panels: list[HeatMap]
    limits: tuple[float, float]  # of the colours, %
    reference: bool
    caption: str
    missing: list[str]
    notes: list[str]


def plot(records: Sequence[RunRecord], studies: Sequence[Study], *, reference: bool = False) -> HeatMaps:
    """Mean test accuracy of every cell, and whether its labels were fitted."""
    found = select(records, FIELDS, [(name, b) for b in BATCHES for name in OPTIMIZERS], own_rates=True)
    view = View.of(found, studies)
    batches = sorted(also(found.axis("batch_size"), BATCHES))
    names = also(found.axis("optimizer"), OPTIMIZERS)
    panels = [_panel(view, names, b) for b in batches]
    keys = [(name, b) for b in batches for name in names if name in OPTIMIZERS or (name, b) in found.cells]
    missing = view.missing(keys)
    shown = [x for panel in panels for row in panel.accuracy for x in row if not math.isnan(x)]
    n = sorted({x for panel in panels for row in panel.n for x in row if x})
    parts = [
        f"Mean over n = {n[0]}{f' to {n[-1]}' if len(n) > 1 else ''} seeds" if n else "",
        "In parentheses: n, where seeds are missing" if _partial(panels) else "",
        f"Crosses: mean train accuracy below {100 * INTERPOLATION:g}%",
        "Right of each row: the spread in points, measured (the paper)" if reference else "",
        *view.source(keys, reference=reference),
    ]
    head = "Test accuracy of the predictor with the least validation loss"
    text = captions.caption(head, parts, missing, found.notes)
    limits = (min(shown), max(shown)) if shown else (0.0, 100.0)
    return HeatMaps(panels, limits, reference, text, missing, found.notes)


def _panel(view: View, names: Sequence[str], b: int) -> HeatMap:
    rows = [_row(view, (name, b)) for name in names]
    members = [Member((name, b), name, styles.OPTIMIZERS[name]) for name in names]
    return HeatMap(
        title=f"b = {b}",
        optimizers=list(names),
        scales=list(view.scales),
        accuracy=[accuracy for accuracy, _, _, _ in rows],
        train=[train for _, train, _, _ in rows],
        crossed=[[value < 100 * INTERPOLATION for value in train] for _, train, _, _ in rows],
        n=[n for _, _, n, _ in rows],
        expected=[expected for _, _, _, expected in rows],
        spreads=view.spreads("figure 2", f"b = {b}", members).spreads,
    )


def _row(view: View, key: tuple[str, int]) -> tuple[list[float], list[float], list[int], list[int]]:
    groups, asked = by_scale(view.cell(key)), view.expected(key)
    cells = [groups.get(scale, []) for scale in view.scales]
    return (
        [_mean(cell, "test_accuracy") for cell in cells],
        [_mean(cell, "train_accuracy") for cell in cells],
        [len(cell) for cell in cells],
        [asked.get(scale, 0) for scale in view.scales],
    )


def _partial(panels: Sequence[HeatMap]) -> bool:
    return any(
        0 < n < expected
        for panel in panels
        for row, asked in zip(panel.n, panel.expected, strict=True)
        for n, expected in zip(row, asked, strict=True)
    )


def _mean(records: Sequence[RunRecord], metric: str) -> float:
    value = percent(metric)
    found = [x for x in map(value, records) if x is not None]
    return float(np.mean(found)) if found else math.nan


def draw(plot: HeatMaps, path: Path) -> None:
    """Two panels side by side, row by row; batch sizes without any runs share one hatched strip below."""
    shown = [panel for panel in plot.panels if panel.has_runs()]
    absent = [panel.title.removeprefix("b = ") for panel in plot.panels if not panel.has_runs()]
    lines = len(shown) // 2 + 1  # one place is left for the colours
    row = 0.62 + ROWS_HIGH * len(plot.panels[0].optimizers)
    heights = [row] * (lines - 1) + [row if len(shown) % 2 else 1.05] + [0.3] * bool(absent)
    with canvas.page(sum(heights) + 0.2, path, plot.caption) as figure:
        grid = figure.add_gridspec(len(heights), 2, height_ratios=heights)
        image = None
        for i, (letter, panel) in enumerate(zip(canvas.letters(), shown, strict=False)):
            axes = figure.add_subplot(grid[i // 2, i % 2])
            axes.set_title(f"{letter} {panel.title}")
            image = _draw_panel(axes, panel, plot)
        if absent:
            canvas.no_runs(figure.add_subplot(grid[lines, :]), f"b = {', '.join(absent)}: no runs")
        if image is not None:
            _key(figure, figure.add_subplot(grid[lines - 1, len(shown) % 2 :]), image)


def _key(figure: Figure, axes: Axes, image: AxesImage) -> None:
    """The colours, and what crosses and hatches mean."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    axes.set_axis_off()
    place = axes.inset_axes((0.0, 0.62, 0.9, 0.16))
    bar = figure.colorbar(image, cax=place, orientation="horizontal", label="test accuracy (%)")
    bar.ax.spines[:].set_visible(False)
    cross = Line2D([], [], marker="x", linestyle="none", color="black", markersize=4, markeredgewidth=0.8)
    empty = Patch(facecolor="white", edgecolor="#A0A0A0", hatch="//////", linewidth=0.4)
    texts = [f"mean train accuracy below {100 * INTERPOLATION:g}%", "no runs"]
    axes.legend([cross, empty], texts, loc="lower left", frameon=False, borderaxespad=0, ncols=2)


def _draw_panel(axes: Axes, panel: HeatMap, plot: HeatMaps) -> AxesImage:
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.patch.set(hatch="//////", edgecolor="#C8C8C8", facecolor="white")  # seen where a cell is empty
    image = axes.imshow(
        panel.accuracy, aspect="auto", cmap="cividis", vmin=plot.limits[0], vmax=plot.limits[1], zorder=1
    )
    axes.set_yticks(range(len(panel.optimizers)), panel.optimizers)
    axes.tick_params(length=0)
    ticks = _ticks(panel.scales)
    axes.set_xticks(ticks, [f"{panel.scales[i]:g}" for i in ticks])
    axes.set_xlabel(captions.SIGMA)
    for i, j in np.ndindex(len(panel.optimizers), len(panel.scales)):
        _draw_cell(axes, panel, plot.limits, i, j)
    if plot.reference:
        _draw_spreads(axes, panel)
    return image


def _ticks(scales: Sequence[float]) -> list[int]:
    """All scales where there is room, else those on a round half."""
    if len(scales) <= 10:
        return list(range(len(scales)))
    round_ones = [i for i, scale in enumerate(scales) if abs(2 * scale - round(2 * scale)) < 1e-9]
    return [0, *round_ones] if round_ones else list(range(0, len(scales), 4))


def _draw_cell(axes: Axes, panel: HeatMap, limits: tuple[float, float], i: int, j: int) -> None:
    """The cross, the value and, where seeds are missing, n."""
    value, n = panel.accuracy[i][j], panel.n[i][j]
    if not n:
        return
    dark = (value - limits[0]) < 0.55 * (limits[1] - limits[0])
    ink = "white" if dark else "black"
    style: dict[str, Any] = {"color": ink, "textcoords": "offset points", "ha": "center", "va": "center"}
    short = f"({n})" if n < panel.expected[i][j] else ""
    roomy = len(panel.scales) <= ROOM_FOR_TEXT
    text = f"{value:.1f} {short}".strip() if roomy else short
    if panel.crossed[i][j]:
        high = 2.0 if short and not roomy else -0.7  # the sign stands above the middle of its line
        axes.annotate("×", (j, i), (-13 if roomy else 0, high), fontsize=8, **style)
    if text:
        axes.annotate(
            text, (j, i), (3 if roomy else 0, 0 if roomy else -3), fontsize=5.5 if roomy else 4, **style
        )


def _draw_spreads(axes: Axes, panel: HeatMap) -> None:
    for i, spread in enumerate(panel.spreads):
        here = "—" if spread.measured is None else f"{spread.measured:.1f}"
        there = "" if spread.reference is None else f" ({spread.reference:.1f})"
        place = axes.get_yaxis_transform()
        axes.text(1.02, i, here + there, transform=place, va="center", fontsize=6, color="#202020")
