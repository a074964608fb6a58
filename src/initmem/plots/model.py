"""Plots as values: what is shown, without how it is drawn.

A figure of the paper, a chart on the page, a sparkline and a picture of the theory are all a `Plot`, or a
part of one. `plots.matplotlib` draws it, and `plots.html` turns it into JSON and SVG for the page. What is
written under a plot is made of its fields alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from initmem.errors import first_of
from initmem.intervention import Level, level_order, level_text

SYMBOLS = {"=": "", "<": "< ", "<=": "≤ ", ">": "> ", ">=": "≥ ", "about": "≈ "}  # before published values

SIGMA = "initialization scale σ"
INTERVENTION = "intervention"  # the title of an axis of names
BAND = "95% simultaneous band"
NAMED = 6  # how many missing cells a caption names; the plot holds them all
SIGNS = "open diamonds, triangles (upper limits), stars or dotted lines"


class Style(NamedTuple):
    """How a series is told apart: by color, and by marker and dashes for those who do not see it."""

    hue: str
    marker: str = ""
    dash: str = "-"  # a matplotlib line style; "none": points only
    hollow: bool = False
    size: float = 3.5  # of the markers, in points
    width: float = 1.2  # of the line, in points
    shade: float = 0.0  # how much black (below zero) or white (above) is mixed into the hue

    @property
    def color(self) -> str:
        """The hue with its shade."""
        return mixed(self.hue, self.shade) if self.shade else self.hue


def mixed(color: str, share: float) -> str:
    """A color with a share of black, below zero, or of white."""
    goal = 0 if share < 0 else 255
    channels = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(c + abs(share) * (goal - c)):02X}" for c in channels)


class Series(NamedTuple):
    """A value against x, with one entry per point in every list; NaN where there is no value.

    `low` and `high` bound the band that is drawn, `limits` is the 95% interval of a mean.
    """

    label: str
    style: Style
    x: Sequence[Level]  # labels where the runs differ by an intervention
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()  # inf: beyond the last epoch
    limits: Sequence[tuple[float | None, float | None]] = ()  # None from a single seed
    n: Sequence[int] = ()  # runs behind each point
    n_censored: Sequence[int] = ()  # further runs without a value, or with one beyond the last epoch
    expected: Sequence[int] = ()  # runs that the studies ask for
    runs: Sequence[Sequence[str]] = ()  # ids of the runs behind each point
    name: str = ""  # the label in full, where a panel's title holds a part of it
    recipe_id: str = ""

    def named(self, label: str, style: Style) -> Series:
        """The same series with a label and a style."""
        return self._replace(label=label, style=style)

    def known(self) -> list[float]:
        """The values that are there."""
        return [y for y in self.y if not math.isnan(y)]

    def partial(self) -> list[int]:
        """Indices of the points with a value behind which some runs are missing or have none."""
        counts = zip(self.y, self.n, self.n_censored, self.expected, strict=False)
        return [
            i
            for i, (y, n, censored, expected) in enumerate(counts)
            if not math.isnan(y) and (censored or n < expected)
        ]

    def isolated(self) -> list[int]:
        """Indices of the points with a value whose neighbors have none."""
        there = [False, *(not math.isnan(y) for y in self.y), False]
        return [i for i in range(len(self.y)) if there[i : i + 3] == [False, True, False]]


class Text(NamedTuple):
    """A few words inside a panel; x and y are fractions of its width and height."""

    x: float
    y: float
    text: str


class Interval(NamedTuple):
    """One value with whatever is known beside it: interval, noise range, published value."""

    label: str
    style: Style
    value: float | None
    low: float | None = None
    high: float | None = None
    noise_range: float | None = None
    reference: float | None = None
    relation: str = "="  # how the published value is meant: =, <, <=, about
    reference_scales: int | None = None  # over how many scales it was taken
    void: str = "no runs"  # why there is no value


class Intervals(NamedTuple):
    """Values of one kind below each other, such as spreads or memories."""

    title: str
    x_title: str
    rows: Sequence[Interval]
    n_scales: int = 0
    tolerance: float | None = None

    def has_runs(self) -> bool:
        """Whether there is any value."""
        return any(row.value is not None for row in self.rows)


class Entry(NamedTuple):
    """A line of the legend."""

    label: str
    style: Style


class Panel(NamedTuple):
    """Series over one pair of axes. A panel without series says so where it would stand."""

    title: str
    x_title: str
    y_title: str
    series: Sequence[Series]
    band: str = BAND  # what `low` and `high` of the series are
    limits: str = "95% interval of the mean"  # what their `limits` are
    guides: Sequence[Series] = ()  # not the panel's own measurements; without a label: the legend has it
    published: Sequence[Series] = ()  # single points
    published_level: float | None = None  # a published value that holds all along
    ceiling: float | None = None  # the last epoch: values beyond it are shown above
    top: float | None = None  # no value can be above, as for percentages
    with_bands: bool = True
    key: Sequence[Entry] = ()  # a legend of its own, below the panel
    log_x: bool = False
    log_y: bool = False
    void: str = "no values"  # what to say where there are runs but none has a value
    levels: Sequence[float] = ()  # thin lines that help the eye
    span: tuple[float, float] | None = None  # a shaded range of y
    texts: Sequence[Text] = ()
    x_shared: str = ""  # panels with the same value have the same limits; unless given, those of one title
    y_shared: str = ""
    x_limits: tuple[float, float] | None = None
    y_limits: tuple[float, float] | None = None
    y_ticks: Mapping[float, str] | None = None

    def has_runs(self) -> bool:
        """Whether there are any runs behind the panel."""
        return bool(self.series)

    def has_values(self) -> bool:
        """Whether any of the runs has a value to draw, or is known never to have reached one."""
        reached = any(series.known() for series in self.series)
        return reached or (self.ceiling is not None and bool(self.series))


class Heatmap(NamedTuple):
    """A row of cells for every series; all series have the same x."""

    title: str
    x_title: str
    y_title: str  # what the colors show
    rows: Sequence[Series]
    limits: tuple[float, float]  # of the colors, shared by all maps of a plot
    crossed: Sequence[Sequence[bool]] = ()  # labels not fitted; per row and cell
    intervals: Sequence[Interval] = ()  # written right of each row
    digits: int = 1  # after the point, where there is room for values

    def has_runs(self) -> bool:
        """Whether there is anything to draw."""
        return any(row.known() for row in self.rows)


AnyPanel = Panel | Intervals | Heatmap


def numbered(panel: Panel) -> tuple[Panel, list[str]]:
    """The panel with numbers as x, and the names of these numbers, from 1 on, where x were interventions."""
    levels = sorted({x for one in panel.series for x in one.x}, key=level_order)
    if not any(isinstance(level, str) for level in levels):
        return panel, []
    places = {level: float(i) for i, level in enumerate(levels, start=1)}
    series = [one._replace(x=[places[x] for x in one.x]) for one in panel.series]
    return panel._replace(x_title=INTERVENTION, series=series), [level_text(level) for level in levels]


def numbers(levels: Sequence[Level]) -> list[float]:
    """The x of a series, as far as they are numbers."""
    return [level for level in levels if not isinstance(level, str)]


class Plot(NamedTuple):
    """Rows of panels with their legend, and what a caption needs beside them."""

    rows: Sequence[Sequence[AnyPanel]]
    legend: Sequence[Sequence[Entry]] = ()  # by row
    head: str = ""
    about: Sequence[str] = ()  # what lines, bands and signs are, without a full stop
    origin: Mapping[str, str] = {}
    missing: Sequence[str] = ()
    notes: Sequence[str] = ()
    reference: bool = False  # published values were asked for
    published: Sequence[str] = ()  # those that are said rather than drawn
    row_height: float = 2.0  # inches
    lettered: bool = True

    @property
    def all_panels(self) -> list[AnyPanel]:
        """All panels, row by row."""
        return [panel for row in self.rows for panel in row]

    @property
    def panels(self) -> list[Panel]:
        """The panels with lines."""
        return [panel for panel in self.all_panels if isinstance(panel, Panel)]

    @property
    def series(self) -> list[Series]:
        """All that was measured."""
        rows = [row for panel in self.all_panels if isinstance(panel, Heatmap) for row in panel.rows]
        return [*(one for panel in self.panels for one in panel.series), *rows]

    @property
    def intervals(self) -> list[Interval]:
        """All single values, in panels and next to heat maps."""
        bars = [row for panel in self.all_panels if isinstance(panel, Intervals) for row in panel.rows]
        maps = [row for panel in self.all_panels if isinstance(panel, Heatmap) for row in panel.intervals]
        return bars + maps

    def data(self) -> list[dict[str, Any]]:
        """The values for programs: a row per line, per row of a heat map, and per interval."""
        rows: list[dict[str, Any]] = []
        for panel in self.all_panels:
            for one in panel.series if isinstance(panel, Panel) else panel.rows:
                row: dict[str, Any] = {"panel": panel.title, "label": one.label}
                if isinstance(one, Series):
                    row |= {"x": one.x, "y": one.y, "low": one.low, "high": one.high, "n": one.n}
                else:
                    row |= {"value": one.value, "low": one.low, "high": one.high}
                rows.append(row)
        return rows

    def has_published(self) -> bool:
        """Whether any published value is shown or told."""
        marked = any(panel.published or panel.published_level is not None for panel in self.panels)
        return bool(marked or self.published or any(row.reference is not None for row in self.intervals))


def caption(plot: Plot) -> str:
    """What is written under a plot: what is shown, where it comes from, and what is missing."""
    counts = sorted({n for one in plot.series for n, y in zip(one.n, one.y, strict=False) if n and y == y})
    n = " to ".join(map(str, dict.fromkeys([counts[0], counts[-1]]))) if counts else ""
    scales = sorted({row.reference_scales for row in plot.intervals if row.reference_scales is not None})
    published = [SIGNS] * plot.has_published() or ["none for what is shown"]
    partial = any(one.partial() for panel in plot.panels for one in panel.series)
    facts = {
        "n": n,
        "Open markers": "runs are missing or have no value" if partial else "",
        "Published values": "; ".join([*plot.published] or published) if plot.reference else "",
        "Published spreads": f"over {' or '.join(map(str, scales))} scales" if scales else "",
        **plot.origin,
    }
    told = [plot.head, *plot.about, *(f"{name}: {text}" for name, text in facts.items() if text), *plot.notes]
    told += [f"Missing: {first_of(plot.missing, NAMED)}"] if plot.missing else []
    return "".join(f"{sentence}. " for sentence in told if sentence).strip()


def log_limits(plot: Plot) -> dict[str, tuple[float, float]]:
    """Limits of the logarithmic axes, by what they show; all panels of one quantity are alike.

    Less than a decade of values is better seen on a linear axis; more than four are cut off below.
    """
    known: dict[str, list[float]] = {}
    for panel in plot.panels:
        if panel.log_y and panel.ceiling is None:
            values = [y for series in panel.series for y in series.y if y > 0]
            known.setdefault(panel.y_title, []).extend(values)
    return {
        title: (max(min(values) / 1.5, max(values) / 1e4), 2 * max(values))
        for title, values in known.items()
        if values and max(values) > 10 * min(values)
    }
