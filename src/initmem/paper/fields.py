"""What tables 1 to 7 share: columns that show something of a line, and notes on where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from initmem.measures.scales import median_interpolation
from initmem.paper import grids
from initmem.paper.reference import find, memory_of
from initmem.paper.selection import Line
from initmem.plots.series import spread_over, value_of
from initmem.table import MISSING, Cell, Column, Kind, Mean, Table, Value, cell

Entry = Value | Cell  # None: missing; "": does not apply
SPREAD = "Spread: range (max - min) of the means over the scales shown, over seeds that have them all"
NO_VALUES = "No published values for what is shown"


class Field(NamedTuple):
    """A column, and what it shows of a line; those of published values are shown on request."""

    title: str
    about: str
    entry: Callable[[Line], Entry]
    unit: str = ""
    kind: Kind = "number"
    published: bool = False


def lines_table(
    where: str,
    title: str,
    parts: Sequence[Sequence[Field]],
    study: grids.Lines,
    *,
    reference: bool,
    notes: Sequence[str] = (),
    grid: Sequence[float] = (),
    group: int = 1,
) -> Table:
    """A row for every line, part by part, with notes on where the numbers come from and what is missing.

    All parts have the same columns. `grid` holds the scales over which spreads are taken, if any are.
    """
    lines = study.every
    parts = [[field for field in fields if reference or not field.published] for fields in parts]
    rows = [[field.entry(line) for field in fields] for fields in parts for line in lines]
    from_paper = [i for i, field in enumerate(parts[0]) if field.published]
    items = [memory_of(line.recipe, where) for line in lines]
    published = sorted({item.n_scales for item in items if item and item.n_scales})
    scales = f"over {' or '.join(map(str, published))} scales; measured: over {len(grid)}"
    has_published = any(row[i] for row in rows for i in from_paper)
    every_note = [
        *[SPREAD] * bool(grid),
        *notes,
        *[NO_VALUES] * (reference and not has_published),
        *[f"Published spreads: {scales}"] * bool(reference and grid and published),
        *(f"{name}: {text}" for name, text in grids.origin(study.selection, lines).items() if text),
        *study.notes,
    ]
    columns = [Column(field.title, field.kind, field.about, field.unit) for field in parts[0]]
    return paper_table(title, columns, rows, every_note, grids.missing(lines), group, name=where.capitalize())


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
    if isinstance(entry, Mean):
        return Cell(entry, str(entry) if entry.n == usual else f"{entry} ({entry.n})")
    if entry is None or isinstance(entry, Cell):
        return entry or Cell(None, MISSING)
    return cell(entry, "d" if isinstance(entry, int) else "g")


# -- entries and fields -----------------------------------------------------------------------------------


def mean_of(values: Iterable[float | None], digits: int = 1) -> Mean | None:
    """Mean and sample deviation of the values that are there; None without any."""
    there = np.array([value for value in values if value is not None], dtype=float)
    if not len(there):
        return None
    std = float(there.std(ddof=1)) if len(there) > 1 else None
    return Mean(float(there.mean()), std, len(there), digits)


def mean(line: Line, metric: str = "test_accuracy") -> Mean | None:
    """The mean of a metric over the runs of a line."""
    return mean_of(map(value_of(metric), line.records))


def tau_best(line: Line) -> Mean | None:
    """The mean epoch of the selected models."""
    return mean_of((record.summary.tau_best for record in line.records), digits=0)


def tau_interp(line: Line) -> str | None:
    """The median interpolation epoch; one that was not reached is larger than the last epoch."""
    if not line.records:
        return None
    times = median_interpolation(line.records)
    if times.median is None:
        return f"> {max(record.summary.epochs for record in line.records)}"
    return f"{times.median:.0f}" + (f" ({times.n_censored} never)" if times.n_censored else "")


def tenths(value: float | None) -> Cell | None:
    """A number that is not a mean over seeds, to one digit."""
    return None if value is None else cell(value, ".1f")


BATCH = Field("b", "batch size", lambda line: line.recipe.batch_size)
OPTIMIZER = Field("optimizer", "its name", lambda line: line.recipe.optimizer, kind="text")
TAU_INTERP = Field("τ_interp", "epoch of interpolation", tau_interp, "epochs")
TAU_BEST = Field("τ_best", "epoch of the selected model", tau_best, "epochs")
MEDIAN = "τ_interp: median, runs that never got there counted as later than their last epoch"


def label_field(title: str, about: str) -> Field:
    """A column of the labels of lines."""
    return Field(title, about, lambda line: line.label, kind="text")


def published_field(
    where: str, title: str, quantity: str, unit: str, scale: float | None = None, about: str = "published"
) -> Field:
    """A column of published values, such as those of "table 4"; blank where there is none."""

    def entry(line: Line) -> str:
        item = find(where, line.recipe, quantity, scale)
        if quantity == "spread":  # a spread may also have been published for this procedure elsewhere
            item = memory_of(line.recipe, where)
        return "" if item is None else str(item)

    return Field(title, about, entry, unit, published=True)


def at_scales(
    grid: Sequence[float],
    entry: Callable[[Line], Entry] = mean,
    about: str = "test accuracy at that scale",
    unit: str = "%",
) -> list[Field]:
    """A column for every scale."""

    def at_scale(line: Line, *, scale: float) -> Entry:
        return entry(line.at(scale))

    return [Field(f"σ = {scale:g}", about, partial(at_scale, scale=scale), unit) for scale in grid]


def spread_field(grid: Sequence[float]) -> Field:
    """A column of spreads over these scales."""
    about = "range over scales (max - min)"
    return Field("spread", about, lambda line: tenths(spread_over(line.records, grid)), "pp")


def spread_fields(where: str, grid: Sequence[float]) -> list[Field]:
    """Test accuracy at these scales, its spread, and the published one."""
    return [*at_scales(grid), spread_field(grid), published_field(where, "spread, paper", "spread", "pp")]
