"""Plots for the page: JSON that its script draws, and small pictures that are there without any script.

The pictures hold numbers only, no text from a store.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from initmem.measures.memory import Memory
from initmem.plots.model import Plot, Series, numbered
from initmem.plots.model import numbers as values_of
from initmem.plots.styles import DASHES, HUES, MARKERS

Json = dict[str, Any]
MOST_POINTS = 160  # of one series: more would not be seen
BAR = (240, 22)  # width and height of the picture of an interval
SPARK = (120, 30)

# Shapes as well as colors: filled diamond, ring, question mark, cross, dash.
GLYPHS = {
    "remembers": '<path d="M8 1.5 14.5 8 8 14.5 1.5 8Z"/>',
    "forgets": '<circle cx="8" cy="8" r="5.5" class="ring"/>',
    "inconclusive": '<path class="ring" d="M5 6a3 3 0 1 1 4.6 2.5C8.5 9.2 8 9.8 8 11"/>'
    '<circle cx="8" cy="14" r="1.2"/>',
    "untrained": '<path class="ring" d="M4 4l8 8M12 4l-8 8"/>',
    "not applicable": '<path class="ring" d="M3 8h10"/>',
}


# -- charts -----------------------------------------------------------------------------------------------


def chart_json(plots: Mapping[str, Plot]) -> Json:
    """Plots of the same recipes, between which the reader chooses."""
    values: dict[str, Json] = {}  # what many series share is written once; a series holds its index
    runs: dict[str, list[Any]] = {}
    choices = []
    for key, plot in plots.items():
        panels = [numbered(panel) for panel in plot.panels]
        first = panels[0][0]
        choices.append(
            {
                "key": key,
                "title": plot.head,
                "about": " ".join(plot.about),
                "x": first.x_title,
                "y": first.y_title,
                "xlog": first.log_x,
                "ylog": first.log_y,
                "ceiling": first.ceiling is not None,
                "band": first.band,
                "limits": first.limits,
                "panels": [
                    {
                        "title": panel.title,
                        "x": panel.x_title,
                        "names": names,  # of the values of x, where these are interventions
                        "series": [_series(one, values, runs) for one in panel.series],
                    }
                    for panel, names in panels
                ],
            }
        )
    return {"choices": choices, "values": list(values.values()), "runs": list(runs.values())}


def _index(shared: dict[str, Any], value: Any) -> int:
    key = repr(value)
    shared.setdefault(key, value)
    return list(shared).index(key)


def _series(series: Series, values: dict[str, Json], runs: dict[str, list[Any]]) -> Json:
    at = thinned(len(series.x))
    columns: Json = {"y": numbers(series.y[i] for i in at), "n": [series.n[i] for i in at]}
    if series.low:
        columns |= {"low": numbers(series.low[i] for i in at), "high": numbers(series.high[i] for i in at)}
    if series.limits:
        columns["limits"] = [numbers(series.limits[i]) for i in at]
    if any(series.n_censored):
        columns["never"] = [series.n_censored[i] for i in at]
    style = series.style  # what the style sheet and the script number: hue, shade, marker, dashes
    look = [HUES.index(style.hue), style.shade, MARKERS.index(style.marker), DASHES.index(style.dash)]
    return {
        "label": series.label,
        "name": series.name or series.label,
        "recipe": series.recipe_id,
        "style": look,
        "x": numbers(values_of(series.x)[i] for i in at),
        "values": _index(values, columns),
        "runs": _index(runs, list(series.runs)) if series.runs else None,
    }


def thinned(count: int, most: int = MOST_POINTS) -> NDArray[np.int64]:
    """Indices of the points to show: the first and the last, dense in the beginning for logarithmic axes."""
    if count <= most:
        return np.arange(count)
    early = np.geomspace(1, count, most // 2) - 1
    even = np.linspace(0, count - 1, most // 2)
    return np.unique(np.round(np.concatenate([early, even])).astype(np.int64))


def numbers(values: Iterable[float | None]) -> list[float | None]:
    """Values to five digits; what is not a number becomes null."""
    return [None if v is None or not np.isfinite(v) else float(f"{v:.5g}") for v in values]


# -- small pictures ---------------------------------------------------------------------------------------


def glyph(verdict: str) -> Markup:
    """The sign of a verdict, shown next to the word."""
    return Markup(f'<svg class="glyph" viewBox="0 0 16 16" aria-hidden="true">{GLYPHS[verdict]}</svg>')


def nice_limit(value: float) -> float:
    """The next round number at or above a positive value: 1, 2, 2.5, 3, 4, 5, 6, 8 times a power of ten."""
    if not value > 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 2.5, 3, 4, 5, 6, 8, 10) if step * power >= value * (1 - 1e-9))


def interval_bar(row: Memory, limit: float) -> Markup:
    """A memory with its interval; shaded: what noise alone would show; dashed: the tolerance."""
    width, height = BAR
    middle = height / 2

    def x(value: float) -> float:
        return round(4 + (width - 8) * min(max(value, 0.0), limit) / limit, 1)

    parts = [f'<line class="base" x1="{x(0)}" x2="{x(limit)}" y1="{middle}" y2="{middle}"/>']
    if row.noise_range is not None:
        size = f'width="{x(row.noise_range) - x(0):.1f}" height="{height - 4}"'
        parts.append(f'<rect class="noise" x="{x(0)}" y="2" {size}/>')
    if row.tolerance is not None and row.tolerance < limit:
        at = x(row.tolerance)
        parts.append(f'<line class="tolerance" x1="{at}" x2="{at}" y1="0" y2="{height}"/>')
    whiskers = ""
    if row.low is not None and row.high is not None:
        low, high = x(row.low), x(row.high)
        parts.append(f'<line x1="{low}" x2="{high}" y1="{middle}" y2="{middle}"/>')
        whiskers = f'<path d="M{low} {middle - 4}v8M{high} {middle - 4}v8"/>'
    if row.memory is not None:
        position = f"translate({x(row.memory) - 6.8:.1f} {middle - 6.8}) scale(.85)"
        parts.append(f'<g transform="{position}">{GLYPHS[row.verdict]}</g>')
    parts.append(whiskers)  # above the sign, which would hide narrow ones
    label = f"{row.memory:.3g}" if row.memory is not None else "not measured"
    return Markup(
        f'<svg class="bar {row.verdict}" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="memory {label} on an axis from 0 to {limit:g}">{"".join(parts)}</svg>'
    )


def bar_axis(limit: float) -> Markup:
    """The axis above a column of interval bars."""
    width, _ = BAR
    ticks = "".join(
        f'<text x="{4 + (width - 8) * i / 2}" y="11" text-anchor="{anchor}">{limit * i / 2:g}</text>'
        for i, anchor in enumerate(("start", "middle", "end"))
    )
    return Markup(f'<svg class="axis" viewBox="0 0 {width} 13" aria-hidden="true">{ticks}</svg>')


def sparkline(series: Series, low: float, high: float) -> Markup:
    """A metric against scale: means as a line with their band, on an axis shared by all recipes."""
    if not series.x:
        return Markup("")
    places = range(len(series.x)) if any(isinstance(x, str) for x in series.x) else values_of(series.x)
    xs = _positions(places, places[0], places[-1])
    banded = [i for i, end in enumerate(series.low) if not math.isnan(end)]
    there = _path([xs[i] for i in banded], [series.high[i] for i in banded], low, high)
    back = _path([xs[i] for i in reversed(banded)], [series.low[i] for i in reversed(banded)], low, high)
    dots = "".join(
        f'<circle cx="{x}" cy="{_height(y, low, high)}" r="1.8"/>' for x, y in zip(xs, series.y, strict=True)
    )
    if isinstance(places, range):  # names have no order: no line joins them
        return _spark(dots, f"means from {min(series.y):.3g} to {max(series.y):.3g}")
    ends = [f"{series.y[i]:.3g} at scale {places[i]:g}" for i in (0, -1)]
    return _spark(
        f'<polygon points="{there} {back}"/><polyline points="{_path(xs, series.y, low, high)}"/>'
        f"{dots if len(xs) <= 12 else ''}",
        f"mean by scale, from {' to '.join(ends)}",
    )


def course(values: Sequence[float], length: int, low: float, high: float) -> Markup:
    """A metric against epoch for a run in flight; the axis ends where the run will end."""
    xs = _positions(range(1, len(values) + 1), 1, max(length, 2))
    end = f'<circle cx="{xs[-1]}" cy="{_height(values[-1], low, high)}" r="2"/>' if values else ""
    line = f'<polyline points="{_path(xs, values, low, high)}"/>'
    return _spark(line + end, f"{len(values)} of {length} epochs")


def _spark(inside: str, label: str) -> Markup:
    width, height = SPARK
    return Markup(
        f'<svg class="spark" viewBox="0 0 {width} {height}" role="img" aria-label="{label}">'
        f'<line class="base" x1="2" x2="{width - 2}" y1="{height - 1}" y2="{height - 1}"/>{inside}</svg>'
    )


def _positions(values: Sequence[float], first: float, last: float) -> list[float]:
    span = (last - first) or 1.0
    return [round(3 + (SPARK[0] - 6) * (value - first) / span, 1) for value in values]


def _height(value: float, low: float, high: float) -> float:
    share = (value - low) / ((high - low) or 1.0)
    return round(3 + (SPARK[1] - 6) * (1 - min(max(share, 0.0), 1.0)), 1)


def _path(xs: Sequence[float], ys: Sequence[float], low: float, high: float) -> str:
    return " ".join(f"{x},{_height(y, low, high)}" for x, y in zip(xs, ys, strict=True))
