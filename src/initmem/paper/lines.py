"""From the lines of a figure to its series, spreads, legend, origin and gaps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from initmem.paper.reference import find, memory_of
from initmem.paper.selection import Line, Selection
from initmem.plots import captions
from initmem.plots.model import AnyPanel, Entry, Interval, Intervals, Mark, Plot, Series
from initmem.plots.series import Value, common_grid, scale_series, spread_over


def series(lines: Iterable[Line], value: Value) -> list[Series]:
    """A series for every line that has runs."""
    return [
        scale_series(line.records, value, line.expected, label=line.label, style=line.style)
        for line in lines
        if line.records
    ]


def published_marks(where: str, lines: Iterable[Line]) -> tuple[Mark, ...]:
    """Published test accuracies at single scales."""
    points = [(line, scale) for line in lines for scale in line.expected]
    items = [(find(where, line.recipe, "test", scale), scale, line.style) for line, scale in points]
    return tuple(Mark(scale, item.value, style) for item, scale, style in items if item)


def shared_scales(lines: Iterable[Line]) -> list[float]:
    """The scales over which these lines can be compared."""
    return common_grid([line.expected for line in lines if line.records])


def spreads(where: str, title: str, lines: Sequence[Line]) -> Intervals:
    """The spread of every line over the scales that most of them share, and the published one."""
    grid, rows = shared_scales(lines), []
    for line in lines:
        void = "incomplete" if line.records else "no runs"
        row = Interval(line.label, line.style, spread_over(line.records, grid), void=void)
        if item := memory_of(line.recipe, where):
            row = row._replace(reference=item.value, relation=item.relation, reference_scales=item.n_scales)
        rows.append(row)
    return Intervals(title, f"spread, {len(grid)} scales (pp)", rows, len(grid))


def legend(lines: Sequence[Line]) -> list[Entry]:
    """Every label once; without runs if none of its lines has any."""
    present = {line.label for line in lines if line.records}
    return list({line.label: Entry(line.label, line.style, line.label in present) for line in lines}.values())


def missing(lines: Iterable[Line]) -> list[str]:
    """What the lines lack, a sentence for each that is not whole."""
    return [text for line in {line.key: line for line in lines}.values() for text in line.missing()]


def origin(selection: Selection, lines: Iterable[Line]) -> tuple[str, str]:
    """Where the numbers come from, and what the recipes of the selection share beside its axes."""
    lines = [line for line in lines if line.records]
    own = [line.recipe for line in lines if line.key in selection.cells]
    source = captions.source([line.recipe for line in lines], selection.studies)
    return source, captions.common(own, selection.fields)


def plot_of_lines(
    selection: Selection,
    rows: Sequence[Sequence[AnyPanel]],
    lines: Sequence[Line],
    *,
    notes: Sequence[str] = (),
    **others: Any,
) -> Plot:
    """Put a figure together: panels, a legend that names every line once, its origin and its gaps."""
    source, setting = origin(selection, lines)
    usual = {
        "legend": [legend(lines)],
        "source": source,
        "setting": setting,
        "missing": missing(lines),
        "notes": [*selection.notes, *notes],
    }
    return Plot(rows, **usual | others)
