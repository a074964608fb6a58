"""Plot data of the figures: plain values that any drawer can take. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from initmem.measures.memory import profile
from initmem.measures.statistics import spread_of
from initmem.store.record import RunRecord

Value = Callable[[RunRecord], float | None]


class Style(NamedTuple):
    """How a line is told apart: by colour, and by marker and dashes for those who do not see it."""

    colour: str
    marker: str
    dash: str  # a matplotlib line style


class Line(NamedTuple):
    """One line with its band; every list has one entry per point, NaN where there is no run."""

    label: str
    style: Style
    x: list[float]
    y: list[float]
    low: list[float]
    high: list[float]
    n: list[int]  # runs behind each point
    n_censored: list[int]  # of these, runs that never got there
    expected: list[int]  # runs that were asked for


class Mark(NamedTuple):
    """A published value at a point of a panel."""

    x: float
    y: float
    style: Style


class Spread(NamedTuple):
    """One spread over scales, in points: measured (None: not to be had) and published (None: not given)."""

    label: str
    style: Style
    measured: float | None
    reference: float | None
    relation: str = "="  # how the published value is meant: =, <, <=, about
    void: str = "no runs"  # why nothing was measured


class SpreadPanel(NamedTuple):
    """Spreads side by side."""

    title: str
    x_title: str
    spreads: list[Spread]
    n_scales: int


class Panel(NamedTuple):
    """Lines over one pair of axes. A panel without lines says so where it would stand."""

    title: str
    x_title: str
    y_title: str
    lines: list[Line]
    guides: tuple[Line, ...] = ()  # thin dashed lines that are no measurement of the panel's own
    marks: tuple[Mark, ...] = ()
    level: float | None = None  # a published value that holds all along
    ceiling: float | None = None  # the last epoch: where values that were never reached are shown
    log_x: bool = False
    log_y: bool = False
    void: str = "no values"  # what to say where there are runs but none has a value
    inset: SpreadPanel | None = None


class Entry(NamedTuple):
    """A line of the legend; `present` is False for what has no run anywhere in the figure."""

    label: str
    style: Style
    present: bool


class PanelPlot(NamedTuple):
    """A figure made of rows of panels."""

    rows: list[list[Panel | SpreadPanel]]
    legend: list[list[Entry]]  # by row
    caption: str
    missing: list[str]
    notes: list[str]


def log_limits(plot: PanelPlot) -> dict[str, tuple[float, float]]:
    """Limits of the logarithmic axes, by what they show; all panels of one quantity are alike.

    Less than a decade of values is better seen on a linear axis; more than four are cut off below.
    """
    known: dict[str, list[float]] = {}
    for panel in (panel for row in plot.rows for panel in row if isinstance(panel, Panel)):
        if panel.log_y and panel.ceiling is None:
            values = [y for each in panel.lines for y in each.y if y > 0]
            known.setdefault(panel.y_title, []).extend(values)
    return {
        title: (max(min(values) / 1.5, max(values) / 1e4), 2 * max(values))
        for title, values in known.items()
        if values and max(values) > 10 * min(values)
    }


def line(
    label: str, style: Style, records: Sequence[RunRecord], value: Value, expected: Mapping[float, int]
) -> Line:
    """Mean and 10-90 percentile band of a value over the seeds, at every scale where runs are expected."""
    groups, total = values_at(records, value), Counter(record.run.scale for record in records)
    found = {scale: np.asarray(groups.get(scale, []), dtype=float) for scale in expected}
    bands = [np.percentile(x, [10, 90]) if len(x) else (math.nan, math.nan) for x in found.values()]
    return Line(
        label=label,
        style=style,
        x=list(expected),
        y=[float(x.mean()) if len(x) else math.nan for x in found.values()],
        low=[float(low) for low, _ in bands],
        high=[float(high) for _, high in bands],
        n=[len(x) for x in found.values()],
        n_censored=[total[scale] - len(x) for scale, x in found.items()],
        expected=list(expected.values()),
    )


def values_at(records: Sequence[RunRecord], value: Value) -> dict[float, list[float]]:
    """The values that are there, by scale."""
    groups: dict[float, list[float]] = {}
    for record in records:
        found = value(record)
        if found is not None:
            groups.setdefault(record.run.scale, []).append(found)
    return groups


def by_scale(records: Sequence[RunRecord]) -> dict[float, list[RunRecord]]:
    """Records by initialization scale, in ascending order."""
    groups: dict[float, list[RunRecord]] = {}
    for record in sorted(records, key=lambda record: record.run.scale):
        groups.setdefault(record.run.scale, []).append(record)
    return groups


def usual_grid(groups: Iterable[Sequence[RunRecord]]) -> list[float]:
    """The scales that most groups of records have, exactly."""
    counts = Counter(tuple(sorted({record.run.scale for record in records})) for records in groups)
    best = max(counts, key=lambda grid: (counts[grid], len(grid)), default=())
    return list(best)


def common_grid(grids: Sequence[Iterable[float]]) -> list[float]:
    """The grid of scales that most of the given ones contain: spreads over different grids do not compare."""
    sets = [frozenset(grid) for grid in grids]
    best = max(set(sets), key=lambda grid: (sum(grid <= other for other in sets), len(grid)), default=None)
    return sorted(best) if best is not None else []


def spread_over(records: Sequence[RunRecord], scales: Sequence[float]) -> float | None:
    """max - min over scales of the mean test accuracy, in points, over the seeds that have every scale.

    None where no seed has them all, or where there is but one scale.
    """
    there = [record for record in records if record.run.scale in scales]
    if len(scales) < 2 or {record.run.scale for record in there} != set(scales):
        return None
    values = profile(there, "test_accuracy").values
    return float(spread_of(values.mean(axis=0))) if len(values) else None


def percent(metric: str) -> Value:
    """A recorded fraction, in percent."""

    def value(record: RunRecord) -> float | None:
        found = record.metric(metric)
        return None if found is None else 100 * found

    return value


def gap(record: RunRecord) -> float | None:
    """Train less test accuracy of the selected predictor, in points."""
    train, test = record.metric("train_accuracy"), record.metric("test_accuracy")
    return None if train is None or test is None else 100 * (train - test)
