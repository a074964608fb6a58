"""Small pictures, drawn where the page is made, so that they are there without any script.

They hold numbers only, no text from a store.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from initmem.measures.memory import Memory, Verdict
from initmem.plots.curves import Curve

BAR = (240, 22)  # width and height of the picture of an interval
SPARK = (120, 30)

# Shapes as well as colours: filled diamond, ring, question mark.
GLYPHS: dict[str, str] = {
    "remembers": '<path d="M8 1.5 14.5 8 8 14.5 1.5 8Z"/>',
    "forgets": '<circle cx="8" cy="8" r="5.5" class="ring"/>',
    "undetermined": '<path class="ring" d="M5 6a3 3 0 1 1 4.6 2.5C8.5 9.2 8 9.8 8 11"/>'
    '<circle cx="8" cy="14" r="1.2"/>',
    "not applicable": '<path class="ring" d="M3 8h10"/>',
}


def glyph(verdict: Verdict) -> Markup:
    """The sign of a verdict; the word stands beside it."""
    return Markup(f'<svg class="glyph" viewBox="0 0 16 16" aria-hidden="true">{GLYPHS[verdict]}</svg>')


def nice_limit(value: float) -> float:
    """The next round number at or above a positive value: 1, 2, 2.5, 3, 4, 5, 6, 8 times a power of ten."""
    if not value > 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 2.5, 3, 4, 5, 6, 8, 10) if step * power >= value * (1 - 1e-9))


def interval_bar(row: Memory, limit: float, tolerance: float | None) -> Markup:
    """The memory with its interval; shaded: what noise alone would show; dashed: the tolerance."""
    width, height = BAR
    middle = height / 2

    def x(value: float) -> float:
        return round(4 + (width - 8) * min(max(value, 0.0), limit) / limit, 1)

    parts = [f'<line class="base" x1="{x(0)}" x2="{x(limit)}" y1="{middle}" y2="{middle}"/>']
    if row.floor is not None:
        parts.append(
            f'<rect class="floor" x="{x(0)}" y="2" width="{x(row.floor) - x(0):.1f}" height="{height - 4}"/>'
        )
    if tolerance is not None and tolerance < limit:
        parts.append(
            f'<line class="tolerance" x1="{x(tolerance)}" x2="{x(tolerance)}" y1="0" y2="{height}"/>'
        )
    whiskers = row.low is not None and row.high is not None
    ends = [x(row.low or 0.0), x(row.high or 0.0)]
    if whiskers:
        parts.append(f'<line x1="{ends[0]}" x2="{ends[1]}" y1="{middle}" y2="{middle}"/>')
    if row.memory is not None:
        place = f"translate({x(row.memory) - 6.8:.1f} {middle - 6.8}) scale(.85)"
        parts.append(f'<g transform="{place}">{GLYPHS[row.verdict]}</g>')
    if whiskers:  # above the sign, which would hide narrow ones
        parts.append(f'<path d="M{ends[0]} {middle - 4}v8M{ends[1]} {middle - 4}v8"/>')
    style = row.verdict.replace(" ", "-")
    said = f"{row.memory:.1f}" if row.memory is not None else "not measured"
    return Markup(
        f'<svg class="bar {style}" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="memory {said} on an axis from 0 to {limit:g}">{"".join(parts)}</svg>'
    )


def bar_axis(limit: float) -> Markup:
    """The axis above a column of interval bars."""
    width, _ = BAR
    ticks = "".join(
        f'<text x="{4 + (width - 8) * i / 2}" y="11" text-anchor="{anchor}">{limit * i / 2:g}</text>'
        for i, anchor in enumerate(("start", "middle", "end"))
    )
    return Markup(f'<svg class="axis" viewBox="0 0 {width} 13" aria-hidden="true">{ticks}</svg>')


def spark(curve: Curve, low: float, high: float) -> Markup:
    """A metric against scale: means as a line, percentiles as a band, on an axis shared by all recipes."""
    if not curve.scales:
        return Markup("")
    xs = _spread(curve.scales, curve.scales[0], curve.scales[-1], SPARK[0])
    line = _path(xs, curve.mean, low, high)
    band = _band(xs, curve, low, high)
    dots = "".join(
        f'<circle cx="{x}" cy="{_height(y, low, high)}" r="1.8"/>'
        for x, y in zip(xs, curve.mean, strict=True)
    )
    ends = [f"{curve.mean[i]:.0f}% at scale {curve.scales[i]:g}" for i in (0, -1)]
    return _svg(
        f'{band}<polyline points="{line}"/>{dots if len(xs) <= 12 else ""}',
        f"test accuracy from {' to '.join(ends)}",
    )


def course(values: Sequence[float], length: int, low: float, high: float) -> Markup:
    """A metric against epoch for a run in flight; the axis ends where the run will end."""
    xs = _spread(range(1, len(values) + 1), 1, max(length, 2), SPARK[0])
    end = f'<circle cx="{xs[-1]}" cy="{_height(values[-1], low, high)}" r="2"/>' if values else ""
    said = f"{len(values)} of {length} epochs"
    return _svg(f'<polyline points="{_path(xs, values, low, high)}"/>{end}', said)


def _svg(inside: str, said: str) -> Markup:
    width, height = SPARK
    return Markup(
        f'<svg class="spark" viewBox="0 0 {width} {height}" role="img" aria-label="{said}">'
        f'<line class="base" x1="2" x2="{width - 2}" y1="{height - 1}" y2="{height - 1}"/>{inside}</svg>'
    )


def _spread(values: Sequence[float], first: float, last: float, width: int) -> list[float]:
    span = (last - first) or 1.0
    return [round(3 + (width - 6) * (value - first) / span, 1) for value in values]


def _height(value: float, low: float, high: float) -> float:
    share = (value - low) / ((high - low) or 1.0)
    return round(3 + (SPARK[1] - 6) * (1 - min(max(share, 0.0), 1.0)), 1)


def _path(xs: Sequence[float], ys: Sequence[float], low: float, high: float) -> str:
    return " ".join(f"{x},{_height(y, low, high)}" for x, y in zip(xs, ys, strict=True))


def _band(xs: Sequence[float], curve: Curve, low: float, high: float) -> str:
    there = _path(xs, curve.high, low, high)
    back = _path(list(reversed(xs)), list(reversed(curve.low)), low, high)
    return f'<polygon points="{there} {back}"/>'
