"""What figures and tables are made of: the series of lines, their means, spreads and published values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from initmem.measures.scales import median_interpolation
from initmem.paper.reference import find, memory_of
from initmem.paper.selection import Line, Selection
from initmem.plots import captions
from initmem.plots.model import AnyPanel, Interval, Intervals, Mark, Plot, Series
from initmem.plots.model import Entry as LegendEntry
from initmem.plots.series import Value as MetricValue
from initmem.plots.series import common_grid, scale_series, spread_over, value_of
from initmem.table import MISSING, Cell, Column, Mean, Table, Value, cell

Entry = Value | Cell  # None: missing; "": does not apply

NO_VALUES = "No published values for what is shown"
SCALES = (0.1, 0.5, 1.0, 1.8, 2.5)  # where nothing has been run at all
SPREAD = "Spread: range (max - min) of the means over the scales shown, over seeds that have them all"


# -- figures ----------------------------------------------------------------------------------------------


def series(lines: Iterable[Line], value: MetricValue) -> list[Series]:
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


def legend(lines: Sequence[Line]) -> list[LegendEntry]:
    """Every label once; without runs if none of its lines has any."""
    present = {line.label for line in lines if line.records}
    return list(
        {line.label: LegendEntry(line.label, line.style, line.label in present) for line in lines}.values()
    )


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


# -- tables -----------------------------------------------------------------------------------------------


class Field(NamedTuple):
    """A column, and what it shows of a line; some are shown only where published values are asked for."""

    column: Column
    entry: Callable[[Line], Entry]
    shown: Literal["always", "with published", "published"] = "always"


def lines_table(
    where: str,
    title: str,
    parts: Sequence[Sequence[Field]],
    selection: Selection,
    lines: Sequence[Line],
    *,
    reference: bool,
    notes: Sequence[str],
    further_notes: Sequence[str] = (),
    grid: Sequence[float] = (),
    group: int = 1,
) -> Table:
    """A row for every line, part by part, with notes on where the numbers come from and what is missing.

    All parts have the same columns. `grid` holds the scales over which spreads are taken, if any are.
    """
    parts = [[field for field in fields if reference or field.shown == "always"] for fields in parts]
    rows = [[field.entry(line) for field in fields] for fields in parts for line in lines]
    from_paper = [i for i, field in enumerate(parts[0]) if field.shown == "published"]
    has_published = any(row[i] for row in rows for i in from_paper)
    source, setting = origin(selection, lines)
    every_note = [
        SPREAD if grid else "",
        *notes,
        *(_published_scales(where, lines, grid) if reference and grid else ()),
        NO_VALUES if reference and not has_published else "",
        f"{source}; reference: the paper" if has_published else source,
        setting,
        *selection.notes,
        *further_notes,
    ]
    columns = [field.column for field in parts[0]]
    return paper_table(
        title,
        columns,
        rows,
        [note for note in every_note if note],
        missing(lines),
        group,
        name=where.capitalize(),
    )


def paper_table(
    title: str,
    columns: Sequence[Column],
    rows: Sequence[Sequence[Entry]],
    notes: Sequence[str],
    missing: Sequence[str],
    group: int = 1,
    *,
    name: str = "",
) -> Table:
    """A table that says how many seeds its means are over; a mean over any other number says so itself."""
    counts = [entry.n for row in rows for entry in row if isinstance(entry, Mean)]
    usual = max(set(counts), key=lambda n: (counts.count(n), n)) if counts else None
    cells = [[_cell(entry, usual) for entry in row] for row in rows]
    seeds = []
    if usual is not None:
        text = f"Mean ± sample deviation over n = {usual} seeds" if usual > 1 else "One seed: no deviation"
        seeds = [text + ("; where n differs it is given in parentheses" if len(set(counts)) > 1 else "")]
    return Table(title, columns, cells, [*seeds, *notes], missing, name, group=group)


def _cell(entry: Entry, usual: int | None) -> Cell:
    match entry:
        case None:
            return Cell(None, MISSING)
        case Mean():
            return Cell(entry, str(entry) if entry.n == usual else f"{entry} ({entry.n})")
        case Cell():
            return entry
        case int() | float():
            return cell(entry, "d" if isinstance(entry, int) else "g")
        case _:
            return cell(entry)


# -- entries ----------------------------------------------------------------------------------------------


def mean_of(values: Iterable[float | None], digits: int = 1) -> Mean | None:
    """Mean and sample deviation of the values that are there; None without any."""
    there = np.array([value for value in values if value is not None], dtype=float)
    if not len(there):
        return None
    std = float(there.std(ddof=1)) if len(there) > 1 else None
    return Mean(float(there.mean()), std, len(there), digits)


def mean(line: Line, metric: str = "test_accuracy") -> Mean | None:
    """The mean of a metric over all runs of a line."""
    return mean_of(map(value_of(metric), line.records))


def tau_best(line: Line) -> Mean | None:
    """The mean epoch of the selected predictors."""
    return mean_of((record.summary.tau_best for record in line.records), digits=0)


def tau_interp(line: Line) -> str | None:
    """The median interpolation epoch; one that was not reached is larger than the last epoch."""
    if not line.records:
        return None
    times = median_interpolation(line.records)
    if times.median is None:
        return f"> {max(record.summary.epochs for record in line.records)}"
    return f"{times.median:.0f}" + (f" ({times.n_censored} never)" if times.n_censored else "")


def number(value: float | None) -> Cell | None:
    """A number that is not a mean over seeds, to one digit."""
    return None if value is None else cell(value, ".1f")


# -- fields -----------------------------------------------------------------------------------------------

BATCH = Field(Column("b", about="batch size"), lambda line: line.recipe.batch_size)
TAU_INTERP = Column("τ_interp", about="epoch of interpolation", unit="epochs")
TAU_BEST = Column("τ_best", about="epoch of the selected predictor", unit="epochs")
OPTIMIZER = Field(Column("optimizer", "text", "its name"), lambda line: line.recipe.optimizer)


def label(title: str, about: str) -> Field:
    """A column with the label of every line."""
    return Field(Column(title, "text", about), lambda line: line.label)


def published(
    where: str,
    title: str,
    quantity: str,
    unit: str,
    *,
    scale: float | None = None,
    about: str = "published",
) -> Field:
    """A column of published values, such as those of "table 4"; blank where there is none."""

    def entry(line: Line) -> str:
        item = find(where, line.recipe, quantity, scale)
        if quantity == "spread":  # a spread may also have been published for this procedure elsewhere
            item = memory_of(line.recipe, where)
        return "" if item is None else str(item)

    return Field(Column(title, about=about, unit=unit), entry, "published")


def at_scales(
    grid: Sequence[float],
    entry: Callable[[Line], Entry] = mean,
    about: str = "test accuracy at that scale",
    unit: str = "%",
) -> list[Field]:
    """A column for every scale."""

    def at_scale(line: Line, *, scale: float) -> Entry:
        return entry(line.at(scale))

    columns = [Column(f"σ = {scale:g}", about=about, unit=unit) for scale in grid]
    return [
        Field(column, partial(at_scale, scale=scale)) for column, scale in zip(columns, grid, strict=True)
    ]


def spread(grid: Sequence[float]) -> Field:
    """The spread of test accuracy over these scales."""
    column = Column("spread", about="range over scales (max - min)", unit="pp")
    return Field(column, lambda line: number(spread_over(line.records, grid)))


def spread_fields(where: str, grid: Sequence[float]) -> list[Field]:
    """Test accuracy at these scales, its spread, and the published one."""
    return [*at_scales(grid), spread(grid), published(where, "spread, paper", "spread", "pp")]


def _published_scales(where: str, lines: Iterable[Line], grid: Sequence[float]) -> list[str]:
    """Over how many scales the published spreads were taken: over more of them a spread is larger."""
    values: dict[int, list[str]] = {}
    for item in (memory_of(line.recipe, where) for line in lines):
        if item is not None and item.n_scales is not None:
            values.setdefault(item.n_scales, []).append(str(item))
    if not values:
        return []
    *few, (most, _) = sorted(values.items(), key=lambda pair: len(pair[1]))
    text = "".join(f"{', '.join(dict.fromkeys(texts))} over {n} scales, " for n, texts in few)
    rest = f"the others over {most}" if few else f"over {most} scales"
    return [f"Published spreads: {text}{rest}; measured: over {len(grid)}"]
